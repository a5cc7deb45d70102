//! The memory of rows on their way through the layers, shared by tree passes and prompt chunks.

use half::bf16;
use kd_kernels::{CudaSlice, CudaView, Fork, KernelError, Stream, TensorMut};
use kd_moe::gpu::{Arithmetic, Plan, Scratch};
use kd_tensor::Matrix;

use super::error::within;
use super::memory::{download, part_mut, zeros};
use super::{CudaError, Dims};

/// Activations of up to `limit` rows.
#[derive(Debug)]
pub(crate) struct RowState {
    pub(crate) limit: usize,
    width: usize,
    /// Layers whose output is kept, in the order of the slots.
    pub(crate) taps: Vec<usize>,
    /// `[rows, hidden]`: the residual stream.
    pub(crate) hidden: CudaSlice<bf16>,
    /// `[1, hidden]`: the residual stream of a single row between attention and experts, where launches make their own sums.
    pub(crate) between: CudaSlice<bf16>,
    /// `[1, hidden]`: what attention adds to it.
    pub(crate) attended: CudaSlice<bf16>,
    /// `[rows, hidden]`: the residual stream, normed for what comes next.
    pub(crate) normed: CudaSlice<bf16>,
    /// `[rows, q_rank + latent + rope]`
    pub(crate) joint: CudaSlice<bf16>,
    /// `[rows, q_rank]`
    pub(crate) low: CudaSlice<bf16>,
    /// `[rows, heads, nope + rope]`
    pub(crate) queries: CudaSlice<bf16>,
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
    /// `[taps, rows, hidden]`
    pub(crate) tapped: CudaSlice<bf16>,
    /// `[rows, taps, hidden]` of committed rows.
    pub(crate) kept: CudaSlice<bf16>,
    /// Where the shared expert runs beside the routed ones.
    pub(crate) fork: Fork,
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
    /// `[rows, experts]`, zero between launches.
    pub(crate) arrived: CudaSlice<i32>,
    /// `[2]`, likewise.
    pub(crate) met: CudaSlice<i32>,
}

impl RowState {
    pub(crate) fn new(
        stream: &Stream,
        dims: &Dims,
        rows: usize,
        taps: &[usize],
        exchanged: usize,
        arithmetic: Arithmetic,
    ) -> Result<Self, CudaError> {
        let hidden = dims.hidden;
        let highest = taps.iter().copied().max().unwrap_or_default();
        within("a tapped layer", highest, dims.layers.saturating_sub(1))?;
        let tapped = (taps.len() * rows * hidden).max(1);
        Ok(Self {
            hidden: zeros!(stream, rows * hidden)?,
            between: zeros!(stream, hidden)?,
            attended: zeros!(stream, hidden)?,
            normed: zeros!(stream, rows * hidden)?,
            joint: zeros!(stream, rows * dims.joint())?,
            low: zeros!(stream, rows * dims.q_rank)?,
            queries: zeros!(stream, rows * dims.queries())?,
            values: zeros!(stream, rows * dims.values())?,
            parts: zeros!(stream, 2 * rows * hidden)?,
            room: zeros!(stream, if exchanged > 1 { 2 * exchanged * rows * hidden } else { 1 })?,
            gate_up: zeros!(stream, rows * 2 * dims.widest())?,
            gated: zeros!(stream, rows * dims.widest())?,
            routing: RoutingState {
                scores: zeros!(stream, rows * dims.experts.experts)?,
                ids: zeros!(stream, rows * dims.experts.top_k)?,
                weights: zeros!(stream, rows * dims.experts.top_k)?,
                arrived: zeros!(stream, rows * dims.experts.experts)?,
                met: zeros!(stream, 2)?,
            },
            experts: Scratch::new(stream, Plan::new(dims.experts, rows, arithmetic)?)?,
            tapped: zeros!(stream, tapped)?,
            kept: zeros!(stream, tapped)?,
            fork: Fork::new(stream)?,
            limit: rows,
            width: hidden,
            taps: taps.to_vec(),
        })
    }

    /// Bytes of [`RowState::new`] for one rank.
    pub(crate) fn bytes(
        dims: &Dims,
        rows: usize,
        taps: usize,
        arithmetic: Arithmetic,
    ) -> Result<usize, CudaError> {
        let halves = (4 + 2 * taps) * dims.hidden
            + dims.joint()
            + dims.q_rank
            + dims.queries()
            + dims.values()
            + 3 * dims.widest();
        let words = 2 * dims.experts.experts + 2 * dims.experts.top_k;
        let experts = Plan::new(dims.experts, rows, arithmetic)?.bytes()?;
        Ok(rows * (2 * halves + 4 * words) + 4 * dims.hidden + 8 + experts)
    }

    /// Where a launch of `count` rows leaves the residual stream after layer `ended`: nowhere, unless that is tapped. `tapped` is this
    /// state's, of `taps` with `limit` rows each.
    pub(crate) fn tap<'a>(
        stream: &Stream,
        tapped: &'a mut CudaSlice<bf16>,
        taps: &[usize],
        ended: Option<usize>,
        [limit, count, hidden]: [usize; 3],
    ) -> Result<TensorMut<'a, bf16, 2>, KernelError> {
        let slot = ended.and_then(|ended| taps.iter().position(|tap| *tap == ended));
        let shape = [count, hidden];
        slot.map_or(Ok(TensorMut::none(shape)), |slot| part_mut(stream, tapped, slot * limit * hidden, shape))
    }

    pub(crate) fn download_hidden(&self, stream: &Stream, rows: usize) -> Result<Matrix, CudaError> {
        Ok(download(stream, &self.hidden, 0, [rows, self.width])?)
    }

    pub(crate) fn download_taps(&self, stream: &Stream, rows: usize) -> Result<Vec<Matrix>, CudaError> {
        within("the number of rows", rows, self.limit)?;
        let at =
            |slot: usize| download(stream, &self.tapped, slot * self.limit * self.width, [rows, self.width]);
        Ok((0..self.taps.len()).map(at).collect::<Result<_, _>>()?)
    }

    pub(crate) fn kept(&self, count: usize) -> Result<CudaView<'_, bf16>, KernelError> {
        let values = count * self.taps.len() * self.width;
        self.kept.try_slice(..values).ok_or_else(|| KernelError::BadTensor {
            shape: vec![count, self.taps.len(), self.width],
            what: format!("commits were planned for {} rows", self.limit),
        })
    }
}
