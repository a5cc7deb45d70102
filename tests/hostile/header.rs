//! Safetensors headers: their bytes, and what they say about tensors.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::case::{Case, all_refused, golden_model};

const SHARD: &str = "model-00002-of-000007.safetensors";
const SCALE: &str = "language_model.model.layers.1.mlp.experts.0.down_proj.weight_scale";

#[test]
fn damaged_headers() {
    all_refused(&bytes(), &kd_tests::golden("base/checkpoint"), golden_model);
}

#[test]
fn headers_that_lie_about_tensors() {
    all_refused(&entries(), &kd_tests::golden("base/checkpoint"), golden_model);
}

/// Replaces the bytes of a shard.
fn rewritten(name: &str, says: &[&str], edit: impl Fn(Vec<u8>) -> Vec<u8> + 'static) -> Case {
    let says = [&[SHARD], says].concat();
    Case::new(name, &says, move |dir| {
        let file = dir.join(SHARD);
        let bytes = fs::read(&file).expect("a shard");
        fs::write(&file, edit(bytes)).expect("written");
    })
}

/// The length field, the header and the data.
fn parts(bytes: &[u8]) -> (Value, Vec<u8>) {
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).expect("a header"), data.to_vec())
}

/// A file with this text as its header.
pub(crate) fn with_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

pub(crate) fn bytes() -> Vec<Case> {
    let length = |length: u64| move |bytes: Vec<u8>| [&length.to_le_bytes()[..], &bytes[8..]].concat();
    let header = |text: &'static [u8]| move |bytes: Vec<u8>| with_header(text, &parts(&bytes).1);
    let nested = |open: &'static str, close: &'static str, depth: usize| {
        move |_: Vec<u8>| {
            let text = format!("{{\"a\":{}{}}}", open.repeat(depth), close.repeat(depth));
            with_header(text.as_bytes(), &[])
        }
    };
    vec![
        rewritten("an empty file", &["0 bytes", "at least 8"], |_| Vec::new()),
        rewritten("seven bytes", &["7 bytes", "at least 8"], |bytes| bytes[..7].to_vec()),
        rewritten("a length and nothing else", &["header of"], |bytes| bytes[..8].to_vec()),
        rewritten("half a header", &["header of"], |bytes| bytes[..200].to_vec()),
        rewritten("one byte of data missing", &["truncated"], |mut bytes| {
            bytes.pop();
            bytes
        }),
        rewritten("one byte too many", &["tensors end at byte"], |mut bytes| {
            bytes.push(0);
            bytes
        }),
        rewritten("a header of 2^64 - 1 bytes", &["18446744073709551615"], length(u64::MAX)),
        rewritten("a header of 2^63 bytes", &["9223372036854775808"], length(1 << 63)),
        rewritten("a header of 2^32 bytes", &["4294967296"], length(1 << 32)),
        rewritten("a header of no bytes", &["malformed header"], length(0)),
        rewritten("a header cut by one byte", &["malformed header"], |bytes| {
            let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) - 1;
            [&length.to_le_bytes()[..], &bytes[8..]].concat()
        }),
        rewritten("zeros", &["malformed header"], |bytes| vec![0; bytes.len()]),
        rewritten("ones", &["18446744073709551615"], |bytes| vec![0xff; bytes.len()]),
        rewritten("a picture", &["header of"], |_| b"\x89PNG\r\n\x1a\n0123456789".to_vec()),
        rewritten("a pickle", &["header of"], |_| b"PK\x03\x04\x14\x00\x00\x00\x08archive/data.pkl".to_vec()),
        rewritten("a pointer file", &["header of"], |_| {
            b"version https://git-lfs.github.com/spec/v1\n".to_vec()
        }),
        rewritten("a header that is a list", &["malformed header"], header(b"[1, 2]")),
        rewritten("a header that is a number", &["malformed header"], header(b"7")),
        rewritten("a header that is null", &["malformed header"], header(b"null")),
        rewritten("a header of broken UTF-8", &["malformed header"], header(b"{\"\xff\xfe\": 1}")),
        rewritten("a header that goes on after its end", &["malformed header"], header(b"{} {}")),
        rewritten("an empty header over data", &["tensors end at byte 0"], header(b"{}")),
        rewritten(
            "metadata that is no map of strings",
            &["malformed header"],
            header(b"{\"__metadata__\": {\"a\": 1}}"),
        ),
        rewritten(
            "metadata twice",
            &["__metadata__", "twice"],
            header(b"{\"__metadata__\": {}, \"__metadata__\": {}}"),
        ),
        rewritten("lists without end", &["malformed header"], nested("[", "]", 100_000)),
        rewritten("objects without end", &["malformed header"], nested("{\"a\":", "}", 50_000)),
    ]
}

