//! Everything that a pass writes, allocated once for the largest one.

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_kernels::selftest::upload;
use kd_kernels::{CudaSlice, CudaView, DenseScratch, HEAD_TILE, KernelError, Stream};
use kd_moe::gpu::Arithmetic;
use kd_tensor::Matrix;

use super::cache::Pages;
use super::error::within;
use super::inputs::PassInputs;
use super::limits::{Bucket, Limits};
use super::memory::{download, download_f32, zeros};
use super::rows::RowState;
use super::{CudaError, Dims};

/// The device memory of passes within [`Limits`]: inputs, pages, scratch and results.
#[derive(Debug)]
pub struct PassState {
    /// What the next pass reads.
    pub inputs: PassInputs,
    pub(crate) limits: Limits,
    pub(crate) dims: Dims,
    pub(crate) rows: RowState,
    /// `[positions, rope]`: cosine and sine of each pair.
    pub(crate) rope: CudaSlice<f32>,
    pub(crate) pages: Pages,
    /// `[layers, rows, latent + rope]`
    pub(crate) scratch: CudaSlice<bf16>,
    /// `[rows, heads, latent + rope]`
    pub(crate) absorbed: CudaSlice<bf16>,
    /// `[rows, heads, latent]`
    pub(crate) mixed: CudaSlice<bf16>,
    /// `[partial, latent]` and `[partial, 2]`
    pub(crate) part_o: CudaSlice<f32>,
    pub(crate) part_ml: CudaSlice<f32>,
    /// Work items that the attention of a layer has taken; its merge makes it zero again.
    pub(crate) queue: CudaSlice<i32>,
    /// Sums of the products' CTAs.
    pub(crate) sums: DenseScratch,
    pub(crate) head: HeadState,
}

/// The head's rows, logits, and what it leaves of each 80 of them.
#[derive(Debug)]
pub(crate) struct HeadState {
    /// `[rows, hidden]`: chosen rows, normed.
    pub(crate) x: CudaSlice<bf16>,
    /// `[rows, vocab]`
    pub(crate) logits: CudaSlice<f32>,
    /// `[rows, ceil(vocab / 80), 4]`
    pub(crate) tiles: CudaSlice<f32>,
}

impl PassState {
    pub(crate) fn new(
        stream: &Stream,
        dims: &Dims,
        limits: Limits,
        taps: &[usize],
        exchanged: usize,
    ) -> Result<Self, CudaError> {
        let Limits { rows, pages, .. } = limits;
        let (a, width) = (&dims.attention, dims.attention.cache_width());
        let angles = dims.rope.table(0..limits.positions());
        let angles: Vec<f32> = angles.values().iter().flat_map(|(cos, sin)| [*cos, *sin]).collect();
        let partial = limits.partial_rows(a.heads);
        Ok(Self {
            inputs: PassInputs::new(stream, limits, dims.vocab, true)?,
            rows: RowState::new(stream, dims, rows, taps, exchanged, Arithmetic::Grouped)?,
            rope: upload(stream, &angles)?,
            pages: Pages::new(stream, dims, pages)?,
            scratch: zeros!(stream, dims.layers * rows * width)?,
            absorbed: zeros!(stream, rows * a.heads * width)?,
            mixed: zeros!(stream, rows * a.heads * a.latent)?,
            part_o: zeros!(stream, partial * a.latent)?,
            part_ml: zeros!(stream, partial * 2)?,
            queue: zeros!(stream, 1)?,
            sums: DenseScratch::new(stream, rows, dims.hidden)?,
            head: HeadState {
                x: zeros!(stream, rows * dims.hidden)?,
                logits: zeros!(stream, rows * dims.vocab)?,
                tiles: zeros!(stream, rows * dims.vocab.div_ceil(HEAD_TILE) * 4)?,
            },
            limits,
            dims: dims.clone(),
        })
    }

    /// What memory was planned for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether a pass of `bucket` fits.
    pub(crate) fn fits(&self, bucket: Bucket) -> Result<(), CudaError> {
        within("the number of rows of a pass", bucket.rows, self.limits.rows)?;
        within("the number of streams of a pass", bucket.streams, self.limits.streams)
    }

