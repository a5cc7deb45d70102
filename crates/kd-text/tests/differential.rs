//! The encoder against tiktoken-rs with a real vocabulary of 199,998 tokens and Kimi's pattern.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use kd_text::Tokenizer;
use kd_text::tokenizer::pattern;
use proptest::prelude::*;
use tiktoken_rs::CoreBPE;

const TOKENS: u32 = 199_998;

struct Pair {
    ours: Tokenizer,
    theirs: CoreBPE,
}

/// The o200k ranks, read back from tiktoken-rs itself, in a checkpoint directory for us and in a `CoreBPE` for them.
static O200K: LazyLock<Pair> = LazyLock::new(|| {
    let published = tiktoken_rs::o200k_base().unwrap();
    let tokens: Vec<(Vec<u8>, u32)> =
        (0..TOKENS).map(|rank| (published.decode_bytes(&[rank]).unwrap(), rank)).collect();

    let mut model = String::new();
    for (token, rank) in &tokens {
        writeln!(model, "{} {rank}", STANDARD.encode(token)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tiktoken.model"), model).unwrap();
    let config = format!(r#"{{"added_tokens_decoder": {{"{}": {{"content": "<|end|>"}}}}}}"#, TOKENS + 7);
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();

    let control = |id| match id - TOKENS {
        7 => "<|end|>".to_owned(),
        _ => format!("<|reserved_token_{id}|>"),
    };
    let controls = (TOKENS..TOKENS + 256).map(|id| (control(id), id)).collect();
    Pair {
        ours: Tokenizer::from_dir(dir.path()).unwrap(),
        theirs: CoreBPE::new(tokens.into_iter().collect(), controls, &pattern()).unwrap(),
    }
});

impl Pair {
    /// tiktoken-rs on one piece; its `encode` with no control strings allowed reports errors, `encode_ordinary` panics.
    fn theirs(&self, text: &str) -> Vec<u32> {
        self.theirs.encode(text, &HashSet::new()).unwrap().0
    }
}

/// Fragments that meet in all combinations: scripts, cases, contractions, marks, digits, spaces, line breaks.
fn mixed_text(fragments: usize) -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        4 => "[a-z]{1,12}",
        2 => "[A-Z][a-z]{0,8}[A-Z]{0,4}",
        2 => "\\p{Han}{1,6}",
        2 => " {1,5}",
        2 => "[\r\n]{1,3}",
        2 => "[0-9]{1,8}",
        2 => "[!-/:-@\\[-`{-~]{1,6}",
        1 => "'(s|t|re|ve|m|ll|d|S|T|RE|Ve|ſ|x)",
        1 => "[\\p{Cyrillic}\\p{Greek}\\p{Arabic}\\p{Hangul}\\p{Hiragana}\\p{Thai}\\p{Devanagari}]{1,8}",
        1 => "[\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}ªß]{1,4}",
        1 => "[\\p{Nl}\\p{No}〇々〆⺀]{1,3}",
        1 => "\\s{1,4}",
        1 => "[🙂🚀👩👧🇳🇴\u{200d}\u{fe0f}\u{1f3fd}]{1,5}",
        1 => "<\\|(end|im_end|reserved_token_1)\\|>",
        1 => any::<String>(),
    ];
    prop::collection::vec(fragment, 0..fragments).prop_map(|fragments| fragments.concat())
}

/// The published cuts, written anew over arrays of characters: slices of 400,000, and in each a cut wherever a run of
/// one class reaches another 25,000 characters.
fn cuts(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let is_space = |character: &char| character.is_whitespace() || ('\x1c'..='\x1f').contains(character);
    let mut pieces = Vec::new();
    for slice in characters.chunks(400_000) {
        let mut piece = String::new();
        for run in slice.chunk_by(|a, b| is_space(a) == is_space(b)) {
            for (index, part) in run.chunks(25_000).enumerate() {
                if index > 0 {
                    pieces.push(std::mem::take(&mut piece));
                }
                piece.extend(part);
            }
        }
        pieces.push(piece);
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn mixed_text_encodes_alike(text in mixed_text(40)) {
        let ids = O200K.ours.encode_ordinary(&text).unwrap();
        prop_assert_eq!(&ids, &O200K.theirs(&text));
        prop_assert_eq!(O200K.ours.decode(&ids, true).unwrap(), text.as_str());
        prop_assert_eq!(O200K.ours.encode_with_special(&text).unwrap(), O200K.theirs.encode_with_special_tokens(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Long runs of one unit put the seams and the merge of 25,000-character words to the test.
    #[test]
    fn long_runs_encode_alike(
        runs in prop::collection::vec(("[a-zA-Z]{1,9}|[ \\t]|世|é|=|\\PC|the |\n", 1usize..60_000), 1..4),
        text in mixed_text(10),
    ) {
        let mut long: String = runs.iter().map(|(unit, times)| unit.repeat(*times)).collect();
        long.push_str(&text);
        let theirs: Vec<u32> = cuts(&long).iter().flat_map(|piece| O200K.theirs(piece)).collect();
        prop_assert!(O200K.ours.encode_ordinary(&long).unwrap() == theirs, "{runs:?} {text:?}");
    }
}

/// The largest word there is: 25,000 characters without a token border, at every length around the seam.
#[test]
fn the_seam_changes_tokens_exactly_as_published() {
    let word = "antidisestablishmentarianism".repeat(1_000);
    let mut seam_mattered = false;
    for end in (24_990..25_040).chain([28_000]) {
        let text = &word[..end];
        let theirs: Vec<u32> = cuts(text).iter().flat_map(|piece| O200K.theirs(piece)).collect();
        assert_eq!(O200K.ours.encode_ordinary(text).unwrap(), theirs, "{end} characters");
        seam_mattered |= end > 25_000 && theirs != O200K.theirs(text);
    }
    assert!(seam_mattered, "the text is chosen so that a missing cut shows");
}
