//! Which rows go to which experts: what a layer must not depend on.

use kd_kernels::selftest::Random;

use crate::gpu::{MOST_ROWS, Shape};

/// A named load.
pub(super) struct Pattern {
    pub(super) name: &'static str,
    /// Ranks of an expert-parallel group, of which the layer at hand is the second if there are several.
    pub(super) ranks: usize,
    pub(super) ids: fn(&mut Random, &Shape) -> Vec<i32>,
}

impl Pattern {
    /// The first expert of the rank at hand.
    pub(super) fn first_expert(&self, shape: &Shape) -> usize {
        if self.ranks > 1 { shape.experts } else { 0 }
    }
}

/// Loads at the edges of what a routing can be.
pub(super) const PATTERNS: [Pattern; 6] = [
    Pattern { name: "all rows on the same experts", ranks: 1, ids: |_, shape| same(shape, 300) },
    Pattern { name: "one expert with every row", ranks: 1, ids: |random, shape| shared(random, shape, 264) },
    Pattern {
        name: "every expert one row",
        ranks: 1,
        ids: |_, shape| (0..shape.experts / shape.top_k * shape.top_k).map(|e| e as i32).collect(),
    },
    Pattern { name: "experts with 0 to 130 rows", ranks: 1, ids: |_, shape| ladder(shape) },
    Pattern {
        name: "one rank of three",
        ranks: 3,
        ids: |random, shape| spread(random, &Shape { experts: 3 * shape.experts, ..*shape }, 264),
    },
    Pattern { name: "no row on this rank", ranks: 2, ids: |_, shape| same(shape, 40) },
];

/// Different experts for each row.
pub(super) fn spread(random: &mut Random, shape: &Shape, rows: usize) -> Vec<i32> {
    (0..rows).flat_map(|_| sorted(random.distinct(shape.top_k, shape.experts))).collect()
}

/// The first experts for every row.
fn same(shape: &Shape, rows: usize) -> Vec<i32> {
    (0..rows).flat_map(|_| 0..shape.top_k as i32).collect()
}

/// The first expert and others for each row.
fn shared(random: &mut Random, shape: &Shape, rows: usize) -> Vec<i32> {
    let mut row = || {
        let others = random.distinct(shape.top_k - 1, shape.experts - 1);
        sorted([vec![0], others.iter().map(|e| e + 1).collect()].concat())
    };
    (0..rows).flat_map(|_| row()).collect()
}

fn sorted(mut ids: Vec<usize>) -> Vec<i32> {
    ids.sort_unstable();
    ids.into_iter().map(|id| id as i32).collect()
}

/// Rows such that expert `e` has `131 e / experts` of them or a little more: one expert for each number where there are enough
/// experts. Each row takes the experts that lack most.
pub(super) fn ladder(shape: &Shape) -> Vec<i32> {
    let mut lacking: Vec<usize> = (0..shape.experts).map(|e| 131 * e / shape.experts).collect();
    let mut ids = Vec::new();
    while lacking.iter().any(|count| *count > 0) && ids.len() < MOST_ROWS * shape.top_k {
        let mut order: Vec<usize> = (0..shape.experts).collect();
        order.sort_by_key(|e| std::cmp::Reverse(lacking[*e]));
        let mut row: Vec<i32> =
            order[..shape.top_k].iter().map(|e| if lacking[*e] > 0 { *e as i32 } else { -1 }).collect();
        row.sort_unstable();
        row.iter().filter(|id| **id >= 0).for_each(|id| lacking[*id as usize] -= 1);
        ids.extend(row);
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_gives_every_number_of_rows() {
        let shape = Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 };
        let mut counts = vec![0usize; shape.experts];
        ladder(&shape).iter().filter(|id| **id >= 0).for_each(|id| counts[*id as usize] += 1);
        counts.sort_unstable();
        counts.dedup();
        assert_eq!(counts, (0..=130).collect::<Vec<_>>());
    }
}
