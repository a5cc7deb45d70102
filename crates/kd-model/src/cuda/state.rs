//! Everything that a pass writes, allocated once for the largest one.

use half::bf16;
use kd_attn::{Leaves, PAGE_TOKENS};
use kd_kernels::{CudaSlice, CudaView, KernelError, Stream};
use kd_moe::gpu::{Plan, Scratch};
use kd_tensor::Matrix;

use super::error::within;
use super::inputs::{Bucket, Limits, PassInputs};
use super::memory::{download, download_f32, zeros};
use super::{CudaError, Dims};

/// Tokens that `lm_head_top_k` finds a row.
pub const TOP: usize = 64;

/// The device memory of passes within [`Limits`]: inputs, pages, scratch and results.
#[derive(Debug)]
pub struct PassState {
    /// What the next pass reads.
    pub inputs: PassInputs,
    pub(crate) limits: Limits,
    pub(crate) dims: Dims,
    /// Layers whose output is kept, in the order of the slots.
    pub(crate) taps: Vec<usize>,
    /// `[positions, rope]`: cosine and sine of each pair.
    pub(crate) rope: CudaSlice<f32>,
    /// `[layers, pages · 64, latent + rope]`
    pub(crate) pages: CudaSlice<bf16>,
    /// `[layers, rows, latent + rope]`
    pub(crate) scratch: CudaSlice<bf16>,
    /// `[rows, hidden]`: the residual stream.
    pub(crate) hidden: CudaSlice<bf16>,
    /// `[rows, hidden]`: the residual stream, normed for what comes next.
    pub(crate) normed: CudaSlice<bf16>,
    /// `[rows, q_rank + latent + rope]`
    pub(crate) joint: CudaSlice<bf16>,
    /// `[rows, q_rank]`
    pub(crate) low: CudaSlice<bf16>,
    /// `[rows, heads, nope + rope]`
    pub(crate) queries: CudaSlice<bf16>,
    /// `[rows, heads, latent + rope]`
    pub(crate) absorbed: CudaSlice<bf16>,
    /// `[rows, heads, latent]`
    pub(crate) mixed: CudaSlice<bf16>,
    /// `[rows, heads, value]`
    pub(crate) values: CudaSlice<bf16>,
    /// `[2, rows, hidden]`: what is added to the residual stream; of a layer with experts two parts.
    pub(crate) parts: CudaSlice<bf16>,
    /// Parts of all ranks.
    pub(crate) room: CudaSlice<bf16>,
    /// `[rows, 2 · width]` and `[rows, width]` of the wider MLP.
    pub(crate) gate_up: CudaSlice<bf16>,
    pub(crate) gated: CudaSlice<bf16>,
    pub(crate) routing: RoutingState,
    pub(crate) experts: Scratch,
    /// `[partial, latent]` and `[partial, 2]`
    pub(crate) part_o: CudaSlice<f32>,
    pub(crate) part_ml: CudaSlice<f32>,
    /// `[taps, rows, hidden]`
    pub(crate) tapped: CudaSlice<bf16>,
    /// `[rows, taps, hidden]` of the rows of the last commit.
    pub(crate) kept: CudaSlice<bf16>,
    pub(crate) head: HeadState,
}

/// What the router chooses.
#[derive(Debug)]
pub(crate) struct RoutingState {
    /// `[rows, experts]`
    pub(crate) scores: CudaSlice<f32>,
    /// `[rows, top_k]`
    pub(crate) ids: CudaSlice<i32>,
    /// `[rows, top_k]`
    pub(crate) weights: CudaSlice<f32>,
    /// Zero between launches.
    pub(crate) arrived: CudaSlice<i32>,
}

