//! Pages of either format, and the kernels that know of it.

use half::bf16;
use kd_attn::prefill::PagesRef;
use kd_attn::{KvCacheDtype, PAGE_TOKENS};
use kd_kernels::families::{
    commit, commit_fp8, head_queries, head_queries_fp8, mla_inputs, mla_inputs_fp8, tree_mla, tree_mla_fp8,
};
use kd_kernels::{Choice, CudaSlice, KernelError, Kernels, Stream, TensorMut, TensorRef};

use super::Dims;
use super::kernels::{built, int};
use super::memory::{part, part_mut, zeros};

/// The pages of all layers.
#[derive(Debug)]
pub(crate) enum Pages {
    /// `[layers, pages · 64, latent + rope]`
    Bf16(CudaSlice<bf16>),
    /// `[layers, pages · 64, entry]`: bytes of `kd_attn::Fp8Entry`s.
    Fp8(CudaSlice<u8>),
}

impl Pages {
    /// Zeroed ones.
    pub(crate) fn new(stream: &Stream, dims: &Dims, pages: usize) -> Result<Self, KernelError> {
        let entries = dims.layers * pages * PAGE_TOKENS;
        Ok(match dims.kv_cache_dtype {
            KvCacheDtype::Auto => Self::Bf16(zeros!(stream, entries * dims.attention.cache_width())?),
            KvCacheDtype::Fp8 => Self::Fp8(zeros!(stream, entries * dims.entry_bytes())?),
        })
    }

    /// Those of one layer of `pages` pages.
    pub(crate) fn layer(
        &self,
        stream: &Stream,
        dims: &Dims,
        layer: usize,
        pages: usize,
    ) -> Result<PagesRef<'_>, KernelError> {
        let at = |width: usize| (layer * pages * PAGE_TOKENS * width, [pages, PAGE_TOKENS, width]);
        Ok(match self {
            Self::Bf16(data) => {
                let (start, shape) = at(dims.attention.cache_width());
                PagesRef::Bf16(part(stream, data, start, shape)?)
            }
            Self::Fp8(data) => {
                let (start, shape) = at(dims.entry_bytes());
                PagesRef::Fp8(part(stream, data, start, shape)?)
            }
        })
    }
}

/// Which rows of scratch, `[layers, rows, latent + rope]` of layers from the `first` on, go where in their layers' pages.
pub(crate) struct Moved<'a> {
    pub(crate) scratch: TensorRef<'a, bf16, 3>,
    pub(crate) first: usize,
    pub(crate) from: TensorRef<'a, i32, 1>,
    pub(crate) to: TensorRef<'a, i32, 1>,
}

/// What writes and reads cache entries.
#[derive(Debug)]
pub(crate) enum CacheKernels {
    Bf16 {
        inputs: mla_inputs::MlaInputs,
        tree: tree_mla::TreeMla,
        commit: commit::Commit,
    },
    Fp8 {
        inputs: mla_inputs_fp8::MlaInputsFp8,
        tree: tree_mla_fp8::TreeMlaFp8,
        commit: commit_fp8::CommitFp8,
    },
}

impl CacheKernels {
    pub(crate) fn load(kernels: &Kernels, dims: &Dims) -> Result<Self, KernelError> {
        let a = &dims.attention;
        let [h, q, c, r, w] = [a.heads, dims.q_rank, a.latent, a.rope, a.cache_width()].map(int);
        Ok(match dims.kv_cache_dtype {
            KvCacheDtype::Auto => Self::Bf16 {
                inputs: mla_inputs::MlaInputs::load(kernels, mla_inputs::Dims { q, c, r })?,
                tree: tree_mla::TreeMla::load(kernels, tree_mla::Dims { h, c, r })?,
                commit: commit::Commit::load(kernels, commit::Dims { w })?,
            },
            KvCacheDtype::Fp8 => Self::Fp8 {
                inputs: mla_inputs_fp8::MlaInputsFp8::load(kernels, mla_inputs_fp8::Dims { q, c, r })?,
                tree: tree_mla_fp8::TreeMlaFp8::load(kernels, tree_mla_fp8::Dims { h, c, r })?,
                commit: commit_fp8::CommitFp8::load(kernels, commit_fp8::Dims { c, r })?,
            },
        })
    }

    /// `mla_inputs`, whose entries are what pages give back.
    pub(crate) fn inputs(&self, stream: &Stream, args: mla_inputs::Args<'_>) -> Result<(), KernelError> {
        let kernel = match self {
            Self::Bf16 { inputs, .. } => return inputs.launch(stream, Choice::Auto, args).map(drop),
            Self::Fp8 { inputs, .. } => inputs,
        };
        let mla_inputs::Args { x, q_gain, kv_gain, eps, rope, positions, slots, q, cache } = args;
        let args = mla_inputs_fp8::Args { x, q_gain, kv_gain, eps, rope, positions, slots, q, cache };
        kernel.launch(stream, Choice::Auto, args).map(drop)
    }

