//! The target on one GPU: loading, the pass, the head and the commit.

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_kernels::families::{embed, gather_taps, lm_head};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, CudaSlice, Device, HEAD_TILE, Kernels, Search, Stream, TensorRef};
use kd_moe::Routing;

use super::CudaError;
use super::attention::tree_pass;
use super::cache::{Moved, Pages};
use super::dims::Dims;
use super::error::within;
use super::kernels::TargetKernels;
use super::limits::{Bucket, Limits};
use super::memory::{download_f32, head, head_mut};
use super::rows::RowState;
use super::state::{HeadState, PassState};
use super::upload::DeviceMatrix;
use super::weights::{DeviceLayer, LayerLoader};
use crate::target::Target;
use crate::trace::Trace;

/// One rank of a target in device memory, with the kernels of its shape. Passes change [`PassState`]s alone.
#[derive(Debug)]
pub struct CudaTarget {
    pub(crate) dims: Dims,
    pub(crate) kernels: TargetKernels,
    pub(crate) embed: DeviceMatrix,
    pub(crate) layers: Vec<DeviceLayer>,
    pub(crate) norm: CudaSlice<bf16>,
    pub(crate) head: DeviceMatrix,
}

/// Opens the kernels of the profile that `target` has the shape of.
///
/// # Errors
/// A shape without a profile, or a profile without a bundle: both say what to build.
pub fn open_kernels(device: &Device, search: &Search, target: &Target) -> Result<Kernels, CudaError> {
    let dims = Dims::of_target(target, 0)?;
    Ok(Kernels::open(device, dims.profile, search)?)
}

impl CudaTarget {
    /// Fails unless `kernels` has all that a target of `dims` launches.
    ///
    /// # Errors
    /// A unit that the bundle lacks.
    pub fn check(kernels: &Kernels, dims: &Dims) -> Result<(), CudaError> {
        TargetKernels::load(kernels, dims).and_then(|_| super::prefill::check(kernels, dims))
    }