/// Logits and their best tokens.
#[derive(Debug)]
pub(crate) struct HeadState {
    /// `[rows, hidden]`: chosen rows, normed.
    pub(crate) x: CudaSlice<bf16>,
    /// `[rows, vocab]`
    pub(crate) logits: CudaSlice<f32>,
    /// `[rows, ceil(vocab / 128), 4]`
    pub(crate) tiles: CudaSlice<f32>,
    /// `[rows, 64]`
    pub(crate) tokens: CudaSlice<i32>,
    /// `[rows, 64]`
    pub(crate) values: CudaSlice<f32>,
    /// `[rows, 2]`
    pub(crate) stats: CudaSlice<f32>,
    /// `[rows]`
    pub(crate) finite: CudaSlice<i32>,
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
        let (a, hidden, width) = (&dims.attention, dims.hidden, dims.attention.cache_width());
        let highest = taps.iter().copied().max().unwrap_or_default();
        within("a tapped layer", highest, dims.layers.saturating_sub(1))?;
        let angles = dims.rope.table(0..limits.positions());
        let angles: Vec<f32> = angles.values().iter().flat_map(|(cos, sin)| [*cos, *sin]).collect();
        let partial = limits.partial_rows(dims);
        let tiles = dims.vocab.div_ceil(128);
        Ok(Self {
            inputs: PassInputs::new(stream, limits, dims.vocab)?,
            rope: kd_kernels::selftest::upload(stream, &angles)?,
            pages: zeros!(stream, dims.layers * pages * PAGE_TOKENS * width)?,
            scratch: zeros!(stream, dims.layers * rows * width)?,
            hidden: zeros!(stream, rows * hidden)?,
            normed: zeros!(stream, rows * hidden)?,
            joint: zeros!(stream, rows * dims.joint())?,
            low: zeros!(stream, rows * dims.q_rank)?,
            queries: zeros!(stream, rows * dims.queries())?,
            absorbed: zeros!(stream, rows * a.heads * width)?,
            mixed: zeros!(stream, rows * a.heads * a.latent)?,
            values: zeros!(stream, rows * dims.values())?,
            parts: zeros!(stream, 2 * rows * hidden)?,
            room: zeros!(stream, if exchanged > 1 { 2 * exchanged * rows * hidden } else { 1 })?,
            gate_up: zeros!(stream, rows * 2 * dims.widest())?,
            gated: zeros!(stream, rows * dims.widest())?,
            routing: RoutingState {
                scores: zeros!(stream, rows * dims.experts.experts)?,
                ids: zeros!(stream, rows * dims.experts.top_k)?,
                weights: zeros!(stream, rows * dims.experts.top_k)?,
                arrived: zeros!(stream, rows)?,
            },
            experts: Scratch::new(stream, Plan::new(dims.experts, rows)?)?,
            part_o: zeros!(stream, partial * a.latent)?,
            part_ml: zeros!(stream, partial * 2)?,
            tapped: zeros!(stream, (taps.len() * rows * hidden).max(1))?,
            kept: zeros!(stream, (taps.len() * rows * hidden).max(1))?,
            head: HeadState {
                x: zeros!(stream, rows * hidden)?,
                logits: zeros!(stream, rows * dims.vocab)?,
                tiles: zeros!(stream, rows * tiles * 4)?,
                tokens: zeros!(stream, rows * TOP)?,
                values: zeros!(stream, rows * TOP)?,
                stats: zeros!(stream, rows * 2)?,
                finite: zeros!(stream, rows)?,
            },
            limits,
            dims: dims.clone(),
            taps: taps.to_vec(),
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
        Ok(download(stream, &self.hidden, 0, [rows, self.dims.hidden])?)
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
        within("the number of rows", rows, self.limits.rows)?;
        let (width, slots) = (self.dims.hidden, 0..self.taps.len());
        let at = |slot: usize| slot * self.limits.rows * width;
        Ok(slots
            .map(|slot| download(stream, &self.tapped, at(slot), [rows, width]))
            .collect::<Result<_, _>>()?)
    }

    /// Logits of the rows that the head was applied to last: `[rows, vocab]`.
    ///
    /// # Errors
    /// As [`PassState::hidden`].
    pub fn logits(&self, stream: &Stream, rows: usize) -> Result<Matrix, CudaError> {
        Ok(download_f32(stream, &self.head.logits, [rows, self.dims.vocab])?)
    }

    /// The tapped residuals of the rows of the last commit, for the drafter: `[count, taps · hidden]`, zeros for moves that
    /// moved nothing.
    ///
    /// # Errors
    /// More rows than planned.
    pub fn kept_taps(&self, count: usize) -> Result<CudaView<'_, bf16>, KernelError> {
        let values = count * self.taps.len() * self.dims.hidden;
        self.kept.try_slice(..values).ok_or_else(|| KernelError::BadTensor {
            shape: vec![count, self.taps.len(), self.dims.hidden],
            what: format!("commits were planned for {} rows", self.limits.rows),
        })
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
    /// Rows of partial results of attention: every row could belong to a stream of the longest context.
    fn partial_rows(&self, dims: &Dims) -> usize {
        let leaves = Leaves::new(dims.attention.heads).at(self.positions()) + 1;
        self.rows * dims.attention.heads * leaves
    }

    /// Bytes of a [`PassState`], but for the experts' scratch.
    pub fn bytes(&self, dims: &Dims, taps: usize) -> usize {
        let (a, width) = (&dims.attention, dims.attention.cache_width());
        let row = (6 + 2 * taps) * dims.hidden
            + dims.joint()
            + dims.q_rank
            + dims.queries()
            + a.heads * (width + a.latent)
            + dims.values()
            + 3 * dims.widest()
            + dims.layers * width;
        let wide = dims.vocab + dims.vocab.div_ceil(32) + dims.experts.experts + 2 * TOP;
        let pages = dims.layers * self.pages * PAGE_TOKENS * width;
        2 * (self.rows * row + pages)
            + 4 * (self.rows * wide + self.partial_rows(dims) * (a.latent + 2) + self.positions() * a.rope)
    }
}
