//! Device memory of a pass, and its two launches.

use half::bf16;
use kd_kernels::families::{tree_mla, tree_mla_fp8, tree_mla_merge};
use kd_kernels::selftest::{Random, driver, upload};
use kd_kernels::{Buffer, Choice, CudaSlice, KernelError, Kernels, Stream, TensorMut, TensorRef};

use super::case::{Branch, Case, SCALE, Widths};
use super::pages::Pages;
use crate::{Leaves, PAGE_TOKENS, PageId};

/// The kernels of one rank.
#[derive(Debug)]
pub(crate) struct Attention {
    tree: Tree,
    merge: tree_mla_merge::TreeMlaMerge,
}

#[derive(Debug)]
enum Tree {
    Bf16(tree_mla::TreeMla),
    Fp8(tree_mla_fp8::TreeMlaFp8),
}

impl Attention {
    pub(crate) fn load(kernels: &Kernels, widths: Widths) -> Result<Self, KernelError> {
        let [h, c, r] = [widths.heads, widths.latent, widths.rope].map(|width| width as i64);
        Ok(Self {
            tree: if widths.fp8 {
                Tree::Fp8(tree_mla_fp8::TreeMlaFp8::load(kernels, tree_mla_fp8::Dims { h, c, r })?)
            } else {
                Tree::Bf16(tree_mla::TreeMla::load(kernels, tree_mla::Dims { h, c, r })?)
            },
            merge: tree_mla_merge::TreeMlaMerge::load(kernels, tree_mla_merge::Dims { h, c })?,
        })
    }
}

/// Room for passes: a captured graph keeps its sizes, so a pass may be smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) rows: usize,
    pub(crate) streams: usize,
    pub(crate) pages: usize,
    /// Pages of a stream.
    pub(crate) table: usize,
    /// Rows of partial results.
    pub(crate) partial: usize,
}

impl Room {
    pub(crate) fn of(case: &Case, pages: usize) -> Self {
        let committed = case.branches.iter().map(|branch| branch.committed);
        let streams = case.branches.iter().map(|branch| (branch.nodes(), branch.committed));
        let partial = Leaves::new(case.widths.heads).partial_rows(case.widths.heads, streams);
        Self {
            rows: case.rows(),
            streams: case.branches.len(),
            pages,
            table: committed.map(|tokens| tokens.div_ceil(PAGE_TOKENS)).max().unwrap_or_default().max(1),
            partial: partial.unwrap_or(usize::MAX),
        }
    }
}

/// A pass on the device.
#[derive(Debug)]
pub(crate) struct Pass {
    attention: Attention,
    variant: Option<String>,
    widths: Widths,
    room: Room,
    queries: Buffer<bf16>,
    pages: Pages,
    /// One for each launch of a recording: copies of the context in other pages.
    tables: Vec<Buffer<i32>>,
    starts: Buffer<i32>,
    committed: Buffer<i32>,
    ancestors: Buffer<u64>,
    scratch: Buffer<bf16>,
    queue: CudaSlice<i32>,
    part_o: CudaSlice<f32>,
    part_ml: CudaSlice<f32>,
    pub(crate) mixed: Buffer<bf16>,
}

/// Words of ancestors a row.
const WORDS: usize = 2;

impl Pass {
    /// Memory for `room`, every input and output poisoned with NaN; no variant: that of the launcher's choice.
    pub(crate) fn new(
        stream: &Stream,
        attention: Attention,
        variant: Option<&str>,
        widths: Widths,
        room: Room,
    ) -> Result<Self, KernelError> {
        let nan = |count: usize| vec![bf16::NAN; count];
        let key = widths.key();
        Ok(Self {
            attention,
            variant: variant.map(str::to_owned),
            queries: Buffer::new(stream, &nan(room.rows * widths.heads * key))?,
            pages: Pages::poisoned(stream, widths, room.pages)?,
            tables: vec![Buffer::new(stream, &vec![-1; room.streams * room.table])?],
            starts: Buffer::new(stream, &vec![0; room.streams + 1])?,
            committed: Buffer::new(stream, &vec![0; room.streams])?,
            ancestors: Buffer::new(stream, &vec![u64::MAX; room.rows * WORDS])?,
            scratch: Buffer::new(stream, &nan(room.rows * key))?,
            queue: upload(stream, &[0])?,
            part_o: upload(stream, &vec![f32::NAN; room.partial * widths.latent])?,
            part_ml: upload(stream, &vec![f32::NAN; room.partial * 2])?,
            mixed: Buffer::new(stream, &nan(room.rows * widths.heads * widths.latent))?,
            widths,
            room,
        })
    }