    /// Brings rank `rank` of `target` to the device, layer by layer: beside the weights in their place it takes the memory
    /// of one expert. `progress` is called with the layers that are there and their number.
    ///
    /// # Errors
    /// A configuration that is not implemented on GPUs, kernels of another shape, too little memory, a failed copy.
    ///
    /// # Panics
    /// If `target` has no such rank.
    pub fn load(
        stream: &Stream,
        kernels: &Kernels,
        target: &Target,
        rank: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CudaError> {
        let dims = Dims::of_target(target, rank)?;
        super::plan::room_for_weights(stream, &dims)?;
        let loaded = TargetKernels::load(kernels, &dims)?;
        let mut loader = LayerLoader::new(stream, kernels, &dims)?;
        let span = rank * dims.vocab..(rank + 1) * dims.vocab;
        let embed = loader.upload.matrix(&target.embed.slice_rows(span.clone()))?;
        let head = loader.upload.matrix(&target.head.slice_rows(span))?;
        let norm = loader.upload.gains(&target.norm)?;
        let mut layers = Vec::with_capacity(dims.layers);
        for layer in &target.ranks[rank] {
            layers.push(loader.layer(layer)?);
            progress(layers.len(), dims.layers);
        }
        stream.synchronize()?;
        drop(loader);
        Ok(Self { dims, kernels: loaded, embed, layers, norm, head })
    }

    /// Sizes and constants.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// `embed_tokens` of this rank, which a drafter without an embedding of its own borrows.
    pub fn embedding(&self) -> &DeviceMatrix {
        &self.embed
    }

    /// `lm_head` of this rank, which a drafter without a head of its own borrows.
    pub fn head_matrix(&self) -> &DeviceMatrix {
        &self.head
    }

    /// Memory for passes within `limits`. `taps` are layers, counted from 0, whose output is kept for the drafter;
    /// `exchanged` is how many parts the exchange between ranks gives.
    ///
    /// # Errors
    /// Too little memory, with what would fit; a tap that is no layer.
    pub fn state(
        &self,
        stream: &Stream,
        limits: Limits,
        taps: &[usize],
        exchanged: usize,
    ) -> Result<PassState, CudaError> {
        super::plan::room_for_state(stream, &self.dims, limits, taps.len())?;
        PassState::new(stream, &self.dims, limits, taps, exchanged)
    }

    /// How tree attention works on passes of a bucket within limits: passes alike in this and in rows and streams may share a graph.
    /// Weights are not needed. It fails where a bundle has no variant for a bucket.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn attention(
        kernels: &Kernels,
        dims: &Dims,
    ) -> Result<impl Fn(Limits, Bucket) -> Result<&'static str, CudaError> + use<>, CudaError> {
        let (cache, heads) = (TargetKernels::load(kernels, dims)?.cache, dims.attention.heads);
        Ok(move |limits: Limits, Bucket { rows, streams, pages }| {
            Ok(cache.variant([rows, limits.pages, streams, pages, limits.partial_rows(heads)])?)
        })
    }

    /// Enqueues a pass over what `state.inputs` holds when the stream gets there: embedding, all layers, final norm. It
    /// writes scratch and taps, never pages. Safe to capture in a graph.
    ///
    /// # Errors
    /// A bucket beyond the limits, a refused launch.
    pub fn forward(
        &self,
        stream: &Stream,
        state: &mut PassState,
        bucket: Bucket,
        exchange: &dyn Exchange,
    ) -> Result<(), CudaError> {
        self.run(stream, state, bucket, exchange, None)
    }

    /// As [`CudaTarget::forward`], with an observer of the first `rows` rows: every layer is waited for.
    ///
    /// # Errors
    /// As [`CudaTarget::forward`], or a failed copy.
    pub fn forward_traced(
        &self,
        stream: &Stream,
        state: &mut PassState,
        bucket: Bucket,
        exchange: &dyn Exchange,
        trace: &mut dyn Trace,
        rows: usize,
    ) -> Result<(), CudaError> {
        within("the number of observed rows", rows, bucket.rows)?;
        self.run(stream, state, bucket, exchange, Some((trace, rows)))
    }

    fn run(
        &self,
        stream: &Stream,
        state: &mut PassState,
        bucket: Bucket,
        exchange: &dyn Exchange,
        mut watch: Option<(&mut dyn Trace, usize)>,
    ) -> Result<(), CudaError> {
        let (mut pass, mut attention) = tree_pass(stream, self, state, bucket, exchange)?;
        pass.joins = watch.is_none();
        let tokens = attention.inputs.tokens(bucket.rows)?;
        pass.embed(TensorRef::new(stream, tokens, [bucket.rows])?)?;
        if let Some((trace, rows)) = &mut watch {
            trace.hidden(0, &pass.rows.download_hidden(stream, *rows)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            attention.run(&mut pass, index, layer)?;
            pass.finish(index, layer)?;
            if let Some((trace, rows)) = &mut watch {
                trace.attention(index, *rows);
                if self.dims.moe[index] {
                    trace.routing(index, &self.routing(stream, pass.rows, *rows)?);
                }
                trace.hidden(index + 1, &pass.rows.download_hidden(stream, *rows)?);
            }
        }
        Ok(())
    }

    fn routing(&self, stream: &Stream, state: &RowState, rows: usize) -> Result<Routing, CudaError> {
        let (top_k, routing) = (self.dims.router.top_k, &state.routing);
        let copying = |error| kd_kernels::KernelError::driver("copying a routing", error);
        let ids = stream.cuda().clone_dtoh(&routing.ids.slice(..rows * top_k)).map_err(copying)?;
        let weights = stream.cuda().clone_dtoh(&routing.weights.slice(..rows * top_k)).map_err(copying)?;
        let scores = download_f32(stream, &routing.scores, [rows, self.dims.experts.experts])?;
        Ok(Routing { top_k, ids: ids.into_iter().map(i32::cast_unsigned).collect(), weights, scores })
    }

    /// Enqueues the head over the first `rows` rows of the last pass.
    ///
    /// # Errors
    /// More rows than planned, a refused launch.
    pub fn logits(&self, stream: &Stream, state: &mut PassState, rows: usize) -> Result<(), CudaError> {
        let x = head(stream, &state.rows.normed, [rows, self.dims.hidden])?;
        let HeadState { logits, tiles, .. } = &mut state.head;
        self.apply_head(stream, x, logits, tiles)
    }

    /// Enqueues the head over rows of the last pass, those that [`super::PassInputs::choose`] named, `count` of them.
    ///
    /// # Errors
    /// More rows than planned, a refused launch.
    pub fn chosen_logits(
        &self,
        stream: &Stream,
        state: &mut PassState,
        count: usize,
    ) -> Result<(), CudaError> {
        let PassState { inputs, limits, rows, head: own, .. } = state;
        let table = head(stream, &rows.normed, [limits.rows, self.dims.hidden])?;
        let ids = TensorRef::new(stream, inputs.chosen(count)?, [count])?;
        self.gathered_logits(stream, own, table, ids)
    }

    /// The head over rows `ids` of `table`.
    pub(crate) fn gathered_logits(
        &self,
        stream: &Stream,
        own: &mut HeadState,
        table: TensorRef<'_, bf16, 2>,
        ids: TensorRef<'_, i32, 1>,
    ) -> Result<(), CudaError> {
        let shape = [ids.shape()[0], self.dims.hidden];
        // Rows are gathered as an embedding's are.
        let args = embed::Args { table, ids, rank: 0, y: head_mut(stream, &mut own.x, shape)? };
        self.kernels.embed.launch(stream, Choice::Auto, args)?;
        let HeadState { x, logits, tiles, .. } = own;
        self.apply_head(stream, head(stream, x, shape)?, logits, tiles)
    }

    fn apply_head(
        &self,
        stream: &Stream,
        x: TensorRef<'_, bf16, 2>,
        logits: &mut CudaSlice<f32>,
        tiles: &mut CudaSlice<f32>,
    ) -> Result<(), CudaError> {
        let ([rows, _], vocab) = (x.shape(), self.dims.vocab);
        let args = lm_head::Args {
            x,
            w: self.head.tensor(stream)?,
            logits: head_mut(stream, logits, [rows, vocab])?,
            tiles: head_mut(stream, tiles, [rows, vocab.div_ceil(HEAD_TILE), 4])?,
        };
        self.kernels.lm_head.launch(stream, args)?;
        Ok(())
    }

    /// Enqueues a commit of up to `count` rows, those that `state.inputs` names when the stream gets there: latents of all
    /// layers into pages, and their taps side by side ([`PassState::kept_taps`]). Safe to capture in a graph.
    ///
    /// # Errors
    /// More rows than planned, a refused launch.
    pub fn commit(&self, stream: &Stream, state: &mut PassState, count: usize) -> Result<(), CudaError> {
        let PassState { inputs, rows, scratch, pages, limits, .. } = state;
        let from = TensorRef::new(stream, inputs.moves_from(count)?, [count])?;
        let to = TensorRef::new(stream, inputs.moves_to(count)?, [count])?;
        self.move_rows(stream, (scratch, pages, rows), *limits, [from, to])
    }

    /// As [`CudaTarget::commit`], of the roots of the first `streams` streams of the pass: all that a pass without trees commits.
    /// Row `s` of [`PassState::kept_taps`] has the taps of stream `s`.
    ///
    /// # Errors
    /// More streams than planned, a refused launch.
    pub fn commit_roots(
        &self,
        stream: &Stream,
        state: &mut PassState,
        streams: usize,
    ) -> Result<(), CudaError> {
        let PassState { inputs, rows, scratch, pages, limits, .. } = state;
        within("the number of streams of a pass", streams, limits.streams)?;
        let from = inputs.starts(streams)?.slice(..streams);
        let from = TensorRef::new(stream, from, [streams])?;
        let to = TensorRef::new(stream, inputs.roots(streams)?, [streams])?;
        self.move_rows(stream, (scratch, pages, rows), *limits, [from, to])
    }

    /// Latents from scratch to pages, and their taps side by side: rows `from` to `to`.
    pub(crate) fn move_rows(
        &self,
        stream: &Stream,
        (scratch, pages, rows): (&CudaSlice<bf16>, &mut Pages, &mut RowState),
        limits: Limits,
        [from, to]: [TensorRef<'_, i32, 1>; 2],
    ) -> Result<(), CudaError> {
        let (dims, width, [count]) = (&self.dims, self.dims.attention.cache_width(), from.shape());
        let scratch = head(stream, scratch, [dims.layers, limits.rows, width])?;
        let moved = Moved { scratch, first: 0, from, to };
        self.kernels.cache.commit(stream, dims, pages, moved, limits.pages * PAGE_TOKENS)?;
        let RowState { taps, tapped, kept, .. } = rows;
        if taps.is_empty() {
            return Ok(());
        }
        let args = gather_taps::Args {
            taps: head(stream, tapped, [taps.len(), limits.rows, dims.hidden])?,
            rows: from,
            y: head_mut(stream, kept, [count, taps.len(), dims.hidden])?,
        };
        self.kernels.gather_taps.launch(stream, Choice::Auto, args)?;
        Ok(())
    }
}
