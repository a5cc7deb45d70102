//! `lm_head` and the search for the best tokens of its rows, for a product with the vocabulary.

use cudarc::driver::CudaSlice;
use half::bf16;

use crate::families::{lm_head, lm_head_top_k};
use crate::{Choice, HEAD_TILE, HeadProduct, KernelError, Kernels, Stream, TensorMut, TensorRef};

/// Best tokens of a row.
const TOP: usize = 64;

/// Kernels and memory for up to as many rows as planned.
pub(super) struct Head {
    vocab: usize,
    product: HeadProduct,
    top_k: lm_head_top_k::LmHeadTopK,
    logits: CudaSlice<f32>,
    tiles: CudaSlice<f32>,
    tokens: CudaSlice<i32>,
    values: CudaSlice<f32>,
    stats: CudaSlice<f32>,
    finite: CudaSlice<i32>,
}

impl Head {
    pub(super) fn new(
        stream: &Stream,
        kernels: &Kernels,
        hidden: usize,
        vocab: usize,
        rows: usize,
    ) -> Result<Self, KernelError> {
        let int = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let failed = |error| KernelError::driver("allocating logits", error);
        let floats = |count: usize| stream.cuda().alloc_zeros::<f32>(count).map_err(failed);
        let ints = |count: usize| stream.cuda().alloc_zeros::<i32>(count).map_err(failed);
        Ok(Self {
            vocab,
            product: HeadProduct::load(kernels, int(hidden))?,
            top_k: lm_head_top_k::LmHeadTopK::load(kernels, lm_head_top_k::Dims { v: int(vocab) })?,
            logits: floats(rows * vocab)?,
            tiles: floats(rows * vocab.div_ceil(HEAD_TILE) * 4)?,
            tokens: ints(rows * TOP)?,
            values: floats(rows * TOP)?,
            stats: floats(rows * 2)?,
            finite: ints(rows)?,
        })
    }

    /// Logits of all rows of `x`, and their best tokens.
    pub(super) fn launch(
        &mut self,
        stream: &Stream,
        x: TensorRef<'_, bf16, 2>,
        w: TensorRef<'_, bf16, 2>,
    ) -> Result<(), KernelError> {
        let ([rows, _], vocab) = (x.shape(), self.vocab);
        let (logits, tiles) = ([rows, vocab], [rows, vocab.div_ceil(HEAD_TILE), 4]);
        let (all, described) = (rows * vocab, tiles.iter().product::<usize>());
        let args = lm_head::Args {
            x,
            w,
            logits: TensorMut::new(stream, self.logits.slice_mut(..all), logits)?,
            tiles: TensorMut::new(stream, self.tiles.slice_mut(..described), tiles)?,
        };
        self.product.launch(stream, args)?;
        let args = lm_head_top_k::Args {
            logits: TensorRef::new(stream, self.logits.slice(..all), logits)?,
            tiles: TensorRef::new(stream, self.tiles.slice(..described), tiles)?,
            rank: 0,
            tokens: TensorMut::new(stream, self.tokens.slice_mut(..rows * TOP), [rows, TOP])?,
            values: TensorMut::new(stream, self.values.slice_mut(..rows * TOP), [rows, TOP])?,
            stats: TensorMut::new(stream, self.stats.slice_mut(..rows * 2), [rows, 2])?,
            finite: TensorMut::new(stream, self.finite.slice_mut(..rows), [rows])?,
        };
        self.top_k.launch(stream, Choice::Auto, args).map(drop)
    }
}
