//! Sizes that passes are captured for.

use std::collections::{BTreeMap, BTreeSet};

use kd_ddtree::budget::{SIZES, edge};
use kd_model::cuda::Bucket;

/// The sizes that rounds are rounded up to: rows at the edges that the automatic budget chooses among, streams at powers of
/// two, both up to the most that was planned for. Rows beyond those of a round are padding, which is neither routed nor stored.
/// Contexts are rounded up to those that attention tells apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Buckets {
    rows: Vec<usize>,
    streams: Vec<usize>,
    /// Most draft nodes of a stream.
    nodes: usize,
    /// For rows and streams the pages of a stream that passes are captured for, rising.
    pages: BTreeMap<(usize, usize), Vec<usize>>,
}

impl Buckets {
    /// For up to `streams` streams of up to `1 + nodes` rows each; no round has a bucket before [`with_contexts`](Self::with_contexts).
    pub(super) fn new(streams: usize, nodes: usize) -> Self {
        let powers = (0..).map(|exponent| 1usize << exponent);
        let (rows, streams) = (up_to(streams * (1 + nodes)), reaching(powers, streams));
        let mut own = Self { rows, streams, nodes, pages: BTreeMap::new() };
        own.pages = own.sizes().into_iter().map(|size| (size, Vec::new())).collect();
        own
    }

    /// The same for contexts up to the last of `contexts`, apart, up to each of them, where attention does not work alike: `attention`
    /// says how it does.
    ///
    /// # Errors
    /// Those of `attention`.
    pub(super) fn with_contexts<E>(
        mut self,
        contexts: &[usize],
        attention: impl Fn(Bucket) -> Result<&'static str, E>,
    ) -> Result<Self, E> {
        for (&(rows, streams), own) in &mut self.pages {
            own.clear();
            let mut last = None;
            for &pages in contexts {
                let how = attention(Bucket { rows, streams, pages })?;
                if last == Some(how) {
                    own.pop();
                }
                last = Some(how);
                own.push(pages);
            }
        }
        Ok(self)
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

    /// The bucket of a round whose longest stream has committed what `pages` pages hold; `None` for one that is larger than planned.
    pub(super) fn fit(&self, rows: usize, streams: usize, pages: usize) -> Option<Bucket> {
        let (rows, streams) = (first(&self.rows, rows)?, self.streams_of(streams)?);
        let pages = first(self.pages.get(&(rows, streams))?, pages)?;
        Some(Bucket { rows, streams, pages })
    }

    /// The streams of the bucket of a round of `streams` streams.
    pub(super) fn streams_of(&self, streams: usize) -> Option<usize> {
        first(&self.streams, streams)
    }

    /// Every bucket that a round can fall into.
    pub(super) fn all(&self) -> Vec<Bucket> {
        let buckets = |(&(rows, streams), pages): (&(usize, usize), &Vec<usize>)| {
            pages.iter().map(move |&pages| Bucket { rows, streams, pages }).collect::<Vec<_>>()
        };
        self.pages.iter().flat_map(buckets).collect()
    }

    /// Rows and streams of those.
    fn sizes(&self) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        for (&most, fewest) in self.streams.iter().zip(after(&self.streams)) {
            for (&rows, least) in self.rows.iter().zip(after(&self.rows)) {
                if rows >= fewest && most * (1 + self.nodes) >= least {
                    all.push((rows, most));
                }
            }
        }
        all
    }

    /// Every bucket that a round without trees can fall into. Where the most streams are no edge of the rows, such a bucket has more
    /// rows than streams.
    pub(super) fn plain(&self) -> BTreeSet<Bucket> {
        let size = |count: usize| Some((first(&self.rows, count)?, self.streams_of(count)?));
        let sizes: BTreeSet<_> = (1..=self.most_streams()).filter_map(size).collect();
        self.all().into_iter().filter(|bucket| sizes.contains(&(bucket.rows, bucket.streams))).collect()
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

    /// How attention might work: short contexts of few rows are apart, and the shortest, and two in the middle are alike.
    fn attention(Bucket { rows, pages, .. }: Bucket) -> Result<&'static str, std::convert::Infallible> {
        Ok(match (rows, pages) {
            (_, 4) => "n",
            (..=48, ..=64) => "c",
            _ => "m",
        })
    }
    const CONTEXTS: [usize; 5] = [4, 16, 64, 256, 2048];

    fn contexts_apart(streams: usize, nodes: usize) -> Buckets {
        Buckets::new(streams, nodes).with_contexts(&CONTEXTS, attention).expect("infallible")
    }

    #[test]
    fn every_round_has_a_bucket_and_every_bucket_a_round() {
        for (streams, nodes) in [(1, 0), (1, 128), (3, 8), (5, 0), (5, 8), (13, 64), (16, 0), (16, 64)] {
            let buckets = contexts_apart(streams, nodes);
            let mut met = BTreeSet::new();
            for count in 1..=streams {
                for rows in count..=count * (1 + nodes) {
                    for pages in [0, 1, 4, 5, 16, 63, 64, 65, 256, 257, 2048] {
                        let bucket = buckets.fit(rows, count, pages).expect("a planned size");
                        assert!(bucket.rows >= rows && bucket.rows <= buckets.most_rows());
                        assert!(bucket.streams >= count && bucket.pages >= pages);
                        let own = first(&CONTEXTS, pages).expect("a context");
                        assert_eq!(attention(Bucket { pages: own, ..bucket }), attention(bucket));
                        met.insert(bucket);
                    }
                }
            }
            assert_eq!(met, buckets.all().into_iter().collect(), "{streams} streams of {nodes} nodes");
            assert_eq!(buckets.fit(buckets.most_rows() + 1, 1, 1), None);
            assert_eq!(buckets.fit(1, 1, 2049), None);
        }
    }
    #[test]
    fn contexts_are_apart_only_where_attention_is() {
        let pages = |rows: usize| -> Vec<usize> {
            let all = contexts_apart(1, 64).all();
            all.iter().filter(|bucket| bucket.rows == rows).map(|bucket| bucket.pages).collect()
        };
        assert_eq!([pages(48), pages(64)], [vec![4, 64, 2048], vec![4, 2048]]);
    }
    #[test]
    fn a_round_without_trees_has_a_plain_bucket_however_many_streams_there_are() {
        for (slots, nodes) in (1..=70).flat_map(|slots| [0, 1, 8, 32].map(|nodes| (slots, nodes))) {
            let buckets = contexts_apart(slots, nodes);
            let fit = |count: usize| {
                CONTEXTS.map(|pages| buckets.fit(count, count, pages).expect("a planned size"))
            };
            let met: BTreeSet<Bucket> = (1..=slots).flat_map(fit).collect();
            assert_eq!(buckets.plain(), met, "{slots} streams of {nodes} nodes");
            assert!(met.iter().all(|bucket| buckets.all().contains(bucket)), "{slots} streams: verified too");
        }
    }
}
