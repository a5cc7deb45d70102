//! Reading and writing safetensors files: the goldens, and every way in which a file can be broken.

use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use kd_tensor::dtype::DType;
use kd_tensor::safetensors::{SafeTensors, SafeTensorsError, TensorData, write_safetensors};
use proptest::prelude::*;
use tempfile::TempDir;

fn golden(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden")).join(path)
}

/// A file with the given header text and `data` zero bytes after it.
fn file_with(header: &str, data: usize) -> (TempDir, PathBuf) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    file_of(&bytes)
}

fn file_of(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("x.safetensors");
    fs::write(&path, bytes).expect("written");
    (dir, path)
}

/// The error that opening gives; its message must name the file and every one of `words`.
fn refusal(path: &Path, words: &[&str]) -> SafeTensorsError {
    let error = SafeTensors::open(path).expect_err("must be refused");
    let message = error.to_string();
    for word in words.iter().copied().chain([path.to_str().expect("UTF-8")]) {
        assert!(message.contains(word), "`{message}` does not say `{word}`");
    }
    error
}

#[test]
fn golden_shards_are_read_in_place() {
    let file = SafeTensors::open(golden("flat/checkpoint/model-00002-of-000004.safetensors")).expect("opens");
    assert!(file.names().is_sorted());
    assert_eq!(file.names().len(), file.len());
    let gate = file.tensor("model.layers.1.mlp.gate.weight").expect("present");
    assert_eq!((gate.dtype, gate.shape), (DType::BF16, [12, 96].as_slice()));
    let weights = file.storage::<bf16>(gate.name).expect("BF16");
    assert_eq!(weights.len(), 12 * 96);
    assert!(weights.iter().all(|w| w.is_finite()) && weights.iter().any(|w| w.to_f32() != 0.0));
    let bias = file.storage::<f32>("model.layers.1.mlp.gate.e_score_correction_bias").expect("F32");
    assert!(bias.is_mapped(), "an aligned tensor costs no copy");
    let shape = file.integers("model.layers.1.mlp.experts.0.down_proj.weight_shape").expect("I32");
    assert_eq!(shape, [96, 32]);
}

#[test]
fn golden_drafter_maps_are_read() {
    let file = SafeTensors::open(golden("drafter/reduced/checkpoint/model.safetensors")).expect("opens");
    let d2t = file.integers("d2t").expect("I64");
    let t2d = file.bools("t2d").expect("BOOL");
    assert_eq!((d2t.len(), t2d.len()), (96, 320));
    // The two maps say the same thing in two ways.
    let targets: Vec<usize> =
        d2t.iter().zip(0i64..).map(|(d, i)| usize::try_from(d + i).expect("an id")).collect();
    let marked: Vec<usize> = (0..320).filter(|&id| t2d[id]).collect();
    assert_eq!(targets, marked);
}

#[test]
fn a_tensor_of_another_type_is_refused_naming_both_types() {
    let file = SafeTensors::open(golden("drafter/reduced/checkpoint/model.safetensors")).expect("opens");
    let message = file.storage::<f32>("fc.weight").expect_err("BF16").to_string();
    assert!(message.contains("`fc.weight` is BF16, expected F32"), "{message}");
    assert!(matches!(
        file.integers("fc.weight"),
        Err(SafeTensorsError::WrongDType { expected: "I32 or I64", .. })
    ));
    assert!(matches!(file.bools("d2t"), Err(SafeTensorsError::WrongDType { found: DType::I64, .. })));
    assert!(matches!(file.tensor("nope"), Err(SafeTensorsError::Missing { .. })));
    assert!(matches!(file.storage::<f32>("nope"), Err(SafeTensorsError::Missing { .. })));
}

#[test]
fn missing_file_and_directory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    assert!(matches!(refusal(&dir.path().join("absent"), &[]), SafeTensorsError::Io { .. }));
    assert!(matches!(refusal(dir.path(), &["not a regular file"]), SafeTensorsError::NotAFile { .. }));
}

#[test]
fn empty_and_shorter_than_the_length_field() {
    for len in [0usize, 1, 7] {
        let (_dir, path) = file_of(&vec![0; len]);
        assert!(
            matches!(refusal(&path, &[]), SafeTensorsError::TooShort { found, .. } if found == len as u64)
        );
    }
}

