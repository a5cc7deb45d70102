//! Prompt chunks on a GPU: expanded MLA over blocks of keys.
//!
//! Expanding a latent into the keys and values of every head costs more than the absorbed form for one query, and less for
//! the hundreds of a chunk. A block of the context at a time is gathered from its pages, expanded by one product, and
//! attended to by all rows of the chunk; the running softmax goes from block to block. So the workspace does not grow with
//! the context.

use half::bf16;
use kd_kernels::families::{latent_gather, latent_gather_fp8, prefill_attention};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Product, Stream, TensorMut, TensorRef};

use crate::block_attention::BlockAttention;
use crate::{KvCacheDtype, MlaConfig, PAGE_TOKENS};

/// f32 values that a row and head keeps beside its sums of values: top and part of the sum of weights of four threads.
const STATS: usize = 8;

/// Keys that an expansion is planned for, unless blocks are larger: the bits of a key then do not depend on how large they are.
const KEYS: usize = 8192;

/// The kernels of one layer shape.
#[derive(Debug)]
pub struct Prefill {
    gather: Gather,
    expand: Product,
    attention: BlockAttention,
    config: MlaConfig,
    block: usize,
}

#[derive(Debug)]
enum Gather {
    Bf16(latent_gather::LatentGather),
    Fp8(latent_gather_fp8::LatentGatherFp8),
}

/// A layer's pages.
#[derive(Debug, Clone, Copy)]
pub enum PagesRef<'a> {
    /// `[pages, 64, latent + rope]`
    Bf16(TensorRef<'a, bf16, 3>),
    /// `[pages, 64, entry]`: bytes of [`crate::Fp8Entry`]s.
    Fp8(TensorRef<'a, u8, 3>),
}

/// One chunk of one stream: rows that follow each other, after all committed tokens.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// `[M, heads, nope + rope]`, rotated.
    pub queries: TensorRef<'a, bf16, 3>,
    /// `kv_b_proj`, `[heads · (nope + value), latent]`.
    pub kv_b: TensorRef<'a, bf16, 2>,
    /// The layer's pages.
    pub pages: PagesRef<'a>,
    /// The stream's page table, reaching at least `committed` tokens.
    pub table: TensorRef<'a, i32, 1>,
    /// Entries of the chunk's own rows, `[M, latent + rope]`.
    pub own: TensorRef<'a, bf16, 2>,
    /// Committed tokens.
    pub committed: usize,
}

/// Device memory that chunks of up to `rows` rows share, for any context.
#[derive(Debug)]
pub struct Workspace {
    /// `[block, latent + rope]`
    entries: CudaSlice<bf16>,
    /// `[block, heads, nope + value]`
    expanded: CudaSlice<bf16>,
    /// `[rows, heads, value]`
    part_o: CudaSlice<f32>,
    /// `[rows, heads, STATS]`
    part_ml: CudaSlice<f32>,
    rows: usize,
}

impl Prefill {
    /// Fails unless `kernels` has what chunks of `config` launch.
    ///
    /// # Errors
    /// A unit that the bundle lacks.
    pub fn check(kernels: &Kernels, config: MlaConfig, cache: KvCacheDtype) -> Result<(), KernelError> {
        units(kernels, config, cache).map(drop)
    }