    /// Replaces the pages by `pages` zeroed ones: more than are worth a copy from the host.
    pub(crate) fn many_pages(&mut self, stream: &Stream, pages: usize) -> Result<(), KernelError> {
        self.room.pages = pages;
        self.pages = Pages::zeroed(stream, self.widths, pages)?;
        Ok(())
    }

    /// Writes the tokens of `case` to the pages of `tables`; what they do not fill stays poison.
    pub(crate) fn fill_pages(
        &mut self,
        stream: &Stream,
        case: &Case,
        tables: &[Vec<PageId>],
    ) -> Result<(), KernelError> {
        let size = PAGE_TOKENS * self.widths.key();
        for (context, table) in case.context.iter().zip(tables) {
            for (tokens, page) in context.chunks(size).zip(table) {
                self.pages.write(stream, self.widths, page.0 as usize * PAGE_TOKENS, tokens)?;
            }
        }
        Ok(())
    }

    /// Uploads everything of `case` but its tokens. Rows and streams beyond it are padding.
    pub(crate) fn write(
        &self,
        stream: &Stream,
        case: &Case,
        tables: &[Vec<PageId>],
    ) -> Result<(), KernelError> {
        let Room { rows, streams, table, .. } = self.room;
        let pad = |mut values: Vec<bf16>, count: usize| {
            values.resize(count, bf16::NAN);
            values
        };
        let key = self.widths.key();
        self.queries.write(stream, &pad(case.queries.clone(), rows * self.widths.heads * key))?;
        self.scratch.write(stream, &pad(case.scratch.clone(), rows * key))?;
        let mut starts: Vec<i32> = case.starts().iter().map(|start| *start as i32).collect();
        starts.resize(streams + 1, case.rows() as i32);
        self.starts.write(stream, &starts)?;
        let mut committed: Vec<i32> = case.branches.iter().map(|branch| branch.committed as i32).collect();
        committed.resize(streams, i32::MAX);
        self.committed.write(stream, &committed)?;
        let mut ids = vec![-1; streams * table];
        for (ids, pages) in ids.chunks_exact_mut(table).zip(tables) {
            ids.iter_mut().zip(pages).for_each(|(id, page)| *id = page.0 as i32);
        }
        self.tables[0].write(stream, &ids)?;
        // The root's own words are not to be read.
        let words = |branch: &Branch| [vec![[u64::MAX; WORDS]], branch.ancestors()].concat().into_flattened();
        let mut ancestors: Vec<u64> = case.branches.iter().flat_map(words).collect();
        ancestors.resize(rows * WORDS, u64::MAX);
        self.ancestors.write(stream, &ancestors)
    }

    /// Makes the table of stream 0 hold a placeholder in place of its first page.
    pub(crate) fn break_table(&self, stream: &Stream, tables: &[Vec<PageId>]) -> Result<(), KernelError> {
        let mut ids = vec![-1; self.room.streams * self.room.table];
        for (ids, pages) in ids.chunks_exact_mut(self.room.table).zip(tables).skip(1) {
            ids.iter_mut().zip(pages).for_each(|(id, page)| *id = page.0 as i32);
        }
        self.tables[0].write(stream, &ids)
    }

    /// Gives the pass `copies` copies of its context, made of the pages `pages`, and `partial` rows of partial results.
    pub(crate) fn rotate(
        &mut self,
        stream: &Stream,
        tables: &[Vec<PageId>],
        copies: usize,
        pages: &[bf16],
        partial: usize,
    ) -> Result<(), KernelError> {
        let used: usize = tables.iter().map(Vec::len).sum::<usize>().max(1);
        let Room { streams, table, .. } = self.room;
        self.room.partial = partial;
        self.part_o = stream.cuda().alloc_zeros(partial * self.widths.latent).map_err(driver)?;
        self.part_ml = stream.cuda().alloc_zeros(partial * 2).map_err(driver)?;
        self.many_pages(stream, used * copies)?;
        let (key, tokens) = (self.widths.key(), used * copies * PAGE_TOKENS);
        for first in (0..tokens).step_by(pages.len() / key) {
            let end = tokens.min(first + pages.len() / key);
            self.pages.write(stream, self.widths, first, &pages[..(end - first) * key])?;
        }
        self.tables.clear();
        for copy in 0..copies {
            let mut next = copy * used;
            let mut ids = vec![-1; streams * table];
            for (ids, pages) in ids.chunks_exact_mut(table).zip(tables) {
                ids.iter_mut().zip(pages).for_each(|(id, _)| (*id, next) = (next as i32, next + 1));
            }
            self.tables.push(Buffer::new(stream, &ids)?);
        }
        Ok(())
    }

