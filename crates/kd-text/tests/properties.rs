//! What holds for every text and every sequence of ids, and what hostile input does.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kd_text::tokenizer::MAX_INPUT_BYTES;
use kd_text::{StreamDecoder, Tokenizer, TokenizerError};
use proptest::prelude::*;

static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| load("models/demo/target"));
static SMALL: LazyLock<Tokenizer> = LazyLock::new(|| load("tests/golden/tokenizer/small"));

fn load(dir: &str) -> Tokenizer {
    let repo: PathBuf = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).into();
    Tokenizer::from_dir(repo.join(dir)).unwrap()
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut decoder = StreamDecoder::new(tokenizer, skip_special);
    let mut text: String = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
    text.push_str(&decoder.finish());
    assert_eq!(decoder.finish(), "", "finishing again has nothing to give");
    text
}

proptest! {
    #[test]
    fn round_trip(text in any::<String>()) {
        for tokenizer in [&*DEMO, &*SMALL] {
            let ids = tokenizer.encode_ordinary(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.as_str());
            prop_assert!(!ids.iter().any(|&id| tokenizer.is_control(id)));
            let ids = tokenizer.encode_with_special(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.as_str());
        }
    }

    /// Faults 18 and 19: no character is lost or broken at the edge of a piece, valid UTF-8 or not.
    #[test]
    fn a_stream_equals_the_whole(ids in prop::collection::vec(0u32..1202, 0..60), skip_special: bool) {
        prop_assert_eq!(stream(&SMALL, &ids, skip_special), SMALL.decode(&ids, skip_special).unwrap());
    }

    /// The same where nearly every id is a single byte ≥ 0x80: all kinds of malformed sequences.
    #[test]
    fn a_stream_of_bytes_equals_the_whole(bytes in prop::collection::vec(0x80u8.., 0..12), control: bool) {
        let single: Vec<u32> = bytes.iter().map(|&byte| single_byte(byte)).collect();
        let mut ids = single.clone();
        if control {
            ids.insert(ids.len() / 2, DEMO.token_id("<|im_end|>").unwrap());
        }
        prop_assert_eq!(stream(&DEMO, &ids, false), DEMO.decode(&ids, false).unwrap());
        prop_assert_eq!(stream(&DEMO, &ids, true), String::from_utf8_lossy(&bytes));
    }

    /// The text between control strings is encoded as if it stood alone.
    #[test]
    fn control_strings_divide_the_text(parts in prop::collection::vec("[ a-z\n世é|<]{0,8}", 1..5)) {
        let end = DEMO.token_id("<|im_end|>").unwrap();
        let alone: Vec<Vec<u32>> = parts.iter().map(|part| DEMO.encode_ordinary(part).unwrap()).collect();
        let whole = DEMO.encode_with_special(&parts.join("<|im_end|>")).unwrap();
        prop_assert_eq!(whole, alone.join(&end));
    }
}

fn single_byte(byte: u8) -> u32 {
    (0..256).find(|&id| DEMO.token_bytes(id).unwrap() == [byte]).unwrap()
}

/// Fault 18: an emoji that breaks off is held back, then becomes one U+FFFD.
#[test]
fn truncated_emoji() {
    let ids: Vec<u32> = "🙂".bytes().map(single_byte).collect();
    for len in 1..4 {
        let mut decoder = StreamDecoder::new(&DEMO, false);
        for &id in &ids[..len] {
            assert_eq!(decoder.push(id).unwrap(), "");
        }
        assert_eq!(decoder.finish(), "\u{fffd}", "after {len} bytes");
    }
    // A control token after the break ends it.
    let mut decoder = StreamDecoder::new(&DEMO, false);
    assert_eq!(decoder.push(ids[0]).unwrap(), "");
    assert_eq!(decoder.push(DEMO.token_id("</think>").unwrap()).unwrap(), "\u{fffd}</think>");
}

/// User text can name every control token without becoming one.
#[test]
fn control_strings_in_plain_text_stay_ordinary() {
    let base = u32::try_from(DEMO.base_vocab_size()).unwrap();
    for id in base..base + 256 {
        let name = DEMO.control_name(id).unwrap();
        for text in [name.to_owned(), format!("a {name}\n{name}")] {
            let ids = DEMO.encode_ordinary(&text).unwrap();
            assert!(ids.iter().all(|&id| id < base), "{text:?} became {ids:?}");
            assert_eq!(DEMO.decode(&ids, true).unwrap(), text);
        }
        assert_eq!(DEMO.encode_with_special(name).unwrap(), [id]);
    }
}

#[test]
fn a_million_of_anything_passes() {
    for unit in [" ", "a", "A", "\n", "\0", "世", "9", "!", "\u{301}", "ªA", " \r", "\u{3000}"] {
        let text = unit.repeat(1_000_000);
        let ids = DEMO.encode_ordinary(&text).unwrap();
        assert!(DEMO.decode(&ids, false).unwrap() == text, "{unit:?}");
    }
}

#[test]
fn nul_is_a_character() {
    let text = "a\0b\0\0";
    assert_eq!(DEMO.decode(&DEMO.encode_ordinary(text).unwrap(), false).unwrap(), text);
}

/// 300 MB are refused at once. Zero pages keep the test's memory small.
#[test]
fn text_above_the_limit_is_an_error() {
    let text = String::from_utf8(vec![0; 300 << 20]).unwrap();
    for result in [DEMO.encode_ordinary(&text), DEMO.encode_with_special(&text)] {
        let error = result.unwrap_err();
        assert!(matches!(
            error,
            TokenizerError::InputTooLong { bytes, limit: MAX_INPUT_BYTES } if bytes == 300 << 20
        ));
        assert!(error.to_string().contains("314572800"), "{error}");
    }
}
