//! What changes from pass to pass: tokens, trees, pages. At fixed addresses, so that a captured pass serves any round.

use kd_attn::{Ancestors, Leaves, PAGE_TOKENS, PageId, Segment, rows};
use kd_kernels::{Buffer, CudaView, KernelError, Stream, TensorRef};
use kd_tensor::ops::check_ids;

use super::CudaError;
use super::error::within;
use super::places::{Places, TreePlaces, padded, parent, place, words};

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
const MOST_NODES: usize = 64 * size_of::<Ancestors>() / size_of::<u64>() + 1;

/// Device memory of a pass's inputs. Writes are ordered by the stream: they come after every pass that was enqueued before.
#[derive(Debug)]
pub struct PassInputs {
    limits: Limits,
    vocab: usize,
    /// Most rows of a stream.
    nodes: usize,
    /// What changes in every round, written at once.
    rows: Buffer<i32>,
    places: Places,
    /// Rows for the head.
    chosen: Buffer<i32>,
    /// A table of the pages of each stream for each of [`Limits::contexts`], and the same on the host: a stream keeps its pages, so
    /// most rounds change nothing.
    tables: Vec<usize>,
    table: Buffer<i32>,
    held: Vec<i32>,
    /// Scratch rows, then rows of the pages, of a commit.
    moves: Buffer<i32>,
}

/// What a scratch row of the last pass becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Row of the pass.
    pub row: usize,
    /// Page.
    pub page: PageId,
    /// Place in the page.
    pub place: usize,
}

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

impl Move {
    /// The rows `path` of a pass as the tokens of a stream from `committed` on.
    pub fn path(path: &[usize], table: &[PageId], committed: usize) -> Vec<Self> {
        let at = |(i, &row): (usize, &usize)| {
            let position = committed + i;
            Some(Self { row, page: *table.get(position / PAGE_TOKENS)?, place: position % PAGE_TOKENS })
        };
        path.iter().enumerate().filter_map(at).collect()
    }

    /// Every row of a pass over `segments`, each to the place behind the one before.
    ///
    /// # Errors
    /// A table that does not reach as far as the rows.
    pub fn all(segments: &[Segment<'_>]) -> Result<Vec<Self>, CudaError> {
        let (mut moves, mut first) = (Vec::new(), 0);
        for segment in segments {
            let own: Vec<usize> = (first..first + segment.rows).collect();
            let found = Self::path(&own, segment.pages, segment.committed);
            if found.len() < own.len() {
                let found = segment.committed + segment.rows;
                let what = "the number of tokens of a stream after this chunk";
                return Err(CudaError::Limit { what, found, limit: segment.pages.len() * PAGE_TOKENS });
            }
            moves.extend(found);
            first += segment.rows;
        }
        Ok(moves)
    }
}

impl PassInputs {
    /// `trees`: rows see what their ancestors say; else all before them, and a stream may have any number.
    pub(crate) fn new(stream: &Stream, limits: Limits, vocab: usize, trees: bool) -> Result<Self, CudaError> {
        let places = Places::new(limits, trees);
        let tables: Vec<usize> = limits.contexts().collect();
        let held = vec![-1; limits.streams * tables.iter().sum::<usize>()];
        Ok(Self {
            limits,
            vocab,
            nodes: if trees { limits.nodes.min(MOST_NODES) } else { limits.rows },
            rows: Buffer::new(stream, &vec![0; places.end])?,
            places,
            chosen: Buffer::new(stream, &vec![-1; limits.rows])?,
            tables,
            table: Buffer::new(stream, &held)?,
            held,
            moves: Buffer::new(stream, &vec![-1; 2 * padded(limits.rows)])?,
        })
    }

