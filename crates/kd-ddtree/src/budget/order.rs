//! Which streams a review is about, in which order they may draft, and which of them are learnt from.

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

/// Streams of a round whose drafts are learnt from in full: a GPU waits for this, and sixteen say little more.
const TEACHERS: usize = 4;

/// At which distance drafts teach: without a divisor in common with the number of drafters, so that every one has its turn.
pub(super) fn apart(drafters: usize) -> usize {
    let shared = |d: usize| (2..=d).any(|n| d.is_multiple_of(n) && drafters.is_multiple_of(n));
    (drafters.div_ceil(TEACHERS).max(1)..).find(|&d| !shared(d)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 9, 12 or 15 drafters an odd distance alone let the same ones teach for ever.
    #[test]
    fn every_drafter_teaches_in_turn_and_few_at_once() {
        for drafters in 1..=128 {
            let (apart, mut taught) = (apart(drafters), vec![0; drafters]);
            for draft in (0..drafters * apart).filter(|draft| draft % apart == 0) {
                taught[draft % drafters] += 1;
            }
            assert!(taught.iter().all(|&times| times == 1), "{drafters} drafters, {apart} apart");
            assert!(drafters.div_ceil(apart) <= TEACHERS, "{drafters} drafters, {apart} apart");
        }
    }
}