    /// The residual stream after the last layer, before the final norm: `[rows, hidden]`, once `stream` has come this far.
    ///
    /// # Errors
    /// More rows than planned, a failed copy or launch.
    pub fn hidden(&self, stream: &Stream, rows: usize) -> Result<Matrix, CudaError> {
        self.rows.download_hidden(stream, rows)
    }

    /// The residual stream after the final norm, `[rows, hidden]`, once `stream` has come this far.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn normed(&self, stream: &Stream, rows: usize) -> Result<Matrix, CudaError> {
        Ok(download(stream, &self.rows.normed, 0, [rows, self.dims.hidden])?)
    }

    /// What the cache would hold of each row of the last pass, of one layer: `[rows, latent + rope]`.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn latents(&self, stream: &Stream, layer: usize, rows: usize) -> Result<Matrix, CudaError> {
        within("a layer", layer, self.dims.layers.saturating_sub(1))?;
        within("the number of rows", rows, self.limits.rows)?;
        let width = self.dims.attention.cache_width();
        Ok(download(stream, &self.scratch, layer * self.limits.rows * width, [rows, width])?)
    }

    /// The tapped residuals of each row of the last pass: a matrix `[rows, hidden]` for each tap.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn taps(&self, stream: &Stream, rows: usize) -> Result<Vec<Matrix>, CudaError> {
        self.rows.download_taps(stream, rows)
    }

    /// Logits of the rows that the head was applied to last: `[rows, vocab]`.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn logits(&self, stream: &Stream, rows: usize) -> Result<Matrix, CudaError> {
        Ok(download_f32(stream, &self.head.logits, [rows, self.dims.vocab])?)
    }

    /// Logits of one of the rows that the head was applied to last: `[vocab]`.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn logits_of(&self, stream: &Stream, row: usize) -> Result<Vec<f32>, CudaError> {
        within("a row of logits", row, self.limits.rows.saturating_sub(1))?;
        let vocab = self.dims.vocab;
        let own = self.head.logits.slice(row * vocab..(row + 1) * vocab);
        let copied = stream.cuda().clone_dtoh(&own);
        let logits = copied.map_err(|error| KernelError::driver("copying a row of logits", error))?;
        stream.synchronize()?;
        Ok(logits)
    }

    /// The tapped residuals of the rows of the last commit, for the drafter: `[count, taps · hidden]`, zeros for moves that
    /// moved nothing.
    ///
    /// # Errors
    /// More rows than planned.
    pub fn kept_taps(&self, count: usize) -> Result<CudaView<'_, bf16>, KernelError> {
        self.rows.kept(count)
    }

    /// Logits on the device, `[rows, vocab]`.
    ///
    /// # Errors
    /// More rows than planned.
    pub fn device_logits(&self, rows: usize) -> Result<CudaView<'_, f32>, KernelError> {
        self.head.logits.try_slice(..rows * self.dims.vocab).ok_or_else(|| KernelError::BadTensor {
            shape: vec![rows, self.dims.vocab],
            what: format!("logits were planned for {} rows", self.limits.rows),
        })
    }
}

impl Limits {
    /// Bytes of a [`PassState`] of one rank.
    ///
    /// # Errors
    /// More rows than the experts can run.
    pub fn bytes(&self, dims: &Dims, taps: usize) -> Result<usize, CudaError> {
        let (a, width) = (&dims.attention, dims.attention.cache_width());
        let halves = dims.hidden + a.heads * (width + a.latent) + dims.layers * width;
        let words = dims.vocab + 4 * dims.vocab.div_ceil(HEAD_TILE);
        let pages = dims.layers * self.pages * PAGE_TOKENS * dims.entry_bytes();
        let partial = self.partial_rows(a.heads) * (a.latent + 2) + self.positions() * a.rope;
        Ok(RowState::bytes(dims, self.rows, taps, Arithmetic::Grouped)?
            + DenseScratch::bytes(self.rows, dims.hidden)
            + pages
            + 2 * self.rows * halves
            + 4 * (self.rows * words + partial))
    }
}
