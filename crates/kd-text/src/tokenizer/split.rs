//! Kimi's split pattern: text to words, each of which is merged on its own.

use std::sync::LazyLock;

use regex::Regex;

/// The published alternatives, tried in this order at each position.
const ALTERNATIVES: [&str; 8] = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    SPACES_BEFORE_NO_WORD,
    r"\s+",
];

/// The one alternative with a look-ahead. [`words`] evaluates it by hand, because without it an automaton does the
/// rest in linear time, where a backtracking engine fails on long runs of spaces.
const SPACES_BEFORE_NO_WORD: &str = r"\s+(?!\S)";

static AUTOMATON: LazyLock<Regex> = LazyLock::new(|| {
    let regular: Vec<&str> =
        ALTERNATIVES.into_iter().filter(|&alternative| alternative != SPACES_BEFORE_NO_WORD).collect();
    // Anchored: each search starts where the last word ended.
    Regex::new(&format!("^(?:{})", regular.join("|"))).expect("the pattern is a constant")
});

/// The published pattern as one expression.
pub fn pattern() -> String {
    ALTERNATIVES.join("|")
}

/// The words of `text`: non-empty, in order, covering all of it.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (word, tail) = rest.split_at(word_len(rest)?);
        rest = tail;
        Some(word)
    })
}

/// Length in bytes of the word that `rest` starts with, `None` at the end of the text.
fn word_len(rest: &str) -> Option<usize> {
    let end = AUTOMATON.find(rest)?.end();
    let last = rest[..end].chars().next_back()?;
    // Only the two white-space alternatives end in white space that is no line break. Both take a whole run of it, and
    // if text follows the run, the look-ahead leaves the last space to that text, unless it is the only one.
    let is_spaces = last.is_whitespace() && last != '\r' && last != '\n';
    let shorter = end - last.len_utf8();
    Some(if is_spaces && end < rest.len() && shorter > 0 { shorter } else { end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        words(text).collect()
    }

    #[test]
    fn the_pattern_is_the_published_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizer/small/cases.json");
        let cases: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(cases["pattern"], pattern());
    }

    #[test]
    fn the_last_space_belongs_to_the_word_after_it() {
        assert_eq!(split("a   b"), ["a", "  ", " b"]);
        assert_eq!(split("a b"), ["a", " b"]);
        assert_eq!(split("a   "), ["a", "   "]);
        assert_eq!(split("a  1"), ["a", " ", " ", "1"]);
        assert_eq!(split("\u{a0}\u{3000}1"), ["\u{a0}", "\u{3000}", "1"]);
        assert_eq!(split("  \n  x"), ["  \n", " ", " x"]);
    }

    /// Fault 21: the Han runs stand alone.
    #[test]
    fn han_is_split_from_other_letters() {
        assert_eq!(split("世界hello世界"), ["世界", "hello", "世界"]);
        assert_eq!(split("hello世界 world"), ["hello", "世界", " world"]);
    }

    #[test]
    fn every_character_starts_a_word() {
        for character in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let text: &str = character.encode_utf8(&mut buffer);
            assert!(words(text).eq([text]), "{character:?}");
        }
    }
}
