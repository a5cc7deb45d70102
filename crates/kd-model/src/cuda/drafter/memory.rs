//! Everything that drafts write, allocated once for the largest one.

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_kernels::{CudaSlice, DenseScratch, HEAD_TILE, Stream};

use super::DraftDims;
use super::inputs::DraftLimits;
use super::rows::TOP;
use crate::cuda::CudaError;
use crate::cuda::memory::zeros;

/// The device memory of one drafter. Rows are those of blocks, or context tokens.
#[derive(Debug)]
pub(super) struct DraftMemory {
    /// `[positions, head_dim]`: cosine and sine of each pair.
    pub(super) rope: CudaSlice<f32>,
    /// `[layers, pages · 64, 2, kv_heads, head_dim]`
    pub(super) cache: CudaSlice<bf16>,
    /// `[streams, block]`
    pub(super) ids: CudaSlice<i32>,
    pub(super) positions: CudaSlice<i32>,
    /// `[rows, hidden]`: the residual stream.
    pub(super) hidden: CudaSlice<bf16>,
    /// `[rows, hidden]`: normed for what comes next.
    pub(super) normed: CudaSlice<bf16>,
    /// `[rows, hidden]`: this rank's part of what is added to the residual stream.
    pub(super) part: CudaSlice<bf16>,
    /// Parts of all ranks.
    pub(super) room: CudaSlice<bf16>,
    /// `[tokens, tap columns]` of this rank, where it has not all of them.
    pub(super) taps: CudaSlice<bf16>,
    /// `[tokens, layers, 2, kv_heads, head_dim]`
    pub(super) context: CudaSlice<bf16>,
    /// `[rows, heads + 2 · kv_heads, head_dim]`
    pub(super) qkv: CudaSlice<bf16>,
    /// `[rows, heads, head_dim]`
    pub(super) queries: CudaSlice<bf16>,
    /// `[rows, 2, kv_heads, head_dim]`
    pub(super) own: CudaSlice<bf16>,
    /// `[rows, heads, head_dim]`
    pub(super) mixed: CudaSlice<bf16>,
    /// `[streams, kv_heads, splits, block · group, head_dim]` and, of each row, two.
    pub(super) part_o: CudaSlice<f32>,
    pub(super) part_ml: CudaSlice<f32>,
    /// `[rows, 2 · width]` and `[rows, width]`
    pub(super) gate_up: CudaSlice<bf16>,
    pub(super) gated: CudaSlice<bf16>,
    /// Of all products.
    pub(super) scratch: DenseScratch,
    /// Rows of a block that predict a token, of all streams.
    pub(super) predicting: CudaSlice<i32>,
    /// `[predicting, hidden]`
    pub(super) last: CudaSlice<bf16>,
    /// `[predicting, vocab]`
    pub(super) logits: CudaSlice<f32>,
    /// `[predicting, ceil(vocab / 80), 4]`
    pub(super) tiles: CudaSlice<f32>,
    /// `[predicting, 64]`
    pub(super) tokens: CudaSlice<i32>,
    pub(super) values: CudaSlice<f32>,
    /// `[predicting, 2]`
    pub(super) stats: CudaSlice<f32>,
    /// `[predicting]`
    pub(super) finite: CudaSlice<i32>,
}

impl DraftMemory {
    pub(super) fn new(stream: &Stream, dims: &DraftDims, limits: DraftLimits) -> Result<Self, CudaError> {
        limits.check_room(stream, dims)?;
        let (blocks, h) = (limits.streams * dims.block, dims.hidden);
        let (rows, drafted) = (blocks.max(limits.tokens), limits.streams * dims.drafted());
        let partial = limits.streams * dims.splits() * dims.block * dims.heads;
        let angles = dims.rope.table(0..limits.positions(dims.block));
        let angles: Vec<f32> = angles.values().iter().flat_map(|(cos, sin)| [*cos, *sin]).collect();
        let row = |row: usize| i32::try_from(row).unwrap_or(-1);
        let of_stream = |s: usize| (1..dims.block).map(move |k| row(s * dims.block + k));
        let predicting: Vec<i32> = (0..limits.streams).flat_map(of_stream).collect();
        let copied = |error| kd_kernels::KernelError::driver("copying constants of the drafter", error);
        Ok(Self {
            rope: stream.cuda().clone_htod(&angles).map_err(copied)?,
            cache: zeros!(stream, dims.layers.len() * limits.pages * PAGE_TOKENS * dims.entry())?,
            ids: zeros!(stream, blocks)?,
            positions: zeros!(stream, blocks)?,
            hidden: zeros!(stream, rows * h)?,
            normed: zeros!(stream, rows * h)?,
            part: zeros!(stream, rows * h)?,
            room: zeros!(stream, 1)?,
            taps: zeros!(stream, if dims.ranks > 1 { limits.tokens * dims.tap_columns() } else { 1 })?,
            context: zeros!(stream, limits.tokens * dims.layers.len() * dims.entry())?,
            qkv: zeros!(stream, blocks * (dims.queries() + dims.entry()))?,
            queries: zeros!(stream, blocks * dims.queries())?,
            own: zeros!(stream, blocks * dims.entry())?,
            mixed: zeros!(stream, blocks * dims.queries())?,
            part_o: zeros!(stream, partial * dims.head_dim)?,
            part_ml: zeros!(stream, partial * 2)?,
            gate_up: zeros!(stream, blocks * 2 * dims.width)?,
            gated: zeros!(stream, blocks * dims.width)?,
            scratch: DenseScratch::few(stream, rows, h)?,
            predicting: stream.cuda().clone_htod(&predicting).map_err(copied)?,
            last: zeros!(stream, drafted * h)?,
            logits: zeros!(stream, drafted * dims.vocab)?,
            tiles: zeros!(stream, drafted * dims.vocab.div_ceil(HEAD_TILE) * 4)?,
            tokens: zeros!(stream, drafted * TOP)?,
            values: zeros!(stream, drafted * TOP)?,
            stats: zeros!(stream, drafted * 2)?,
            finite: zeros!(stream, drafted)?,
        })
    }
}
