//! Sizes that passes are captured for.

use std::collections::BTreeSet;

use kd_ddtree::budget::{SIZES, edge};
use kd_model::cuda::Bucket;

/// The sizes that rounds are rounded up to: rows at the edges that the automatic budget chooses among, streams at powers of
/// two, both up to the most that was planned for. Rows beyond those of a round are padding, which is neither routed nor stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Buckets {
    rows: Vec<usize>,
    streams: Vec<usize>,
    /// Most draft nodes of a stream.
    nodes: usize,
}

impl Buckets {
    /// For up to `streams` streams of up to `1 + nodes` rows each.
    pub(super) fn new(streams: usize, nodes: usize) -> Self {
        let powers = (0..).map(|exponent| 1usize << exponent);
        Self { rows: up_to(streams * (1 + nodes)), streams: reaching(powers, streams), nodes }
    }

    /// Rows of the largest pass.
    pub(super) fn most_rows(&self) -> usize {
        self.rows.last().copied().unwrap_or(1)
    }

    /// Streams of the widest pass.
    pub(super) fn most_streams(&self) -> usize {
        self.streams.last().copied().unwrap_or(1)
    }

    /// Numbers of streams.
    pub(super) fn streams(&self) -> &[usize] {
        &self.streams
    }

    /// The bucket of a round; `None` for one that is larger than planned.
    pub(super) fn fit(&self, rows: usize, streams: usize) -> Option<Bucket> {
        Some(Bucket { rows: first(&self.rows, rows)?, streams: first(&self.streams, streams)? })
    }

    /// Every bucket that a round can fall into.
    pub(super) fn all(&self) -> Vec<Bucket> {
        let mut all = Vec::new();
        for (&most, fewest) in self.streams.iter().zip(after(&self.streams)) {
            for (&rows, least) in self.rows.iter().zip(after(&self.rows)) {
                if rows >= fewest && most * (1 + self.nodes) >= least {
                    all.push(Bucket { rows, streams: most });
                }
            }
        }
        all
    }

    /// Every bucket that a round without trees can fall into. Where the most streams are no edge of the rows, such a bucket has more
    /// rows than streams.
    pub(super) fn plain(&self) -> BTreeSet<Bucket> {
        (1..=self.most_streams()).filter_map(|count| self.fit(count, count)).collect()
    }
}

/// Bucket edges below `size`, and `size`.
pub(super) fn up_to(size: usize) -> Vec<usize> {
    reaching((0..SIZES).map(edge), size)
}

/// The first of `sizes` that holds `size`.
fn first(sizes: &[usize], size: usize) -> Option<usize> {
    sizes.iter().copied().find(|&edge| edge >= size)
}

fn reaching(edges: impl Iterator<Item = usize>, size: usize) -> Vec<usize> {
    let mut all = Vec::new();
    for edge in edges {
        all.push(edge.min(size));
        if edge >= size {
            break;
        }
    }
    all
}

/// For each edge the smallest size that falls to it.
fn after(edges: &[usize]) -> impl Iterator<Item = usize> {
    std::iter::once(1).chain(edges.iter().map(|edge| edge + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_a_bucket_and_every_bucket_a_round() {
        for (streams, nodes) in [(1, 0), (1, 128), (3, 8), (5, 0), (5, 8), (13, 64), (16, 0), (16, 64)] {
            let buckets = Buckets::new(streams, nodes);
            let mut met = BTreeSet::new();
            for count in 1..=streams {
                for rows in count..=count * (1 + nodes) {
                    let bucket = buckets.fit(rows, count).expect("a planned size");
                    assert!(
                        bucket.rows >= rows && bucket.streams >= count && bucket.rows <= buckets.most_rows()
                    );
                    met.insert(bucket);
                }
            }
            assert_eq!(met, buckets.all().into_iter().collect(), "{streams} streams of {nodes} nodes");
            assert_eq!(buckets.fit(buckets.most_rows() + 1, 1), None);
        }
    }
    #[test]
    fn a_round_without_trees_has_a_plain_bucket_however_many_streams_there_are() {
        for (slots, nodes) in (1..=70).flat_map(|slots| [0, 1, 8, 32].map(|nodes| (slots, nodes))) {
            let buckets = Buckets::new(slots, nodes);
            let met: BTreeSet<Bucket> =
                (1..=slots).map(|count| buckets.fit(count, count).expect("a planned size")).collect();
            assert_eq!(buckets.plain(), met, "{slots} streams of {nodes} nodes");
            assert!(met.iter().all(|bucket| buckets.all().contains(bucket)), "{slots} streams: verified too");
        }
    }
}