    /// Writes the rows of a pass: those of the first segment, then those of the next. Segments with [`Mask::Causal`] are
    /// chains. What a bucket has beyond them is padding.
    ///
    /// # Errors
    /// A token outside the vocabulary, as many tokens as rows not given, a limit exceeded, a page that the cache does not
    /// have, a failed copy.
    pub fn write(
        &mut self,
        stream: &Stream,
        tokens: &[u32],
        segments: &[Segment<'_>],
    ) -> Result<(), CudaError> {
        let (limits, places) = (self.limits, self.places);
        let count = rows(segments);
        within("the number of rows of a pass", count, limits.rows)?;
        within("the number of streams of a pass", segments.len(), limits.streams)?;
        if tokens.len() != count {
            return Err(CudaError::Limit { what: "the number of tokens", found: tokens.len(), limit: count });
        }
        check_ids(tokens, self.vocab)?;
        segments.iter().try_for_each(|segment| self.check(segment))?;
        let mut arena = vec![0i32; places.end];
        let int = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        arena[places.slots..places.slots + limits.rows].fill(-1);
        if let Some(trees) = places.trees {
            arena[trees.roots..trees.roots + limits.streams].fill(-1);
        }
        for (to, &token) in arena[places.tokens..].iter_mut().zip(tokens) {
            *to = token.cast_signed();
        }
        let (mut first, mut moved) = (0, false);
        for (stream, segment) in segments.iter().enumerate() {
            for row in 0..segment.rows {
                let at = first + row;
                arena[places.positions + at] = int(segment.position(row));
                arena[places.slots + at] = int(at);
                if let Some(trees) = places.trees {
                    let own = words(segment, row);
                    arena[trees.parents + at] = int(parent(own, row));
                    let halves = own.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
                    for (to, half) in arena[trees.ancestors + 4 * at..].iter_mut().zip(halves) {
                        *to = half.cast_signed();
                    }
                }
            }
            if let (Some(trees), Some(to)) = (places.trees, place(segment)) {
                arena[trees.roots + stream] = int(to);
            }
            moved |= self.turn(stream, segment.pages);
            arena[places.committed + stream] = int(segment.committed);
            first += segment.rows;
            arena[places.starts + stream + 1] = int(first);
        }
        arena[places.starts + segments.len() + 1..places.committed].fill(int(first));
        self.rows.write(stream, &arena)?;
        if moved {
            self.table.write(stream, &self.held)?;
        }
        Ok(())
    }

    /// Gives stream `index` of the tables these pages; false if it has them.
    fn turn(&mut self, index: usize, pages: &[PageId]) -> bool {
        let (mut moved, mut first) = (false, 0);
        for &width in &self.tables {
            let pages = pages.iter().map(|page| page.0.cast_signed()).chain(std::iter::repeat(-1));
            let own = first + index * width..first + (index + 1) * width;
            for (to, page) in self.held[own].iter_mut().zip(pages) {
                moved |= *to != page;
                *to = page;
            }
            first += self.limits.streams * width;
        }
        moved
    }

    /// Writes which rows of the pass the head is to be applied to.
    ///
    /// # Errors
    /// More rows than a pass has, a failed copy.
    pub fn choose(&self, stream: &Stream, rows: &[usize]) -> Result<(), CudaError> {
        within("the number of rows for the head", rows.len(), self.limits.rows)?;
        let mut chosen = vec![-1i32; self.limits.rows];
        for (to, &row) in chosen.iter_mut().zip(rows) {
            *to = i32::try_from(row).unwrap_or(-1);
        }
        Ok(self.chosen.write(stream, &chosen)?)
    }

    /// Writes what the next commit moves; a captured commit of more rows moves no others.
    ///
    /// # Errors
    /// More moves than rows, a row or page that does not exist, a failed copy.
    pub fn write_moves(&self, stream: &Stream, moves: &[Move]) -> Result<(), CudaError> {
        let limits = self.limits;
        within("the number of committed rows", moves.len(), limits.rows)?;
        let mut arena = vec![-1i32; self.moves.view().len()];
        for (i, step) in moves.iter().enumerate() {
            within("a committed row", step.row, limits.rows.saturating_sub(1))?;
            within("a page", step.page.0 as usize, limits.pages.saturating_sub(1))?;
            within("a place in a page", step.place, PAGE_TOKENS - 1)?;
            let to = step.page.0 as usize * PAGE_TOKENS + step.place;
            arena[i] = i32::try_from(step.row).unwrap_or(-1);
            arena[padded(limits.rows) + i] = i32::try_from(to).unwrap_or(-1);
        }
        Ok(self.moves.write(stream, &arena)?)
    }

    fn check(&self, segment: &Segment<'_>) -> Result<(), CudaError> {
        let limits = self.limits;
        within("the number of committed tokens of a stream", segment.committed, limits.context())?;
        within("the number of rows of a stream", segment.rows, self.nodes)?;
        let pages = segment.committed.div_ceil(PAGE_TOKENS);
        if segment.pages.len() < pages {
            let what = "the number of pages that committed tokens fill";
            return Err(CudaError::Limit { what, found: pages, limit: segment.pages.len() });
        }
        let highest = segment.pages.iter().take(limits.table_width()).map(|page| page.0 as usize).max();
        within("a page", highest.unwrap_or_default(), limits.pages.saturating_sub(1))
    }

    /// Token of each row.
    pub(crate) fn tokens(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.places.tokens, rows)
    }

