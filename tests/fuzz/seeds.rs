//! Inputs to begin with: the goldens, and small files of every format.

use std::fs;
use std::path::Path;

use kd_tensor::safetensors::{TensorData, write_safetensors};
use serde_json::Value;

use crate::{golden, json};

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Small safetensors files with several types, an empty tensor and metadata.
pub(super) fn safetensors() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("seed");
    write_shard(&file);
    let empty = folder.path().join("empty");
    write_safetensors(&empty, Vec::<(String, TensorData<'_>)>::new()).expect("written");
    let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#;
    let by_hand = [&(header.len() as u64).to_le_bytes()[..], header, &[0, 1]].concat();
    vec![read(&file), read(&empty), by_hand, read(&golden("base/inputs.safetensors"))]
}

/// A shard of four tensors.
pub(super) fn write_shard(file: &Path) {
    let entries = [
        ("a", TensorData::owned(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("b", TensorData::owned(&[4], &[1i64, -1, i64::MAX, i64::MIN])),
        ("c", TensorData::owned::<i32>(&[0, 7], &[])),
        ("d", TensorData::owned(&[1], &[7i32])),
    ];
    write_safetensors(file, entries).expect("written");
}

pub(super) fn index() -> Vec<Vec<u8>> {
    let all = br#"{"metadata":{"total_size":60},"weight_map":{"a":"s.safetensors","b":"s.safetensors","c":"s.safetensors","d":"s.safetensors"}}"#;
    vec![all.to_vec(), br#"{"weight_map":{"a":"../s.safetensors","a":"s.safetensors"}}"#.to_vec()]
}

pub(super) fn target_configs() -> Vec<Vec<u8>> {
    ["base", "flat", "grouped", "noqlora"]
        .map(|name| read(&golden(&format!("{name}/checkpoint/config.json"))))
        .to_vec()
}

pub(super) fn drafter_configs() -> Vec<Vec<u8>> {
    ["causal", "full", "own", "reduced", "window", "yarn"]
        .map(|name| read(&golden(&format!("drafter/{name}/checkpoint/config.json"))))
        .to_vec()
}

pub(super) fn generation_configs() -> Vec<Vec<u8>> {
    vec![br#"{"eos_token_id": [1, 2], "max_length": 7}"#.to_vec(), br#"{"eos_token_id": 3}"#.to_vec()]
}

pub(super) fn vocabularies() -> Vec<Vec<u8>> {
    ["bytes256", "small"].map(|name| read(&golden(&format!("tokenizer/{name}/tiktoken.model")))).to_vec()
}

pub(super) fn control_ids() -> Vec<Vec<u8>> {
    let few = br#"{"added_tokens_decoder":{"256":{"content":"[BOS]","special":true},"257":{"content":"<think>"}},"bos_token":"[BOS]"}"#;
    vec![few.to_vec(), read(&golden("tokenizer/bytes256/tokenizer_config.json"))]
}

pub(super) fn templates() -> Vec<Vec<u8>> {
    let by_hand = "{% macro m(x) %}{{ x|trim }}{% endmacro %}{% for i in messages %}{{ m(i.content) }}{% if loop.last %}{{ i.role|upper }}{% endif %}{% endfor %}{{ tools|tojson }}";
    vec![read(&crate::demo("target/chat_template.jinja")), by_hand.as_bytes().to_vec()]
}

/// The conversations and the raw answers of the goldens, one seed each.
pub(super) fn conversations() -> Vec<Vec<u8>> {
    let conversation = |case: &Value| {
        serde_json::json!({"messages": case["messages"], "tools": case["tools"]}).to_string().into_bytes()
    };
    list(&json(&golden("text/chat.inputs.json")), conversation)
}

pub(super) fn answers() -> Vec<Vec<u8>> {
    list(&json(&golden("text/parser.inputs.json")), |case| {
        case["raw"].as_str().unwrap_or("").as_bytes().to_vec()
    })
}

pub(super) fn texts() -> Vec<Vec<u8>> {
    let cases = json(&golden("tokenizer/small/cases.inputs.json"));
    list(&cases["encode"], |case| case["text"].as_str().unwrap_or("").as_bytes().to_vec())
}

fn list(cases: &Value, seed: impl Fn(&Value) -> Vec<u8>) -> Vec<Vec<u8>> {
    cases.as_array().map(|cases| cases.iter().map(seed).collect()).unwrap_or_default()
}

/// Anything: targets that take numbers read them from the bytes themselves.
pub(super) fn noise() -> Vec<Vec<u8>> {
    let counted: Vec<u8> = (0..=255).collect();
    let floats: Vec<u8> = [0.0f32, 1.0, -1.0, f32::NAN, f32::INFINITY, 1e-45, 3e38]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    vec![vec![0; 96], vec![0xff; 96], counted, floats.repeat(6)]
}

pub(super) fn bundles() -> Vec<Vec<u8>> {
    let header = br#"{"profile":"p","arch":"sm_90a","kind":"cubin","toolchain":"t","payload":0,"units":[]}"#;
    let head = [&b"KDBUNDLE"[..], &1u32.to_le_bytes(), &(header.len() as u32).to_le_bytes(), header].concat();
    // An empty zstd frame: magic, descriptor with a one-byte content size of 0, an empty last block.
    vec![[&head[..], &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x01, 0x00, 0x00]].concat(), head]
}