    /// `tree_mla` over pages of this format.
    pub(crate) fn attend(
        &self,
        stream: &Stream,
        dims: &Dims,
        pages: LayerPages<'_>,
        own: Attended<'_>,
    ) -> Result<(), KernelError> {
        let Attended {
            q,
            queries,
            table,
            starts,
            committed,
            ancestors,
            scratch,
            scale,
            queue,
            part_o,
            part_ml,
        } = own;
        match (self, pages.all) {
            (Self::Bf16 { tree, .. }, Pages::Bf16(data)) => {
                let (rows, width) = (pages.count * PAGE_TOKENS, dims.attention.cache_width());
                let start = pages.layer * rows * width;
                let entries = part(stream, data, start, [rows, width])?;
                let pages = part(stream, data, start, [pages.count, PAGE_TOKENS, width])?;
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
                tree.launch(stream, Choice::Auto, args).map(drop)
            }
            (Self::Fp8 { tree, .. }, Pages::Fp8(data)) => {
                let (rows, bytes) = (pages.count * PAGE_TOKENS, dims.entry_bytes());
                let shape = [pages.count, PAGE_TOKENS, bytes];
                let pages = part(stream, data, pages.layer * rows * bytes, shape)?;
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
                tree.launch(stream, Choice::Auto, args).map(drop)
            }
            (Self::Bf16 { .. }, Pages::Fp8(_)) | (Self::Fp8 { .. }, Pages::Bf16(_)) => Err(foreign(dims)),
        }
    }

    /// The variant that [`CacheKernels::attend`] takes for sizes `[rows, cache pages, streams, pages of a stream, partial rows]`.
    pub(crate) fn variant(&self, [t, x, b, p, z]: [usize; 5]) -> Result<&'static str, KernelError> {
        let [t, x, b, p, z] = [t, x, b, p, z].map(int);
        match self {
            Self::Bf16 { tree, .. } => tree.variant(t, x, b, p, z),
            Self::Fp8 { tree, .. } => tree.variant(t, x, b, p, z),
        }
    }

    /// Entries from scratch to pages.
    pub(crate) fn commit(
        &self,
        stream: &Stream,
        dims: &Dims,
        pages: &mut Pages,
        moved: Moved<'_>,
        page_rows: usize,
    ) -> Result<(), KernelError> {
        let Moved { scratch, first, from, to } = moved;
        let [layers, ..] = scratch.shape();
        match (self, pages) {
            (Self::Bf16 { commit, .. }, Pages::Bf16(data)) => {
                let width = dims.attention.cache_width();
                let pages = part_mut(stream, data, first * page_rows * width, [layers, page_rows, width])?;
                commit.launch(stream, Choice::Auto, commit::Args { scratch, from, to, pages }).map(drop)
            }
            (Self::Fp8 { commit, .. }, Pages::Fp8(data)) => {
                let bytes = dims.entry_bytes();
                let pages = part_mut(stream, data, first * page_rows * bytes, [layers, page_rows, bytes])?;
                commit.launch(stream, Choice::Auto, commit_fp8::Args { scratch, from, to, pages }).map(drop)
            }
            (Self::Bf16 { .. }, Pages::Fp8(_)) | (Self::Fp8 { .. }, Pages::Bf16(_)) => Err(foreign(dims)),
        }
    }
}

fn foreign(dims: &Dims) -> KernelError {
    let what = format!("pages are not those of a cache of {:?}", dims.kv_cache_dtype);
    KernelError::BadTensor { shape: vec![PAGE_TOKENS, dims.entry_bytes()], what }
}

/// The `count` pages of a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerPages<'a> {
    pub(crate) all: &'a Pages,
    pub(crate) layer: usize,
    pub(crate) count: usize,
}

/// The operands of tree attention beside the pages: see `tree_mla`.
pub(crate) struct Attended<'a> {
    pub(crate) q: TensorRef<'a, bf16, 3>,
    /// The same, a row for each row and head.
    pub(crate) queries: TensorRef<'a, bf16, 2>,
    pub(crate) table: TensorRef<'a, i32, 2>,
    pub(crate) starts: TensorRef<'a, i32, 1>,
    pub(crate) committed: TensorRef<'a, i32, 1>,
    pub(crate) ancestors: TensorRef<'a, u64, 2>,
    pub(crate) scratch: TensorRef<'a, bf16, 2>,
    pub(crate) scale: f32,
    pub(crate) queue: TensorMut<'a, i32, 1>,
    pub(crate) part_o: TensorMut<'a, f32, 2>,
    pub(crate) part_ml: TensorMut<'a, f32, 2>,
}

/// `head_queries`, by what pages give back of the entries that it makes.
#[derive(Debug)]
pub(crate) enum QueryKernel {
    Bf16(head_queries::HeadQueries),
    Fp8(head_queries_fp8::HeadQueriesFp8),
}

impl QueryKernel {
    /// Nothing where the declarations have none for these sizes.
    pub(crate) fn load(kernels: &Kernels, dims: &Dims) -> Result<Option<Self>, KernelError> {
        let a = &dims.attention;
        let [h, q, c, n, r] = [a.heads, dims.q_rank, a.latent, a.nope, a.rope].map(int);
        Ok(match dims.kv_cache_dtype {
            KvCacheDtype::Auto => {
                built(head_queries::HeadQueries::load(kernels, head_queries::Dims { h, q, c, n, r }))?
                    .map(Self::Bf16)
            }
            KvCacheDtype::Fp8 => {
                let dims = head_queries_fp8::Dims { h, q, c, n, r };
                built(head_queries_fp8::HeadQueriesFp8::load(kernels, dims))?.map(Self::Fp8)
            }
        })
    }

    pub(crate) fn launch(&self, stream: &Stream, args: head_queries::Args<'_>) -> Result<(), KernelError> {
        let kernel = match self {
            Self::Bf16(kernel) => return kernel.launch(stream, Choice::Auto, args).map(drop),
            Self::Fp8(kernel) => kernel,
        };
        let head_queries::Args { joint, q_gain, kv_gain, eps, q_b, key_up, rope, positions, slots, cache, y } =
            args;
        let args = head_queries_fp8::Args {
            joint,
            q_gain,
            kv_gain,
            eps,
            q_b,
            key_up,
            rope,
            positions,
            slots,
            cache,
            y,
        };
        kernel.launch(stream, Choice::Auto, args).map(drop)
    }
}