    /// Position of each row, 0 in padding.
    pub(crate) fn positions(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.places.positions, rows)
    }

    /// Scratch row of each row: its own, -1 in padding.
    pub(crate) fn slots(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.places.slots, rows)
    }

    /// Rows that the head is applied to.
    pub(crate) fn chosen(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.chosen.view(), 0, rows)
    }

    /// First row of each of `streams` streams, and the number of live rows.
    pub(crate) fn starts(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.places.starts, streams + 1)
    }

    /// Committed tokens of each stream.
    pub(crate) fn committed(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.places.committed, streams)
    }

    /// Pages of each stream, `[streams, pages]`.
    ///
    /// # Errors
    /// Other than one of [`Limits::contexts`], more streams than planned.
    pub(crate) fn table_of(&self, streams: usize, pages: usize) -> Result<CudaView<'_, i32>, KernelError> {
        let none = || KernelError::BadTensor {
            shape: vec![streams, pages],
            what: format!("there are tables of {:?} pages", self.tables),
        };
        let index = self.tables.iter().position(|&width| width == pages).ok_or_else(none)?;
        let first: usize = self.tables[..index].iter().sum();
        piece(self.table.view(), first * self.limits.streams, streams * pages)
    }

    /// All pages of each stream, `[streams, `[`Limits::table_width`]`]`.
    pub(crate) fn table(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        self.table_of(streams, self.limits.table_width())
    }

    /// Pages of one stream.
    pub(crate) fn stream_table(
        &self,
        stream: &Stream,
        index: usize,
    ) -> Result<TensorRef<'_, i32, 1>, KernelError> {
        let (width, all) = (self.limits.table_width(), self.table(self.limits.streams)?);
        TensorRef::new(stream, piece(all, index * width, width)?, [width])
    }

    /// Two words a row.
    pub(crate) fn ancestors(&self, rows: usize) -> Result<CudaView<'_, u64>, KernelError> {
        self.rows.view_as(self.trees()?.ancestors, 2 * rows)
    }

    /// Row of the pages that each stream's root goes to, -1 of a stream that is not there.
    pub(crate) fn roots(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.trees()?.roots, streams)
    }

    /// The parent of each row among its stream's rows, 0 of a root.
    pub(crate) fn parents(&self, rows: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.rows.view(), self.trees()?.parents, rows)
    }

    fn trees(&self) -> Result<TreePlaces, KernelError> {
        let what = "these rows are no trees".to_owned();
        self.places.trees.ok_or(KernelError::BadTensor { shape: Vec::new(), what })
    }

    /// Scratch rows of a commit; -1 moves nothing.
    pub(crate) fn moves_from(&self, count: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.moves.view(), 0, count)
    }

    /// Rows of the pages of a commit, `64 · page + place`; -1 moves nothing.
    pub(crate) fn moves_to(&self, count: usize) -> Result<CudaView<'_, i32>, KernelError> {
        piece(self.moves.view(), padded(self.limits.rows), count)
    }
}

fn piece<T>(view: CudaView<'_, T>, start: usize, len: usize) -> Result<CudaView<'_, T>, KernelError> {
    let found = view.try_slice(start..start.saturating_add(len));
    found.ok_or_else(|| KernelError::BadTensor {
        shape: vec![len],
        what: format!("inputs were planned for {} values", view.len()),
    })
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

    #[test]
    fn a_path_goes_over_the_end_of_a_page() {
        let table = [PageId(7), PageId(3)];
        let step = |row, page, place| Move { row, page: PageId(page), place };
        assert_eq!(Move::path(&[4, 6, 9], &table, 62), [step(4, 7, 62), step(6, 7, 63), step(9, 3, 0)]);
    }
}