    /// Loads the kernels for `config`, whose heads are those of this rank, and pages of `cache`; `block` keys are expanded at a
    /// time, whole pages.
    ///
    /// # Errors
    /// No kernels for these sizes, no cuBLASLt, a block of no whole page.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        config: MlaConfig,
        block: usize,
        cache: KvCacheDtype,
    ) -> Result<Self, KernelError> {
        let block = block / PAGE_TOKENS * PAGE_TOKENS;
        if block == 0 {
            let (unit, what) = ("prefill".to_owned(), "keys of a block (a page at least)");
            return Err(KernelError::Limit { unit, what, value: 0, limit: 0 });
        }
        let width = config.heads * (config.nope + config.value);
        let (gather, attention) = units(kernels, config, cache)?;
        Ok(Self {
            gather,
            expand: Product::new(device, width, config.latent, config.cache_width(), block.max(KEYS))?,
            attention,
            config,
            block,
        })
    }

    /// What a launch may be made to take in place of its choice.
    pub(crate) fn variants(&self) -> impl Iterator<Item = &'static str> {
        self.attention.variants()
    }

    /// Memory for chunks of up to `rows` rows: per key of a block `latent + rope + heads · (nope + value)` bf16, per row
    /// `heads · (value + 8)` f32.
    ///
    /// # Errors
    /// A device without that much memory.
    pub fn workspace(&self, stream: &Stream, rows: usize) -> Result<Workspace, KernelError> {
        let MlaConfig { heads, nope, value, .. } = self.config;
        let failed = |error| KernelError::driver("the workspace of prompt chunks", error);
        let cuda = stream.cuda();
        Ok(Workspace {
            entries: cuda.alloc_zeros(self.block * self.config.cache_width()).map_err(failed)?,
            expanded: cuda.alloc_zeros(self.block * heads * (nope + value)).map_err(failed)?,
            part_o: cuda.alloc_zeros(rows * heads * value).map_err(failed)?,
            part_ml: cuda.alloc_zeros(rows * heads * STATS).map_err(failed)?,
            rows,
        })
    }

    /// Attention of `chunk`: row `r` sees the committed tokens and the chunk's rows up to itself. `y` is
    /// `[M, heads, value]`. `choice` is for the attention kernel.
    ///
    /// # Errors
    /// More rows than the workspace was made for, operands of other sizes, a refused launch.
    pub fn launch(
        &self,
        stream: &Stream,
        choice: Choice<'_>,
        chunk: &Chunk<'_>,
        workspace: &mut Workspace,
        y: &mut TensorMut<'_, bf16, 3>,
    ) -> Result<(), KernelError> {
        let MlaConfig { heads, nope, value, softmax_scale, .. } = self.config;
        let [rows, ..] = chunk.queries.shape();
        let limit = |what, value: usize, limit: usize| {
            let [value, limit] = [value, limit].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
            KernelError::Limit { unit: "prefill".to_owned(), what, value, limit }
        };
        if rows > workspace.rows {
            return Err(limit("rows of a chunk", rows, workspace.rows));
        }
        let position =
            |token: usize| i32::try_from(token).map_err(|_| limit("a position", token, i32::MAX as usize));
        let total = chunk.committed.saturating_add(rows);
        position(total)?;
        for first in (0..total).step_by(self.block) {
            let tokens = self.block.min(total - first);
            let entry_values = tokens * self.config.cache_width();
            let width = nope + value;
            let mut entries = workspace.entries.slice_mut(..entry_values);
            let to = TensorMut::new(stream, entries.slice_mut(..), [tokens, self.config.cache_width()])?;
            self.gather.launch(stream, chunk, position(chunk.committed)?, position(first)?, to)?;
            let entries = TensorRef::new(stream, entries.as_view(), [tokens, self.config.cache_width()])?;
            let mut expanded = workspace.expanded.slice_mut(..tokens * heads * width);
            let mut product = TensorMut::new(stream, expanded.slice_mut(..), [tokens, heads * width])?;
            self.expand.launch(stream, &entries, &chunk.kv_b, &mut product)?;
            let mut part_o = workspace.part_o.slice_mut(..rows * heads * value);
            let mut part_ml = workspace.part_ml.slice_mut(..rows * heads * STATS);
            self.attention.launch(
                stream,
                choice,
                prefill_attention::Args {
                    q: chunk.queries,
                    kv: TensorRef::new(stream, expanded.as_view(), [tokens, heads, width])?,
                    entries,
                    ahead: position(chunk.committed)? - position(first)?,
                    scale: softmax_scale,
                    resumed: i32::from(first > 0),
                    finished: i32::from(first + tokens == total),
                    part_o: TensorMut::new(stream, part_o.slice_mut(..), [rows, heads, value])?,
                    part_ml: TensorMut::new(stream, part_ml.slice_mut(..), [rows, heads, STATS])?,
                    y: y.reborrow(),
                },
            )?;
        }
        Ok(())
    }
}

impl Gather {
    /// Tokens `first` on of a chunk's context and own rows, to `entries` `[tokens, latent + rope]`.
    fn launch(
        &self,
        stream: &Stream,
        chunk: &Chunk<'_>,
        committed: i32,
        first: i32,
        entries: TensorMut<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        let Chunk { table, own, .. } = *chunk;
        match (self, chunk.pages) {
            (Self::Bf16(gather), PagesRef::Bf16(pages)) => {
                let args = latent_gather::Args { pages, table, own, committed, first, entries };
                gather.launch(stream, Choice::Auto, args).map(drop)
            }
            (Self::Fp8(gather), PagesRef::Fp8(pages)) => {
                let args = latent_gather_fp8::Args { pages, table, own, committed, first, entries };
                gather.launch(stream, Choice::Auto, args).map(drop)
            }
            (Self::Bf16(_), PagesRef::Fp8(_)) | (Self::Fp8(_), PagesRef::Bf16(_)) => {
                let what = "pages of another format than the kernels'".to_owned();
                Err(KernelError::BadTensor { shape: table.shape().to_vec(), what })
            }
        }
    }
}

fn units(
    kernels: &Kernels,
    config: MlaConfig,
    cache: KvCacheDtype,
) -> Result<(Gather, BlockAttention), KernelError> {
    let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let [n, r, vd, c] = [config.nope, config.rope, config.value, config.latent].map(size);
    let gather = match cache {
        KvCacheDtype::Auto => {
            Gather::Bf16(latent_gather::LatentGather::load(kernels, latent_gather::Dims { w: c + r })?)
        }
        KvCacheDtype::Fp8 => {
            let dims = latent_gather_fp8::Dims { c, r };
            Gather::Fp8(latent_gather_fp8::LatentGatherFp8::load(kernels, dims)?)
        }
    };
    let dims = prefill_attention::Dims { n, r, vd, c };
    Ok((gather, BlockAttention::load(kernels, dims)?))
}

impl Workspace {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.entries.num_bytes()
            + self.expanded.num_bytes()
            + self.part_o.num_bytes()
            + self.part_ml.num_bytes()
    }
}
