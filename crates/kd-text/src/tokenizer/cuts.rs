//! The published encoder's cuts: it never shows its pattern more than 400,000 characters, nor a run of more than
//! 25,000 white-space or non-white-space characters. The cuts change tokens at the seams, so they are part of the
//! encoding and not a detail. Source: `TikTokenTokenizer.encode` of the K2 family's `tokenization_kimi.py`.

/// Characters in a slice; slices are counted from the start of the text.
const SLICE: usize = 400_000;
/// Characters in a run of one class; runs are counted anew in every slice.
const RUN: usize = 25_000;

/// Cuts `text` into non-empty pieces whose concatenation is `text`.
pub(crate) fn cut(text: &str) -> Cuts<'_> {
    Cuts { rest: text, in_slice: 0 }
}

/// See [`cut`].
pub(crate) struct Cuts<'a> {
    rest: &'a str,
    /// Characters of the current slice that earlier pieces took.
    in_slice: usize,
}

impl<'a> Iterator for Cuts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (mut run, mut run_is_space) = (0, false);
        for (at, character) in self.rest.char_indices() {
            if self.in_slice == SLICE {
                self.in_slice = 0;
                return Some(self.take(at));
            }
            let is_space = is_space(character);
            run = if is_space == run_is_space { run + 1 } else { 1 };
            run_is_space = is_space;
            if run > RUN {
                return Some(self.take(at));
            }
            self.in_slice += 1;
        }
        Some(self.take(self.rest.len())).filter(|piece| !piece.is_empty())
    }
}

impl<'a> Cuts<'a> {
    fn take(&mut self, end: usize) -> &'a str {
        let (piece, rest) = self.rest.split_at(end);
        self.rest = rest;
        piece
    }
}

/// Python's `str.isspace`, which counts four separators as white space that Unicode's White_Space property does not.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str) -> Vec<usize> {
        let pieces: Vec<&str> = cut(text).collect();
        assert_eq!(pieces.concat(), text);
        pieces.iter().map(|piece| piece.chars().count()).collect()
    }

    #[test]
    fn runs_are_cut_at_25_000_characters_of_one_class() {
        assert_eq!(lengths(""), [0; 0]);
        assert_eq!(lengths(&"é".repeat(25_000)), [25_000]);
        assert_eq!(lengths(&" ".repeat(25_001)), [25_000, 1]);
        assert_eq!(lengths(&"é".repeat(60_000)), [25_000, 25_000, 10_000]);
        // The run, not the piece, is bounded: a short word before it shifts the seam.
        assert_eq!(lengths(&format!("ab {}", "x".repeat(25_001))), [25_003, 1]);
        assert_eq!(lengths(&format!("{} {}", "x".repeat(25_000), "x".repeat(25_000))), [50_001]);
    }

    #[test]
    fn slices_are_cut_at_400_000_characters_and_restart_the_run() {
        let words = "ab ".repeat(200_000);
        assert_eq!(lengths(&words), [400_000, 200_000]);
        // 390,000 characters of words, then one run across the slice border: 10,000 of it lie before the border and
        // the run after the border counts from one again.
        let text = format!("{}{}", "ab ".repeat(130_000), "x".repeat(36_000));
        assert_eq!(lengths(&text), [400_000, 25_000, 1_000]);
        // A run's seam does not move the next slice border.
        let text = format!("{}{}", "x".repeat(25_001), "ab ".repeat(200_000));
        assert_eq!(lengths(&text), [25_000, 375_000, 225_001]);
        assert_eq!(lengths(&"x".repeat(400_001)), [[25_000; 16].as_slice(), &[1]].concat());
    }

    #[test]
    fn white_space_is_pythons() {
        let spaces: Vec<u32> = (0..=u32::from(char::MAX))
            .filter_map(char::from_u32)
            .filter(|&character| is_space(character))
            .map(u32::from)
            .collect();
        let expected: Vec<u32> = (0x09..=0x0d)
            .chain(0x1c..=0x20)
            .chain([0x85, 0xa0, 0x1680])
            .chain(0x2000..=0x200a)
            .chain([0x2028, 0x2029, 0x202f, 0x205f, 0x3000])
            .collect();
        assert_eq!(spaces, expected);
    }
}
