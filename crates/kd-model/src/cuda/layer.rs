//! The launches of one pass, layer by layer.

use kd_kernels::families::{
    absorb_query, absorb_value, add_rms_norm, mla_inputs, query_rope, router, silu_mul, tree_mla,
    tree_mla_merge,
};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, CudaSlice, Stream, TensorRef};
use kd_moe::gpu::Batch;

use half::bf16;
use kd_attn::PAGE_TOKENS;

use super::CudaError;
use super::inputs::Bucket;
use super::memory::{head, head_mut, part, part_mut};
use super::state::PassState;
use super::target::CudaTarget;
use super::weights::{DeviceFeedForward, DeviceLayer, DeviceMlp, DeviceMoe};

/// One pass on its way.
pub(crate) struct Pass<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) target: &'a CudaTarget,
    pub(crate) state: &'a mut PassState,
    pub(crate) bucket: Bucket,
    pub(crate) exchange: &'a dyn Exchange,
}

impl Pass<'_> {
    /// Attention of layer `index` over the normed rows: one part of what is added to the residual stream.
    pub(crate) fn attention(&mut self, index: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        self.attention_inputs(index, layer)?;
        self.attend(index)?;
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (kernels, a) = (&target.kernels, &target.dims.attention);
        let args = absorb_value::Args {
            o: head(stream, &state.mixed, [*rows, a.heads, a.latent])?,
            w: head(stream, &layer.value_up.data, [a.heads, a.value, a.latent])?,
            y: head_mut(stream, &mut state.values, [*rows, a.heads, a.value])?,
        };
        kernels.absorb_value.launch(stream, Choice::Auto, args)?;
        let values = head(stream, &state.values, [*rows, target.dims.values()])?;
        let out = head_mut(stream, &mut state.parts, [*rows, target.dims.hidden])?;
        Ok(kernels.products.launch(stream, values, layer.output.tensor(stream)?, out)?)
    }

    /// Absorbed queries, and the rows' own entries in scratch.
    fn attention_inputs(&mut self, index: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (rows, stream) = (*rows, *stream);
        let (kernels, dims, a) = (&target.kernels, &target.dims, &target.dims.attention);
        let (width, limit) = (a.cache_width(), state.limits.rows);
        let x = head(stream, &state.normed, [rows, dims.hidden])?;
        let joint = head_mut(stream, &mut state.joint, [rows, dims.joint()])?;
        kernels.products.launch(stream, x, layer.joint.tensor(stream)?, joint)?;
        let positions = || TensorRef::new(stream, state.inputs.positions(rows)?, [rows]);
        let rope = || head(stream, &state.rope, [state.limits.positions(), a.rope]);
        let args = mla_inputs::Args {
            x: head(stream, &state.joint, [rows, dims.joint()])?,
            q_gain: head(stream, &layer.q_norm, [dims.q_rank])?,
            kv_gain: head(stream, &layer.kv_norm, [a.latent])?,
            eps: a.latent_eps,
            rope: rope()?,
            positions: positions()?,
            slots: TensorRef::new(stream, state.inputs.slots(rows)?, [rows])?,
            q: head_mut(stream, &mut state.low, [rows, dims.q_rank])?,
            cache: part_mut(stream, &mut state.scratch, index * limit * width, [limit, width])?,
        };
        kernels.mla_inputs.launch(stream, Choice::Auto, args)?;
        let low = head(stream, &state.low, [rows, dims.q_rank])?;
        let queries = head_mut(stream, &mut state.queries, [rows, dims.queries()])?;
        kernels.products.launch(stream, low, layer.q_b.tensor(stream)?, queries)?;
        let args = query_rope::Args {
            q: head(stream, &state.queries, [rows, a.heads, a.nope + a.rope])?,
            rope: rope()?,
            positions: positions()?,
            y: head_mut(stream, &mut state.absorbed, [rows, a.heads, width])?,
        };
        kernels.query_rope.launch(stream, Choice::Auto, args)?;
        let args = absorb_query::Args {
            q: head(stream, &state.queries, [rows, a.heads, a.nope + a.rope])?,
            w: head(stream, &layer.key_up.data, [a.heads, a.latent, a.nope])?,
            y: head_mut(stream, &mut state.absorbed, [rows, a.heads, width])?,
        };
        kernels.absorb_query.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// All rows over pages and scratch.
    fn attend(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, streams }, .. } = self;
        let (rows, streams, stream) = (*rows, *streams, *stream);
        let (kernels, a) = (&target.kernels, &target.dims.attention);
        let (width, limits, inputs) = (a.cache_width(), state.limits, &state.inputs);
        let partial = state.part_ml.len() / 2;
        let starts = || TensorRef::new(stream, inputs.starts(streams)?, [streams + 1]);
        let committed = || TensorRef::new(stream, inputs.committed(streams)?, [streams]);
        let ancestors = || TensorRef::new(stream, inputs.ancestors(rows)?, [rows, 2]);
        let layer_pages = limits.pages * PAGE_TOKENS * width;
        let args = tree_mla::Args {
            q: head(stream, &state.absorbed, [rows, a.heads, width])?,
            pages: part(stream, &state.pages, index * layer_pages, [limits.pages, PAGE_TOKENS, width])?,
            table: TensorRef::new(stream, inputs.table(streams)?, [streams, limits.stream_pages])?,
            starts: starts()?,
            committed: committed()?,
            ancestors: ancestors()?,
            scratch: part(stream, &state.scratch, index * limits.rows * width, [rows, width])?,
            scale: a.softmax_scale,
            part_o: head_mut(stream, &mut state.part_o, [partial, a.latent])?,
            part_ml: head_mut(stream, &mut state.part_ml, [partial, 2])?,
        };
        kernels.tree_mla.launch(stream, Choice::Auto, args)?;
        let args = tree_mla_merge::Args {
            part_o: head(stream, &state.part_o, [partial, a.latent])?,
            part_ml: head(stream, &state.part_ml, [partial, 2])?,
            starts: starts()?,
            committed: committed()?,
            ancestors: ancestors()?,
            y: head_mut(stream, &mut state.mixed, [rows, a.heads, a.latent])?,
        };
        kernels.tree_mla_merge.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The MLP or the experts of a layer over the normed rows: the number of parts for the residual stream.
    pub(crate) fn feed_forward(&mut self, layer: &DeviceLayer) -> Result<usize, CudaError> {
        match &layer.feed_forward {
            DeviceFeedForward::Dense(mlp) => {
                self.mlp(mlp, &self.target.kernels.dense_gate)?;
                Ok(1)
            }
            DeviceFeedForward::Moe(moe) => {
                self.route(moe)?;
                self.experts(moe)?;
                self.mlp(&moe.shared, &self.target.kernels.shared_gate)?;
                Ok(2)
            }
        }
    }

    /// A gated MLP, to the first part.
    fn mlp(&mut self, mlp: &DeviceMlp, gate: &silu_mul::SiluMul) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (rows, hidden, width) = (*rows, target.dims.hidden, mlp.down.cols);
        let products = &target.kernels.products;
        let x = head(stream, &state.normed, [rows, hidden])?;
        let gate_up = head_mut(stream, &mut state.gate_up, [rows, 2 * width])?;
        products.launch(stream, x, mlp.gate_up.tensor(stream)?, gate_up)?;
        let args = silu_mul::Args {
            gate_up: head(stream, &state.gate_up, [rows, 2 * width])?,
            y: head_mut(stream, &mut state.gated, [rows, width])?,
        };
        gate.launch(stream, Choice::Auto, args)?;
        let gated = head(stream, &state.gated, [rows, width])?;
        let out = head_mut(stream, &mut state.parts, [rows, hidden])?;
        Ok(products.launch(stream, gated, mlp.down.tensor(stream)?, out)?)
    }

    /// Each row's experts; padding has none.
    fn route(&mut self, moe: &DeviceMoe) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (rows, dims, experts) = (*rows, &target.dims, moe.router.rows);
        let small = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        let args = router::Args {
            x: head(stream, &state.normed, [rows, dims.hidden])?,
            w: moe.router.tensor(stream)?,
            bias: head(stream, &moe.bias, [experts])?,
            slots: TensorRef::new(stream, state.inputs.slots(rows)?, [rows])?,
            groups: small(dims.router.groups),
            top_groups: small(dims.router.top_groups),
            normalize: i32::from(dims.router.normalize),
            scaling: dims.router.scaling,
            arrived: head_mut(stream, &mut state.routing.arrived, [rows])?,
            scores: head_mut(stream, &mut state.routing.scores, [rows, experts])?,
            ids: head_mut(stream, &mut state.routing.ids, [rows, dims.router.top_k])?,
            weights: head_mut(stream, &mut state.routing.weights, [rows, dims.router.top_k])?,
        };
        target.kernels.router.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The routed experts, to the second part.
    fn experts(&mut self, moe: &DeviceMoe) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (rows, hidden, top_k) = (*rows, target.dims.hidden, target.dims.router.top_k);
        let batch = Batch {
            rows,
            x: head(stream, &state.normed, [rows, hidden])?,
            ids: head(stream, &state.routing.ids, [rows, top_k])?,
            weights: head(stream, &state.routing.weights, [rows, top_k])?,
            y: part_mut(stream, &mut state.parts, rows * hidden, [rows, hidden])?,
        };
        let experts = &target.kernels.experts;
        Ok(experts.run(stream, experts.form(rows), &moe.experts, 0, &mut state.experts, batch)?)
    }

    /// The seam: `count` parts of every rank to the residual stream, which is normed with `gain` for what comes next.
    pub(crate) fn reduce_add_norm(&mut self, count: usize, gain: &CudaSlice<bf16>) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, exchange } = self;
        let (rows, hidden) = (*rows, target.dims.hidden);
        let elements = count * rows * hidden;
        let parts = exchange.meet(stream, &mut state.parts, elements, &mut state.room)?;
        let args = add_rms_norm::Args {
            h: head_mut(stream, &mut state.hidden, [rows, hidden])?,
            parts: TensorRef::new(stream, parts, [exchange.parts() * count, rows, hidden])?,
            gain: head(stream, gain, [hidden])?,
            eps: target.dims.eps,
            y: head_mut(stream, &mut state.normed, [rows, hidden])?,
        };
        target.kernels.add_rms_norm.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Keeps the residual stream after layer `index`, if it is tapped.
    pub(crate) fn tap(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { stream, target, state, bucket: Bucket { rows, .. }, .. } = self;
        let (values, stride) = (*rows * target.dims.hidden, state.limits.rows * target.dims.hidden);
        for (slot, _) in state.taps.iter().enumerate().filter(|(_, tap)| **tap == index) {
            let mut to = state.tapped.slice_mut(slot * stride..slot * stride + values);
            let copied = stream.cuda().memcpy_dtod(&state.hidden.slice(..values), &mut to);
            copied.map_err(|error| kd_kernels::KernelError::driver("keeping a tap", error))?;
        }
        Ok(())
    }
}