#[test]
fn header_longer_than_the_file_or_than_any_header() {
    for claimed in [3u64, 1 << 20, 100_000_001, u64::MAX, u64::MAX - 7] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let (_dir, path) = file_of(&bytes);
        let error = refusal(&path, &[&claimed.to_string()]);
        assert!(matches!(error, SafeTensorsError::HeaderLength { limit: 2, .. }));
    }
}

#[test]
fn header_that_is_no_tensor_table() {
    let deep = "[".repeat(100_000);
    let cases = [
        "",
        "{",
        "[]",
        "null",
        "\u{0}",
        &deep,
        r#"{"a":3}"#,
        r#"{"a":{"dtype":"F32"}}"#,
        r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}}"#,
        r#"{"__metadata__":{"format":7}}"#,
    ];
    for header in cases {
        let (_dir, path) = file_with(header, 4);
        assert!(
            matches!(refusal(&path, &["malformed header"]), SafeTensorsError::Header { .. }),
            "{header:.60}"
        );
    }
    let (_dir, path) = file_with(r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#, 4);
    refusal(&path, &["`a`", "F33"]);
}

#[test]
fn header_of_invalid_utf8() {
    let mut bytes = 4u64.to_le_bytes().to_vec();
    bytes.extend(b"{\"\xff\"");
    let (_dir, path) = file_of(&bytes);
    refusal(&path, &["malformed header"]);
}

#[test]
fn extents_past_the_end_of_the_file() {
    // Rust-ecosystem research, advisory 12: a tensor larger than its file reads foreign memory.
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let (_dir, path) = file_with(header, 11);
    let error = refusal(&path, &["`b`", "4..12", "11 bytes"]);
    assert!(matches!(error, SafeTensorsError::OutOfFile { begin: 4, end: 12, data_len: 11, .. }));

    let huge = format!(r#"{{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, u64::MAX);
    let (_dir, path) = file_with(&huge, 4);
    assert!(matches!(refusal(&path, &["`a`"]), SafeTensorsError::OutOfFile { .. }));

    let backwards = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#;
    let (_dir, path) = file_with(backwards, 4);
    assert!(matches!(refusal(&path, &["`a`"]), SafeTensorsError::OutOfFile { .. }));
}

#[test]
fn shapes_that_do_not_fill_their_extent() {
    // Advisory 11: integer overflow in the size arithmetic of a weights header.
    for (shape, dtype) in [
        ("[3]", "F32"),
        ("[]", "F64"),
        ("[4294967296,4294967296]", "U8"),
        ("[9223372036854775807,3]", "F32"),
        // Four bytes, if the product or the count of bits wraps around.
        ("[4611686018427387905,4]", "U8"),
        ("[2305843009213693956]", "U8"),
        ("[1]", "F4"),
        ("[18446744073709551615]", "BF16"),
    ] {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,4]}}}}"#);
        let (_dir, path) = file_with(&header, 4);
        let error = refusal(&path, &["`a`", "4 bytes", dtype]);
        assert!(matches!(error, SafeTensorsError::SizeMismatch { found: 4, .. }), "{shape}");
    }
}

#[test]
fn overlapping_gapped_duplicate_and_trailing_tensors() {
    let entry = |name: &str, begin: usize| {
        format!(r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{begin},{}]}}"#, begin + 4)
    };
    let file = |entries: &[String], data| file_with(&format!("{{{}}}", entries.join(",")), data);

    let (_dir, path) = file(&[entry("a", 0), entry("b", 2)], 6);
    refusal(&path, &["`b`", "overlap"]);
    let (_dir, path) = file(&[entry("a", 0), entry("b", 0)], 4);
    refusal(&path, &["overlap"]);
    let (_dir, path) = file(&[entry("a", 0), entry("b", 8)], 12);
    refusal(&path, &["`b`", "gap"]);
    let (_dir, path) = file(&[entry("a", 0), entry("a", 0)], 4);
    refusal(&path, &["`a` occurs twice"]);
    let (_dir, path) = file(&[entry("a", 0)], 5);
    assert!(matches!(refusal(&path, &[]), SafeTensorsError::TrailingBytes { found: 5, expected: 4, .. }));
}

#[test]
fn booleans_are_zero_or_one() {
    let header = r#"{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1, 0, 2]);
    let (_dir, path) = file_of(&bytes);
    let message = SafeTensors::open(path).expect("opens").bools("a").expect_err("a 2").to_string();
    assert!(message.contains("`a` element 2 is 2"), "{message}");
}

