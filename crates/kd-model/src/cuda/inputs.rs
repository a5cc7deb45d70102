//! What changes from pass to pass: tokens, trees, pages. At fixed addresses, so that a captured pass serves any round.

use kd_attn::{PAGE_TOKENS, PageId, Segment, rows};
use kd_kernels::{Buffer, CudaView, KernelError, Stream, TensorRef};
use kd_tensor::ops::check_ids;

use super::CudaError;
use super::error::within;
use super::limits::{Limits, MOST_NODES};
use super::places::{Places, TreePlaces, padded, parent, place, words};

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
    /// A table of the pages of each stream for each of [`Limits::contexts`] (the widest alone where rows are no trees), and the same on
    /// the host: a stream keeps its pages, so most rounds change nothing.
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
        let tables: Vec<usize> = if trees { limits.contexts().collect() } else { vec![limits.table_width()] };
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
        turn(&mut self.held, &self.tables, self.limits.streams, index, pages)
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

/// Gives stream `index` of `streams` these pages in `held`, tables of the widths `tables` one behind the other, each stream's -1
/// behind its pages. False if it has them: all tables begin as the last and widest does.
fn turn(held: &mut [i32], tables: &[usize], streams: usize, index: usize, pages: &[PageId]) -> bool {
    let Some((&width, shorter)) = tables.split_last() else { return false };
    let (shorter_held, widest) = held.split_at_mut(streams * shorter.iter().sum::<usize>());
    let widest = &mut widest[index * width..][..width];
    let (ids, rest) = widest.split_at_mut(pages.len().min(width));
    let same = ids.iter().zip(pages).all(|(id, page)| *id == page.0.cast_signed());
    if same && rest.iter().all(|id| *id == -1) {
        return false;
    }
    ids.iter_mut().zip(pages).for_each(|(id, page)| *id = page.0.cast_signed());
    rest.fill(-1);
    let mut first = 0;
    for &width in shorter {
        shorter_held[first + index * width..][..width].copy_from_slice(&widest[..width]);
        first += streams * width;
    }
    true
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

    #[test]
    fn every_table_begins_as_the_widest_does() {
        let (tables, streams) = ([4, 8, 12], 3);
        let mut held = vec![-1; streams * tables.iter().sum::<usize>()];
        let pages = |ids: &[u32]| ids.iter().copied().map(PageId).collect::<Vec<_>>();
        let (long, short) = (pages(&[7, 3, 9, 1, 5, 2, 8, 4, 6, 11]), pages(&[7, 3, 9]));
        let beyond: Vec<PageId> = (20..40).map(PageId).collect();
        for (given, moves) in [
            (&long, true),
            (&long, false),
            (&short, true),
            (&short, false),
            (&beyond, true),
            (&beyond, false),
            (&Vec::new(), true),
            (&Vec::new(), false),
        ] {
            assert_eq!(turn(&mut held, &tables, streams, 1, given), moves, "{given:?}");
            let mut first = 0;
            for width in tables {
                let id = |i: usize| given.get(i).map_or(-1, |page: &PageId| page.0.cast_signed());
                let expected: Vec<i32> = (0..width).map(id).collect();
                let own = |stream: usize| &held[first + stream * width..][..width];
                assert_eq!(own(1), expected, "{given:?}, table of {width}");
                assert!([0, 2].iter().all(|other| own(*other).iter().all(|id| *id == -1)));
                first += streams * width;
            }
        }
        // A last page that only the widest table holds.
        assert!(turn(&mut held, &tables, streams, 1, &long));
        let mut other = long.clone();
        other[9] = PageId(12);
        assert!(turn(&mut held, &tables, streams, 1, &other));
    }

    #[test]
    fn a_path_goes_over_the_end_of_a_page() {
        let table = [PageId(7), PageId(3)];
        let step = |row, page, place| Move { row, page: PageId(page), place };
        assert_eq!(Move::path(&[4, 6, 9], &table, 62), [step(4, 7, 62), step(6, 7, 63), step(9, 3, 0)]);
    }
}