    /// Both launches for each table. `kd_kernels::Stream::capture` takes it as it is.
    pub(crate) fn record(stream: &Stream, pass: &mut Self) -> Result<(), KernelError> {
        (0..pass.tables.len()).try_for_each(|copy| pass.launch(stream, copy))
    }

    fn launch(&mut self, stream: &Stream, copy: usize) -> Result<(), KernelError> {
        let Widths { heads, latent, .. } = self.widths;
        let (key, choice) = (self.widths.key(), self.variant.as_deref().map_or(Choice::Auto, Choice::Forced));
        let Room { rows, streams, pages, table, partial } = self.room;
        let (tables, starts) = (self.tables[copy].view(), self.starts.view());
        let table = TensorRef::new(stream, tables, [streams, table])?;
        let starts = TensorRef::new(stream, starts, [streams + 1])?;
        let q = TensorRef::new(stream, self.queries.view(), [rows, heads, key])?;
        let committed = TensorRef::new(stream, self.committed.view(), [streams])?;
        let ancestors = TensorRef::new(stream, self.ancestors.view(), [rows, WORDS])?;
        let scratch = TensorRef::new(stream, self.scratch.view(), [rows, key])?;
        let queue = TensorMut::new(stream, self.queue.as_view_mut(), [1])?;
        let part_o = TensorMut::new(stream, self.part_o.as_view_mut(), [partial, latent])?;
        let part_ml = TensorMut::new(stream, self.part_ml.as_view_mut(), [partial, 2])?;
        let scale = SCALE;
        match (&self.attention.tree, &self.pages) {
            (Tree::Bf16(tree), Pages::Bf16(data)) => {
                let entries = TensorRef::new(stream, data.as_view(), [pages * PAGE_TOKENS, key])?;
                let queries = TensorRef::new(stream, self.queries.view(), [rows * heads, key])?;
                let pages = TensorRef::new(stream, data.as_view(), [pages, PAGE_TOKENS, key])?;
                let args = tree_mla::Args {
                    q,
                    pages,
                    queries,
                    entries,
                    table,
                    starts,
                    committed,
                    ancestors,
                    scratch,
                    scale,
                    queue,
                    part_o,
                    part_ml,
                };
                tree.launch(stream, choice, args)?;
            }
            (Tree::Fp8(tree), Pages::Fp8(data)) => {
                let pages = TensorRef::new(
                    stream,
                    data.as_view(),
                    [pages, PAGE_TOKENS, self.widths.entry().bytes()],
                )?;
                let args = tree_mla_fp8::Args {
                    q,
                    pages,
                    table,
                    starts,
                    committed,
                    ancestors,
                    scratch,
                    scale,
                    queue,
                    part_o,
                    part_ml,
                };
                tree.launch(stream, choice, args)?;
            }
            (Tree::Bf16(_), Pages::Fp8(_)) | (Tree::Fp8(_), Pages::Bf16(_)) => {
                let what = "pages of another format than the kernel's".to_owned();
                return Err(KernelError::BadTensor { shape: vec![pages], what });
            }
        }
        let args = tree_mla_merge::Args {
            part_o: TensorRef::new(stream, self.part_o.as_view(), [partial, latent])?,
            part_ml: TensorRef::new(stream, self.part_ml.as_view(), [partial, 2])?,
            starts: TensorRef::new(stream, self.starts.view(), [streams + 1])?,
            committed: TensorRef::new(stream, self.committed.view(), [streams])?,
            ancestors: TensorRef::new(stream, self.ancestors.view(), [rows, WORDS])?,
            queue: TensorMut::new(stream, self.queue.as_view_mut(), [1])?,
            y: TensorMut::new(stream, self.mixed.view_mut(), [rows, heads, latent])?,
        };
        self.attention.merge.launch(stream, Choice::Auto, args).map(drop)
    }
}

/// Runs `case` once: `[rows, heads, latent]`.
pub(crate) fn run(
    stream: &Stream,
    kernels: &Kernels,
    case: &Case,
    variant: Option<&str>,
    random: &mut Random,
) -> Result<Vec<bf16>, KernelError> {
    let (pages, tables) = case.tables(random);
    let attention = Attention::load(kernels, case.widths)?;
    let mut pass = Pass::new(stream, attention, variant, case.widths, Room::of(case, pages))?;
    pass.fill_pages(stream, case, &tables)?;
    pass.write(stream, case, &tables)?;
    Pass::record(stream, &mut pass)?;
    pass.mixed.read(stream)
}