/// Changes what the header says about one tensor.
fn entry(name: &str, says: &[&str], edit: impl Fn(&mut Value) + 'static) -> Case {
    rewritten(name, says, move |bytes| {
        let (mut header, data) = parts(&bytes);
        edit(&mut header[SCALE]);
        with_header(header.to_string().as_bytes(), &data)
    })
}

fn field(name: &str, key: &'static str, value: Value, says: &[&str]) -> Case {
    entry(name, says, move |entry| entry[key] = value.clone())
}

pub(crate) fn entries() -> Vec<Case> {
    const MAX: u64 = u64::MAX;
    let offsets = |name: &str, value: Value, says: &[&str]| field(name, "data_offsets", value, says);
    let shape = |name: &str, value: Value, says: &[&str]| field(name, "shape", value, says);
    let dtype = |name: &str, value: Value, says: &[&str]| field(name, "dtype", value, says);
    let missing = |key: &'static str| {
        entry(&format!("no {key}"), &[SCALE, key], move |entry| {
            entry.as_object_mut().expect("an object").remove(key);
        })
    };
    vec![
        offsets("offsets past the end", json!([4352, 1_000_000_000_000u64]), &[SCALE, "1000000000000"]),
        offsets("offsets at the end of the world", json!([MAX - 512, MAX]), &["18446744073709551615"]),
        offsets("offsets backwards", json!([4864, 4352]), &[SCALE, "4864..4352"]),
        offsets("offsets that overlap the tensor before", json!([4351, 4863]), &["overlap or gap"]),
        offsets("offsets that leave a gap", json!([4353, 4865]), &["overlap or gap"]),
        offsets("offsets of another tensor", json!([256, 4352]), &["overlap or gap"]),
        offsets("negative offsets", json!([-512, 0]), &[SCALE]),
        offsets("offsets beyond 64 bits", json!([0, 1e30]), &[SCALE]),
        offsets("one offset", json!([4352]), &[SCALE]),
        offsets("three offsets", json!([4352, 4864, 4872]), &[SCALE]),
        offsets("offsets in words", json!(["4352", "4864"]), &[SCALE]),
        offsets("an extent of nothing", json!([4352, 4352]), &[SCALE]),
        shape("a shape too small", json!([127, 2]), &[SCALE, "512 bytes", "508"]),
        shape("a shape too large", json!([128, 3]), &[SCALE, "768"]),
        shape("a shape of another form", json!([256]), &[SCALE, "[128, 2]", "[256]"]),
        shape("a shape that overflows", json!([1u64 << 40, 1u64 << 40]), &[SCALE, "a size that can exist"]),
        shape("a shape that overflows to the right size", json!([(1u64 << 63) + 128, 2]), &[SCALE]),
        shape("a shape with a zero", json!([0, 2]), &[SCALE, "512 bytes"]),
        shape("a negative shape", json!([-128, 2]), &[SCALE]),
        shape("a broken shape", json!([128.5, 2]), &[SCALE]),
        shape("a shape that is no list", json!(256), &[SCALE]),
        dtype("an unknown type", json!("BF17"), &[SCALE, "BF17"]),
        dtype("a type in small letters", json!("bf16"), &[SCALE, "bf16"]),
        dtype("a type of the same size", json!("F16"), &[SCALE, "F16", "BF16"]),
        dtype("a type of another size", json!("F32"), &[SCALE, "1024"]),
        dtype("a type that is a number", json!(16), &[SCALE]),
        missing("dtype"),
        missing("shape"),
        missing("data_offsets"),
        entry("null for a tensor", &[SCALE], |entry| *entry = Value::Null),
        rewritten("a tensor twice", &[SCALE, "twice"], |bytes| {
            let (header, data) = parts(&bytes);
            let text = header.to_string();
            let again = format!("{{\"{SCALE}\":{},{}", header[SCALE], &text[1..]);
            with_header(again.as_bytes(), &data)
        }),
        rewritten("a tensor of another name", &[SCALE, "no tensor"], |bytes| {
            let (header, data) = parts(&bytes);
            let text = header.to_string().replace(SCALE, &format!("{SCALE}s"));
            with_header(text.as_bytes(), &data)
        }),
    ]
}

/// Changes bytes of one tensor's data.
pub(crate) fn poke(dir: &Path, shard: &str, tensor: &str, at: usize, with: &[u8]) {
    let file = dir.join(shard);
    let mut bytes = fs::read(&file).expect("a shard");
    let (header, data) = parts(&bytes);
    let start = header[tensor]["data_offsets"][0].as_u64().expect("an offset") as usize + at;
    let place = bytes.len() - data.len() + start;
    bytes[place..place + with.len()].copy_from_slice(with);
    fs::write(file, bytes).expect("written");
}
