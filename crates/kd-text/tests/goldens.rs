//! The tokenizer against recorded encodings, decodings and streams: the golden vocabularies, the demo checkpoint, and
//! long texts whose cuts were computed with the published algorithm.

use std::path::{Path, PathBuf};

use kd_text::{StreamDecoder, Tokenizer, TokenizerError};
use serde_json::Value;

fn repo(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn cases<'a>(golden: &'a Value, section: &str) -> &'a [Value] {
    let cases = golden[section].as_array().unwrap();
    assert!(!cases.is_empty(), "{section} is empty");
    cases
}

fn check_golden(dir: &str) {
    let dir = repo(dir);
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let golden = json(&dir.join("cases.json"));
    assert_eq!(golden["n_base"], tokenizer.base_vocab_size());
    assert_eq!(golden["vocab_size"], tokenizer.vocab_size());

    for case in cases(&golden, "encode") {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_ordinary(text).unwrap(), ids(&case["ids_plain"]), "{text:?}");
        assert_eq!(tokenizer.encode_with_special(text).unwrap(), ids(&case["ids_special"]), "{text:?}");
    }
    for case in cases(&golden, "decode") {
        let ids = ids(&case["ids"]);
        assert_eq!(case["text"], tokenizer.decode(&ids, false).unwrap());
        assert_eq!(case["skip_special"], tokenizer.decode(&ids, true).unwrap());
    }
    for case in cases(&golden, "stream") {
        let ids = ids(&case["ids"]);
        let mut decoder = StreamDecoder::new(&tokenizer, false);
        let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        pieces.push(decoder.finish());
        assert_eq!(case["pieces"], Value::from(pieces.clone()), "{}", case["name"]);
        assert_eq!(case["text"], pieces.concat(), "{}", case["name"]);
    }
}

#[test]
fn golden_bytes256() {
    check_golden("tests/golden/tokenizer/bytes256");
}

#[test]
fn golden_small() {
    check_golden("tests/golden/tokenizer/small");
}

#[test]
fn demo_checkpoint() {
    let tokenizer = Tokenizer::from_dir(repo("models/demo/target")).unwrap();
    let golden = json(&repo("models/demo/golden/golden.json"));
    for case in cases(&golden, "tokenizer") {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_with_special(text).unwrap(), ids(&case["ids"]), "{text:?}");
    }
}

/// Control ids are offsets from the base vocabulary; fault 22: `<think>` is one id, and not special.
#[test]
fn control_ids_by_name() {
    let tokenizer = Tokenizer::from_dir(repo("models/demo/target")).unwrap();
    let base = u32::try_from(tokenizer.base_vocab_size()).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(base), Some(base + 1)));
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(base + 2));
    assert_eq!(tokenizer.token_id("[PAD]"), Some(base + 255));
    assert_eq!(tokenizer.token_id("<|im_nobody|>"), None);
    for (name, special) in [("<|im_user|>", true), ("<|tool_call_begin|>", false), ("<think>", false)] {
        let id = tokenizer.token_id(name).unwrap();
        assert_eq!(tokenizer.encode_with_special(name).unwrap(), [id]);
        assert_eq!((tokenizer.is_control(id), tokenizer.is_special(id)), (true, special), "{name}");
    }
    assert!(!tokenizer.is_control(base - 1) && !tokenizer.is_control(base + 256));
}

/// Fault 20: reserved ids without a name decode to their numbered name, one by one and in a stream.
#[test]
fn every_id_decodes_and_the_next_is_an_error() {
    let tokenizer = Tokenizer::from_dir(repo("tests/golden/tokenizer/small")).unwrap();
    let size = u32::try_from(tokenizer.vocab_size()).unwrap();
    let mut decoder = StreamDecoder::new(&tokenizer, false);
    for id in 0..size {
        assert!(!tokenizer.token_bytes(id).unwrap().is_empty());
        decoder.push(id).unwrap();
    }
    let n = size - 256;
    for offset in [5, 16, 100] {
        let name = format!("<|reserved_token_{}|>", n + offset);
        assert_eq!(tokenizer.decode(&[n + offset], true).unwrap(), name);
    }
    for id in [size, u32::MAX] {
        let out_of_range =
            |error| matches!(error, TokenizerError::IdOutOfRange { id: found, .. } if found == id);
        assert!(tokenizer.decode(&[0, id], true).is_err_and(out_of_range));
        assert!(decoder.push(id).is_err_and(out_of_range));
    }
    assert_eq!(decoder.push(0).unwrap(), "!");
}

/// Published encodings of long texts with the demo vocabulary. A text is a list of [unit, repetitions]; the ids are
/// recorded as their number and the 64-bit FNV-1a hash of their little-endian bytes.
#[test]
fn seams_at_25_000_and_400_000_characters() {
    let tokenizer = Tokenizer::from_dir(repo("models/demo/target")).unwrap();
    let golden = json(&repo("crates/kd-text/tests/data/seams.json"));
    for case in golden.as_array().unwrap() {
        let runs: Vec<(String, usize)> = serde_json::from_value(case["text"].clone()).unwrap();
        let text: String = runs.iter().map(|(unit, times)| unit.repeat(*times)).collect();
        for (mode, ids) in [
            ("plain", tokenizer.encode_ordinary(&text).unwrap()),
            ("special", tokenizer.encode_with_special(&text).unwrap()),
        ] {
            assert_eq!(case[mode]["count"], ids.len(), "{mode} {}", case["text"]);
            assert_eq!(case[mode]["fnv1a"], fnv1a(&ids), "{mode} {}", case["text"]);
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }
}

fn fnv1a(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

/// A checkpoint without a tokenizer is usable with ids, so the caller must be able to tell.
#[test]
fn a_missing_tokenizer_is_not_a_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("tiktoken.model"), "{error}");

    std::fs::copy(repo("tests/golden/tokenizer/bytes256/tiktoken.model"), dir.path().join("tiktoken.model"))
        .unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Io { .. }), "{error}");

    std::fs::write(dir.path().join("tokenizer_config.json"), "{\"added_tokens_decoder\": ").unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::ConfigJson { .. }), "{error}");
}
