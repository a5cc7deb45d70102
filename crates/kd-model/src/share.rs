//! What one of several ranks holds of a model.

use std::ops::Range;

use kd_tensor::Collective;
use thiserror::Error;

/// One of the ranks that hold a model together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which one, from 0.
    pub rank: usize,
    /// Of how many.
    pub ranks: usize,
}

impl Share {
    /// The only rank.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// All shares of a model of `ranks` ranks.
    pub fn all(ranks: usize) -> impl Iterator<Item = Self> {
        (0..ranks).map(move |rank| Self { rank, ranks })
    }

    /// The share of a rank of `group`.
    pub fn of(group: &dyn Collective) -> Self {
        Self { rank: group.rank(), ranks: group.ranks() }
    }

    /// This rank's part of `0..len`: one after the other, and of equal length if that is possible.
    pub fn span(self, len: usize) -> Range<usize> {
        len * self.rank / self.ranks..len * (self.rank + 1) / self.ranks
    }
}

/// A dimension that so many ranks cannot share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// It has no equal parts.
    #[error("{dimension} = {len} does not divide into {ranks} parts")]
    Parts {
        /// The key of the configuration, or what it is.
        dimension: &'static str,
        /// Its value.
        len: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// Its equal parts cut a group of columns that share one scale.
    #[error(
        "{dimension} = {len} does not divide into {ranks} parts of whole INT4 groups of {group}: it leaves {} a rank",
        *len as f64 / *ranks as f64
    )]
    Groups {
        /// The key of the configuration, or what it is.
        dimension: &'static str,
        /// Its value.
        len: usize,
        /// Number of ranks.
        ranks: usize,
        /// Columns of a group.
        group: usize,
    },
}

/// A dimension that ranks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimension {
    pub(crate) name: &'static str,
    pub(crate) len: usize,
    /// Only multiples of this can be told apart.
    pub(crate) unit: usize,
    /// Whether several ranks may hold the same one, where there are fewer than ranks.
    pub(crate) repeats: bool,
}

impl Dimension {
    pub(crate) fn new(name: &'static str, len: usize) -> Self {
        Self { name, len, unit: 1, repeats: false }
    }

    /// The part of one rank.
    pub(crate) fn cut(self, share: Share) -> Result<Range<usize>, ShareError> {
        let Self { name: dimension, len, unit: group, repeats } = self;
        let ranks = share.ranks;
        if repeats && ranks > len && len > 0 && ranks.is_multiple_of(len) {
            let one = share.rank / (ranks / len);
            return Ok(one..one + 1);
        }
        match ranks.checked_mul(group) {
            Some(parts) if parts > 0 && len.is_multiple_of(parts) => Ok(share.span(len)),
            _ if group > 1 => Err(ShareError::Groups { dimension, len, ranks, group }),
            _ => Err(ShareError::Parts { dimension, len, ranks }),
        }
    }
}

/// What a rank holds of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    Whole,
    /// Some output features.
    Rows(Range<usize>),
    /// Some input features.
    Columns(Range<usize>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADS: Dimension = Dimension { name: "heads", len: 12, unit: 1, repeats: false };

    #[test]
    fn parts_are_equal_and_make_up_the_whole() {
        for ranks in [1, 2, 3, 4, 6, 12] {
            let parts: Vec<_> = Share::all(ranks).map(|share| HEADS.cut(share).unwrap()).collect();
            assert!(parts.iter().all(|part| part.len() == 12 / ranks));
            assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_with_its_numbers() {
        let refusal =
            |dimension: Dimension, ranks| dimension.cut(Share { rank: 0, ranks }).unwrap_err().to_string();
        assert_eq!(refusal(HEADS, 8), "heads = 12 does not divide into 8 parts");
        assert_eq!(refusal(HEADS, 24), "heads = 12 does not divide into 24 parts");
        let width = Dimension { name: "width", len: 128, unit: 32, repeats: false };
        let groups = "parts of whole INT4 groups of 32: it leaves";
        assert_eq!(refusal(width, 8), format!("width = 128 does not divide into 8 {groups} 16 a rank"));
        assert_eq!(
            refusal(width, 3),
            format!("width = 128 does not divide into 3 {groups} 42.666666666666664 a rank")
        );
        for ranks in [0, usize::MAX] {
            assert!(
                HEADS.cut(Share { rank: 0, ranks }).is_err() && width.cut(Share { rank: 0, ranks }).is_err()
            );
        }
    }

    /// Grouped-query attention: a rank's query heads use one key head, whichever ranks use it as well.
    #[test]
    fn few_key_heads_are_held_by_several_ranks() {
        let heads = Dimension { name: "key heads", len: 2, unit: 1, repeats: true };
        let of = |ranks| -> Vec<Range<usize>> {
            Share::all(ranks).map(|share| heads.cut(share).unwrap()).collect()
        };
        assert_eq!(heads.cut(Share::WHOLE), Ok(0..2));
        assert_eq!(of(2), [0..1, 1..2]);
        assert_eq!(of(4), [0..1, 0..1, 1..2, 1..2]);
        assert!(heads.cut(Share { rank: 0, ranks: 3 }).is_err());
    }

    proptest! {
        #[test]
        fn spans_follow_each_other(len in 0usize..1 << 24, ranks in 1usize..64) {
            let mut end = 0;
            for share in Share::all(ranks) {
                let span = share.span(len);
                prop_assert_eq!(span.start, end);
                prop_assert!(span.len().abs_diff(len / ranks) <= 1);
                end = span.end;
            }
            prop_assert_eq!(end, len);
        }
    }
}
