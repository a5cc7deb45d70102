//! The markers of K2.6's output and the search for them at the edge of a stream.

use crate::prompt::names as n;

/// A control token that shapes the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Think,
    ThinkEnd,
    SectionBegin,
    SectionEnd,
    CallBegin,
    ArgumentBegin,
    CallEnd,
    TurnEnd,
}

use Marker::{ArgumentBegin, CallBegin, CallEnd, SectionBegin, SectionEnd, Think, ThinkEnd, TurnEnd};

pub(super) const IN_REASONING_START: &[Marker] =
    &[Think, ThinkEnd, SectionBegin, SectionEnd, CallBegin, ArgumentBegin, CallEnd, TurnEnd];
pub(super) const IN_REASONING: &[Marker] = IN_REASONING_START.split_at(1).1;
pub(super) const OUTSIDE: &[Marker] = IN_REASONING_START.split_at(2).1;

impl Marker {
    pub(super) fn text(self) -> &'static str {
        match self {
            Think => n::THINK,
            ThinkEnd => n::THINK_END,
            SectionBegin => n::SECTION_BEGIN,
            SectionEnd => n::SECTION_END,
            CallBegin => n::CALL_BEGIN,
            ArgumentBegin => n::ARGUMENT_BEGIN,
            CallEnd => n::CALL_END,
            TurnEnd => n::IM_END,
        }
    }
}

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A whole marker.
    Marker {
        at: usize,
        marker: Marker,
    },
    /// The text ends in what may become a marker.
    Beginning {
        at: usize,
    },
}

/// The first marker of `allowed` in `text`, or the beginning of one at its end.
///
/// [`Think`] counts only at the very start of `text`.
pub(super) fn find(text: &str, allowed: &[Marker]) -> Found {
    for (at, _) in text.match_indices('<') {
        let here = &text[at..];
        for &marker in allowed.iter().filter(|m| **m != Think || at == 0) {
            if here.starts_with(marker.text()) {
                return Found::Marker { at, marker };
            }
            if marker.text().starts_with(here) {
                return Found::Beginning { at };
            }
        }
    }
    Found::Nothing
}
