//! What passes are planned for, and the sizes that they are launched with.

use kd_attn::{Ancestors, Leaves, PAGE_TOKENS};

use super::places::padded;

/// What memory is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of a pass.
    pub rows: usize,
    /// Rows of one stream's tree, its root included: at most 129.
    pub nodes: usize,
    /// Streams of a pass.
    pub streams: usize,
    /// Pages of the cache. No two streams of a pass share a page.
    pub pages: usize,
    /// Pages of one stream.
    pub stream_pages: usize,
}

/// The sizes that a pass is launched with. It may be filled with fewer rows and streams: the rest is padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// Rows.
    pub rows: usize,
    /// Streams.
    pub streams: usize,
    /// Pages of a stream that attention looks into, one of [`Limits::contexts`]: no stream has committed more.
    pub pages: usize,
}

/// Pages of the shortest contexts that are told apart from longer ones.
const SHORT: usize = 16;

/// Most nodes of a tree, its root included.
pub(super) const MOST_NODES: usize = 64 * size_of::<Ancestors>() / size_of::<u64>() + 1;

impl Limits {
    /// Longest context of a stream, the rows of a pass not counted.
    pub fn context(&self) -> usize {
        self.stream_pages * PAGE_TOKENS
    }

    /// Places of a stream in the table of pages: the table of every stream begins at a multiple of 16 bytes.
    pub fn table_width(&self) -> usize {
        padded(self.stream_pages)
    }

    /// Numbers of pages that passes are launched for, the last of them [`Limits::table_width`]: tree attention does better if it knows
    /// that contexts are short.
    pub fn contexts(&self) -> impl Iterator<Item = usize> + use<> {
        let most = self.table_width();
        std::iter::successors(Some(SHORT), |pages| pages.checked_mul(2))
            .take_while(move |&pages| pages < most)
            .chain([most])
    }

    /// The least of [`Limits::contexts`] that holds `tokens` tokens.
    pub fn pages_for(&self, tokens: usize) -> usize {
        let pages = tokens.div_ceil(PAGE_TOKENS);
        self.contexts().find(|&held| held >= pages).unwrap_or(self.table_width())
    }

    /// Positions that a row may have.
    pub fn positions(&self) -> usize {
        self.context() + MOST_NODES
    }

    /// Rows of partial results of tree attention with `heads` heads that any pass within these limits leaves, one for each row,
    /// head and leaf that the row's stream could reach.
    ///
    /// Leaves become longer with the position, so all streams together have most of them where their contexts are alike: a mean
    /// over rows of what their streams may hold together bounds them, `nodes` rows for each token of the cache.
    pub(crate) fn partial_rows(&self, heads: usize) -> usize {
        let leaves = Leaves::new(heads);
        let (rows, nodes) = (self.rows.max(1), self.nodes.clamp(1, MOST_NODES));
        let tokens = self.pages.saturating_mul(PAGE_TOKENS);
        let mean = (nodes.saturating_mul(tokens) / rows).min(self.context()) + nodes;
        // A leaf more than at the mean: a stream's last one may be begun.
        let most = (leaves.at(mean) + 2).min(leaves.at(self.context() + nodes) + 1);
        self.rows * heads * most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any streams that the limits admit have room for their partial results.
    #[test]
    fn partial_results_of_any_streams_have_room() {
        proptest::proptest!(|(
            heads in proptest::sample::select(vec![1usize, 8, 64]),
            nodes in 1usize..=129,
            pages in 1usize..5000,
            streams in proptest::collection::vec((1usize..=129, 0.0f64..1.0), 1..24),
            even in proptest::bool::ANY,
        )| {
            let tokens = pages * PAGE_TOKENS;
            let share = streams.iter().map(|(_, share)| share).sum::<f64>().max(1e-9);
            let held = |share_of: f64| if even { tokens / streams.len() } else { (tokens as f64 * share_of / share) as usize };
            let pass: Vec<(usize, usize)> =
                streams.iter().map(|&(rows, share)| (rows.min(nodes), held(share))).collect();
            let limits = Limits {
                rows: pass.iter().map(|(rows, _)| rows).sum(),
                nodes,
                streams: pass.len(),
                pages,
                stream_pages: pages,
            };
            let needed = Leaves::new(heads).partial_rows(heads, pass.iter().copied());
            proptest::prop_assert!(needed.expect("few") <= limits.partial_rows(heads));
        });
    }

    #[test]
    fn memory_for_partial_results_is_for_what_the_cache_holds() {
        // Sixteen streams of 65 rows over 128k tokens: as for sixteen of 8k each, not for sixteen of 128k.
        let limits = Limits { rows: 1040, nodes: 65, streams: 16, pages: 2048, stream_pages: 2048 };
        let each = Leaves::new(8).partial_rows(8, [(65, 8192); 16]).expect("few");
        let planned = limits.partial_rows(8);
        assert!(each <= planned && planned <= each + each / 16, "{each} of {planned}");
        let one = Limits { rows: 65, streams: 1, ..limits };
        assert_eq!(Some(one.partial_rows(8)), Leaves::new(8).partial_rows(8, [(65, 131_072)]));
    }

    #[test]
    fn contexts_are_powers_of_two_and_all() {
        let limits =
            |stream_pages: usize| Limits { rows: 1, nodes: 1, streams: 1, pages: 4000, stream_pages };
        let all = |pages: usize| limits(pages).contexts().collect::<Vec<_>>();
        assert_eq!([all(1), all(16), all(100)], [vec![4], vec![16], vec![16, 32, 64, 100]]);
        let held = [0, 1024, 1025, 4096, 4097, 6400, 9000].map(|tokens| limits(100).pages_for(tokens));
        assert_eq!(held, [16, 16, 32, 64, 100, 100, 100]);
    }
}