#[test]
fn misaligned_data_is_copied_and_equal() {
    // Writers before alignment padding: a header of odd length, so that no tensor lies aligned.
    for pad in 0..8 {
        let header =
            format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}{}"#, " ".repeat(pad));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(1.5f32.to_le_bytes());
        bytes.extend((-2.0f32).to_le_bytes());
        let (_dir, path) = file_of(&bytes);
        let storage = SafeTensors::open(path).expect("opens").storage::<f32>("a").expect("F32");
        assert_eq!(storage.as_slice(), [1.5, -2.0]);
        assert_eq!(storage.is_mapped(), header.len().is_multiple_of(4));
    }
}

#[test]
fn every_truncation_of_a_golden_file_is_refused() {
    let whole = fs::read(golden("drafter/full/checkpoint/model.safetensors")).expect("golden");
    let (_dir, path) = file_of(&whole);
    SafeTensors::open(&path).expect("whole");
    for len in (0..3000).chain((3000..whole.len()).step_by(4099)).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).expect("written");
        refusal(&path, &[]);
    }
}

#[test]
fn writing_replaces_whole_files_and_refuses_nonsense() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("out.safetensors");
    write_safetensors(&path, [("a", TensorData::new(&[2], &[1i64, 2]))]).expect("written");
    let old = SafeTensors::open(&path).expect("opens").storage::<i64>("a").expect("I64");
    write_safetensors(&path, [("a", TensorData::owned(&[1, 3], &[4i64, 5, 6]))]).expect("replaced");
    assert_eq!(old.as_slice(), [1, 2], "a map of the old file stays valid");
    let new = SafeTensors::open(&path).expect("opens");
    assert_eq!(new.tensor("a").expect("present").shape, [1, 3]);

    let wrong = write_safetensors(&path, [("a", TensorData::new(&[3], &[1i64, 2]))]);
    assert!(matches!(wrong, Err(SafeTensorsError::SizeMismatch { found: 16, .. })));
    let twice = [("a", TensorData::new(&[1], &[1i64])), ("a", TensorData::new(&[1], &[1i64]))];
    assert!(matches!(write_safetensors(&path, twice), Err(SafeTensorsError::DuplicateEntry { .. })));
    let nowhere = write_safetensors(dir.path().join("no/such/dir"), [("a", TensorData::new(&[1], &[1i64]))]);
    assert!(matches!(nowhere, Err(SafeTensorsError::Io { .. })));
    assert!(matches!(
        write_safetensors(dir.path(), [("a", TensorData::new(&[1], &[1i64]))]),
        Err(SafeTensorsError::Io { .. })
    ));
    assert_eq!(new.integers("a").expect("I64"), [4, 5, 6], "a failed write leaves the old file");
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "no temporary file stays behind");
}

proptest! {
    #[test]
    fn what_is_written_is_read(tensors in proptest::collection::btree_map("[a-z.]{1,8}", (0usize..4, 0usize..5), 0..6)) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("x.safetensors");
        let values: Vec<Vec<f32>> =
            tensors.values().map(|&(rows, cols)| (0..rows * cols).map(|i| i as f32 - 0.5).collect()).collect();
        let entries = tensors.iter().zip(&values);
        write_safetensors(&path, entries.map(|((name, &(r, c)), v)| (name.clone(), TensorData::new(&[r, c], v)))).expect("written");
        let file = SafeTensors::open(&path).expect("opens");
        prop_assert_eq!(file.names().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
        for ((name, &(rows, cols)), expected) in tensors.iter().zip(&values) {
            let view = file.tensor(name).expect("present");
            prop_assert_eq!(view.dtype, DType::F32);
            prop_assert_eq!(view.shape, [rows, cols]);
            let storage = file.storage::<f32>(name).expect("F32");
            prop_assert_eq!(storage.as_slice(), expected);
        }
    }

    #[test]
    fn damaged_headers_never_panic(position in 0usize..2392, byte: u8) {
        let mut bytes = fs::read(golden("drafter/full/checkpoint/model.safetensors")).expect("golden");
        bytes[position] = byte;
        let (_dir, path) = file_of(&bytes);
        if let Ok(file) = SafeTensors::open(path) {
            // Still consistent: every extent can be read.
            prop_assert!(file.iter().map(|tensor| tensor.bytes.len()).sum::<usize>() < bytes.len());
        }
    }
}
