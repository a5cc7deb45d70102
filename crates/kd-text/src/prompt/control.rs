//! Control strings: the names of Kimi's control tokens and a scanner that finds them in rendered text.

use std::borrow::Cow;

use rustc_hash::FxHashSet;

use super::segment::{Segment, Segments};

/// The control tokens that the K2.6 prompt is built of.
pub mod names {
    /// Opens a user turn.
    pub const IM_USER: &str = "<|im_user|>";
    /// Opens an assistant turn.
    pub const IM_ASSISTANT: &str = "<|im_assistant|>";
    /// Opens a turn of any other role.
    pub const IM_SYSTEM: &str = "<|im_system|>";
    /// Separates the speaker's name from what is said.
    pub const IM_MIDDLE: &str = "<|im_middle|>";
    /// Ends a turn.
    pub const IM_END: &str = "<|im_end|>";
    /// Opens the reasoning.
    pub const THINK: &str = "<think>";
    /// Closes the reasoning.
    pub const THINK_END: &str = "</think>";
    /// Opens the tool calls of a turn.
    pub const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
    /// Closes the tool calls of a turn.
    pub const SECTION_END: &str = "<|tool_calls_section_end|>";
    /// Opens one call; its id follows.
    pub const CALL_BEGIN: &str = "<|tool_call_begin|>";
    /// Separates a call's id from its arguments.
    pub const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";
    /// Closes one call.
    pub const CALL_END: &str = "<|tool_call_end|>";
    /// Opens a picture or film; its kind follows.
    pub const MEDIA_BEGIN: &str = "<|media_begin|>";
    /// Separates the kind from the placeholder.
    pub const MEDIA_CONTENT: &str = "<|media_content|>";
    /// Stands for the embedded picture.
    pub const MEDIA_PAD: &str = "<|media_pad|>";
    /// Closes a picture or film.
    pub const MEDIA_END: &str = "<|media_end|>";
}

/// The control strings of one tokenizer, ready to be searched for.
///
/// Where several match at one place the longest wins; matches do not overlap.
#[derive(Debug, Clone, Default)]
pub struct ControlStrings {
    strings: FxHashSet<String>,
    /// Distinct lengths in bytes, longest first.
    lengths: Vec<usize>,
    /// First characters, and all characters that open or close some control string.
    first: Vec<char>,
    edges: Vec<char>,
}

impl ControlStrings {
    /// Collects control strings, as the tokenizer spells them; empty ones are left out.
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Self {
        let strings: FxHashSet<String> =
            strings.into_iter().map(Into::into).filter(|s| !s.is_empty()).collect();
        let mut first: Vec<char> = strings.iter().filter_map(|s| s.chars().next()).collect();
        let mut edges: Vec<char> = strings.iter().filter_map(|s| s.chars().next_back()).collect();
        let mut lengths: Vec<usize> = strings.iter().map(String::len).collect();
        first.sort_unstable();
        first.dedup();
        edges.extend(&first);
        edges.sort_unstable();
        edges.dedup();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { strings, lengths, first, edges }
    }

    /// Every character that begins or ends a control string.
    pub(super) fn edges(&self) -> &[char] {
        &self.edges
    }

    /// Splits rendered text at its control strings.
    #[must_use]
    pub fn split(&self, text: &str) -> Vec<Segment> {
        self.split_map(text, Cow::Borrowed)
    }

    /// As [`split`](Self::split), with every stretch of ordinary text passed through `restore`.
    pub(super) fn split_map<'t>(
        &self,
        text: &'t str,
        restore: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Vec<Segment> {
        let mut out = Segments::default();
        let (mut start, mut at) = (0, 0);
        while let Some(offset) = text[at..].find(self.first.as_slice()) {
            let hit = at + offset;
            let found = self.lengths.iter().find_map(|&n| {
                let candidate = text.get(hit..hit.checked_add(n)?)?;
                self.strings.contains(candidate).then_some(candidate)
            });
            match found {
                Some(control) => {
                    out.text(&restore(&text[start..hit]));
                    out.control(control.to_owned());
                    at = hit + control.len();
                    start = at;
                }
                None => at = hit + text[hit..].chars().next().map_or(1, char::len_utf8),
            }
        }
        out.text(&restore(&text[start..]));
        out.finish()
    }
}
