//! How tree-verify attention cuts a sequence: leaves of keys at fixed positions.

/// The leaves of the keys that a GPU pass works on one by one. The boundaries are positions that depend on the number of
/// heads alone, never on the sequence's length, its neighbours or the draft tree, and so do the bits of a row.
///
/// There are leaves of [`Leaves::base`] tokens up to a position that depends on the number of heads; from there on, each time
/// the position has grown fourfold, leaves are twice as long, up to [`Leaves::MOST`]. Their number grows with the root of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaves {
    base: usize,
    short: usize,
}

impl Leaves {
    /// Tokens in the longest leaf.
    pub const MOST: usize = 2048;

    /// The leaves of a rank with `heads` query heads.
    pub fn new(heads: usize) -> Self {
        Self { base: 256 * (heads / 32).max(1), short: 128 * heads.max(16) }
    }

    /// Tokens in the first leaves.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The leaf that holds the key at `position`.
    pub fn at(&self, position: usize) -> usize {
        let (mut leaf, mut start, mut end, mut length) = (0, 0, self.short, self.base);
        while length < Self::MOST && position >= end {
            leaf += (end - start) / length;
            (start, end, length) = (end, end.saturating_mul(4), length * 2);
        }
        leaf + (position - start) / length
    }

    /// Rows of partial results of a pass over `streams`, each its number of nodes and of committed tokens: one a leaf that the
    /// stream could reach, node and head. `None` if there are more than memory has.
    pub fn partial_rows(
        &self,
        heads: usize,
        streams: impl IntoIterator<Item = (usize, usize)>,
    ) -> Option<usize> {
        streams.into_iter().filter(|(nodes, _)| *nodes > 0).try_fold(0usize, |rows, (nodes, committed)| {
            let leaves = self.at(committed.checked_add(nodes - 1)?) + 1;
            rows.checked_add(leaves.checked_mul(nodes)?.checked_mul(heads)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_double_as_the_position_grows_fourfold() {
        let leaves = Leaves::new(8);
        assert_eq!([0, 255, 256, 2047, 2048, 2559, 2560].map(|p| leaves.at(p)), [0, 0, 1, 7, 8, 8, 9]);
        assert_eq!([8191, 8192, 32_767, 32_768, 131_071].map(|p| leaves.at(p)), [19, 20, 43, 44, 91]);
        assert_eq!(Leaves::new(64).at(8191), 15);
    }

    #[test]
    fn every_leaf_is_whole_pages_and_none_is_longer_than_the_longest() {
        for heads in [1, 8, 16, 32, 64] {
            let leaves = Leaves::new(heads);
            let mut start = 0;
            for position in 1..600_000 {
                if leaves.at(position) != leaves.at(position - 1) {
                    assert_eq!(
                        leaves.at(position),
                        leaves.at(position - 1) + 1,
                        "{heads} heads at {position}"
                    );
                    assert!(position % crate::PAGE_TOKENS == 0 && position - start <= Leaves::MOST);
                    start = position;
                }
            }
        }
    }

    #[test]
    fn partial_rows_count_what_a_tree_could_reach() {
        let leaves = Leaves::new(8);
        assert_eq!(leaves.partial_rows(8, [(1, 0), (0, 5000), (2, 255)]), Some(8 + 2 * 2 * 8));
        assert_eq!(leaves.partial_rows(8, [(2, usize::MAX)]), None);
    }
}
