//! Which streams a review is about, and in which order they may draft.

use std::cmp::Ordering;

use super::search::Candidate;

/// What a review depends on: all streams, those that may draft, and those of them that never did.
pub(super) fn streams_of(streams: usize, candidates: &[Candidate]) -> [usize; 3] {
    let fresh = candidates.iter().filter(|candidate| candidate.record.drafts() == 0).count();
    [streams, candidates.len(), fresh]
}

/// Orders streams by what their drafts may be worth.
#[derive(PartialEq)]
pub(super) struct Worth(pub(super) f64);

impl Eq for Worth {}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worth {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
