//! The launches of one pass, layer by layer: what tree passes and prompt chunks share.

use half::bf16;
use kd_kernels::families::{
    add_rms_norm, embed, few_gate, few_route, mla_inputs, norm_dense, rms_norm, router, silu_mul,
};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, CudaSlice, Stream, TensorMut, TensorRef};
use kd_moe::gpu::{Batch, Scratch};

use super::CudaError;
use super::error::within;
use super::kernels::{Multiply, OneKernels};
use super::memory::{head, head_mut, part_mut};
use super::rows::RowState;
use super::state::PassState;
use super::target::CudaTarget;
use super::weights::{DeviceFeedForward, DeviceLayer, DeviceMlp, DeviceMoe};

/// Most rows for `few_gate`: one tile of tokens. The CTAs of a second find no room before the routed experts have ended.
pub(super) const GATE_ROWS: usize = 8;
/// From so many rows on what follows a norm may start before it: router and first product then have their weights in time. With
/// fewer rows their loads delay what the norm waits for.
const EARLY_ROWS: usize = GATE_ROWS + 1;

/// The experts of each row and their weights, `[rows, top_k]` both.
pub type Choices<'a> = (TensorRef<'a, i32, 2>, TensorRef<'a, f32, 2>);

/// Rows on their way: `count` of them, some of which may be padding.
pub(crate) struct Pass<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) target: &'a CudaTarget,
    pub(crate) rows: &'a mut RowState,
    pub(crate) count: usize,
    /// Negative for padding.
    pub(crate) slots: TensorRef<'a, i32, 1>,
    pub(crate) positions: TensorRef<'a, i32, 1>,
    pub(crate) rope: TensorRef<'a, f32, 2>,
    pub(crate) products: Multiply<'a>,
    pub(crate) exchange: &'a dyn Exchange,
    /// Whether a launch may sum and norm for itself what it reads, so that the residual stream between layers is there late.
    pub(crate) joins: bool,
    /// The layer whose parts are not yet added to the residual stream.
    pub(crate) left: Option<usize>,
}

impl<'a> Pass<'a> {
    /// Embeds `tokens` and norms them for the first layer.
    pub(crate) fn embed(&mut self, ids: TensorRef<'_, i32, 1>) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, exchange, .. } = self;
        if exchange.parts() > 1 {
            let (key, supported) = ("ranks", "one, so far");
            return Err(CudaError::Unsupported { key, found: exchange.parts().to_string(), supported });
        }
        let shape = [*count, target.dims.hidden];
        let args = embed::Args {
            table: target.embed.tensor(stream)?,
            ids,
            rank: i32::try_from(target.dims.rank).unwrap_or(-1),
            y: head_mut(stream, &mut rows.hidden, shape)?,
        };
        target.kernels.embed.launch(stream, Choice::Auto, args)?;
        let gain = target.layers.first().map_or(&target.norm, |layer| &layer.input_norm);
        let args = rms_norm::Args {
            x: head(stream, &rows.hidden, shape)?,
            gain: head(stream, gain, [target.dims.hidden])?,
            eps: target.dims.eps,
            y: head_mut(stream, &mut rows.normed, shape)?,
        };
        target.kernels.rms_norm.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The compressed queries and the rows' own latents, side by side.
    pub(crate) fn joint(&mut self, layer: &DeviceLayer) -> Result<(), CudaError> {
        if let Some(before) = self.left.take()
            && let Some(one) = self.target.kernels.one(self.count)
        {
            return self.norm_joint(one, before, layer);
        }
        let Self { stream, target, rows, count, products, .. } = self;
        let (dims, count) = (&target.dims, *count);
        let x = head(stream, &rows.normed, [count, dims.hidden])?;
        let joint = head_mut(stream, &mut rows.joint, [count, dims.joint()])?;
        Ok(products.launch(stream, x, layer.joint.tensor(stream)?, joint)?)
    }

    /// The same for one row, with the end of layer `before` in front: its parts of the residual stream, and its tap.
    fn norm_joint(&mut self, one: &OneKernels, before: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, exchange, .. } = self;
        let (dims, count, parts) = (&target.dims, *count, 2);
        let met = exchange.meet(stream, &mut rows.parts, parts * count * dims.hidden, &mut rows.room)?;
        let args = norm_dense::Args {
            h: head(stream, &rows.between, [count, dims.hidden])?,
            parts: TensorRef::new(stream, met, [exchange.parts() * parts, count, dims.hidden])?,
            gain: head(stream, &layer.input_norm, [dims.hidden])?,
            eps: dims.eps,
            w: layer.joint.tensor(stream)?,
            sum: head_mut(stream, &mut rows.hidden, [count, dims.hidden])?,
            tap: RowState::tap(
                stream,
                &mut rows.tapped,
                &rows.taps,
                Some(before),
                [rows.limit, count, dims.hidden],
            )?,
            y: head_mut(stream, &mut rows.joint, [count, dims.joint()])?,
        };
        one.norm_dense.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Queries of all heads, not yet rotated, and the rows' own entries in `cache`, at their slots.
    pub(crate) fn attention_inputs(
        &mut self,
        layer: &DeviceLayer,
        cache: TensorMut<'_, bf16, 2>,
    ) -> Result<(), CudaError> {
        self.joint(layer)?;
        let Self { stream, target, rows, count, slots, positions, rope, products, .. } = self;
        let (dims, a, count) = (&target.dims, &target.dims.attention, *count);
        let args = mla_inputs::Args {
            x: head(stream, &rows.joint, [count, dims.joint()])?,
            q_gain: head(stream, &layer.q_norm, [dims.q_rank])?,
            kv_gain: head(stream, &layer.kv_norm, [a.latent])?,
            eps: a.latent_eps,
            rope: *rope,
            positions: *positions,
            slots: *slots,
            q: head_mut(stream, &mut rows.low, [count, dims.q_rank])?,
            cache,
        };
        target.kernels.cache.inputs(stream, args)?;
        let low = head(stream, &rows.low, [count, dims.q_rank])?;
        let queries = head_mut(stream, &mut rows.queries, [count, dims.queries()])?;
        Ok(products.launch(stream, low, layer.q_b.tensor(stream)?, queries)?)
    }

    /// The values of all heads to what is added to the residual stream.
    pub(crate) fn attention_output(&mut self, index: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        let alone = self.one_row(index, layer).is_some();
        let Self { stream, target, rows, count, products, .. } = self;
        let values = head(stream, &rows.values, [*count, target.dims.values()])?;
        let to = if alone { &mut rows.attended } else { &mut rows.parts };
        let out = head_mut(stream, to, [*count, target.dims.hidden])?;
        Ok(products.launch(stream, values, layer.output.tensor(stream)?, out)?)
    }

    /// The launches for a single row, where they may make the sums and norms around the experts of layer `index`.
    fn one_row<'l>(&self, index: usize, layer: &'l DeviceLayer) -> Option<(&'a OneKernels, &'l DeviceMoe)> {
        let DeviceFeedForward::Moe(moe) = &layer.feed_forward else { return None };
        let followed = index + 1 < self.target.layers.len();
        self.target.kernels.one(self.count).filter(|_| self.joins && followed).map(|one| (one, &**moe))
    }

    /// What follows attention in layer `index`: residual and norm, feed-forward, residual, the norm of what comes next, and
    /// the tap.
    pub(crate) fn finish(&mut self, index: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        if let Some((one, moe)) = self.one_row(index, layer) {
            self.few_route(one, layer, moe)?;
            self.experts(moe)?;
            self.left = Some(index);
            return Ok(());
        }
        self.reduce_add_norm(1, &layer.post_norm, None)?;
        let parts = self.feed_forward(layer)?;
        let target = self.target;
        let next = target.layers.get(index + 1).map_or(&target.norm, |next| &next.input_norm);
        self.reduce_add_norm(parts, next, Some(index))
    }

    /// The MLP or the experts over the normed rows: the number of parts for the residual stream. The shared expert runs beside
    /// router and routed experts; the two sides write different memory.
    fn feed_forward(&mut self, layer: &DeviceLayer) -> Result<usize, CudaError> {
        match &layer.feed_forward {
            DeviceFeedForward::Dense(mlp) => {
                self.mlp(None, mlp, &self.target.kernels.dense_gate)?;
                Ok(1)
            }
            DeviceFeedForward::Moe(moe) => {
                let side = self.rows.fork.begin(self.stream)?;
                self.shared(&side, &moe.shared)?;
                self.route(moe)?;
                self.experts(moe)?;
                self.rows.fork.end(self.stream)?;
                Ok(2)
            }
        }
    }

    /// Residual and norm after attention, the row's experts, and the shared expert, to the first part.
    fn few_route(&mut self, one: &OneKernels, layer: &DeviceLayer, moe: &DeviceMoe) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, slots, exchange, .. } = self;
        let (count, dims, experts) = (*count, &target.dims, moe.router.rows);
        let small = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        let met = exchange.meet(stream, &mut rows.attended, count * dims.hidden, &mut rows.room)?;
        let args = few_route::Args {
            h: head(stream, &rows.hidden, [count, dims.hidden])?,
            parts: TensorRef::new(stream, met, [exchange.parts(), count, dims.hidden])?,
            gain: head(stream, &layer.post_norm, [dims.hidden])?,
            eps: dims.eps,
            w: moe.router.tensor(stream)?,
            bias: head(stream, &moe.bias, [experts])?,
            slots: *slots,
            groups: small(dims.router.groups),
            top_groups: small(dims.router.top_groups),
            normalize: i32::from(dims.router.normalize),
            scaling: dims.router.scaling,
            gate_up: moe.shared.gate_up.tensor(stream)?,
            down: moe.shared.down.tensor(stream)?,
            arrived: head_mut(stream, &mut rows.routing.arrived, [count, experts])?,
            met: head_mut(stream, &mut rows.routing.met, [2])?,
            sum: head_mut(stream, &mut rows.between, [count, dims.hidden])?,
            y: head_mut(stream, &mut rows.normed, [count, dims.hidden])?,
            scores: head_mut(stream, &mut rows.routing.scores, [count, experts])?,
            ids: head_mut(stream, &mut rows.routing.ids, [count, dims.router.top_k])?,
            weights: head_mut(stream, &mut rows.routing.weights, [count, dims.router.top_k])?,
            gated: head_mut(stream, &mut rows.gated, [count, moe.shared.down.cols])?,
            shared: head_mut(stream, &mut rows.parts, [count, dims.hidden])?,
        };
        one.few_route.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The shared expert, to the first part, on the side stream.
    fn shared(&mut self, side: &Stream, mlp: &DeviceMlp) -> Result<(), CudaError> {
        let (target, count) = (self.target, self.count);
        // Rows of a prompt take the library's products at every count, so that they do not depend on how the prompt is cut.
        let fused = count <= GATE_ROWS && matches!(self.products, Multiply::Own(..));
        let Some(few) = target.kernels.few(count).filter(|_| fused) else {
            return self.mlp(Some(side), mlp, &target.kernels.shared_gate);
        };
        let args = few_gate::Args {
            x: head(side, &self.rows.normed, [count, target.dims.hidden])?,
            w: mlp.gate_up.tensor(side)?,
            y: head_mut(side, &mut self.rows.gated, [count, mlp.down.cols])?,
        };
        few.shared_gate.launch(side, Choice::Auto, args)?;
        self.down(side, mlp)
    }

    /// A gated MLP, to the first part; on the side stream, if there is one.
    fn mlp(
        &mut self,
        side: Option<&Stream>,
        mlp: &DeviceMlp,
        gate: &silu_mul::SiluMul,
    ) -> Result<(), CudaError> {
        let stream = side.unwrap_or(self.stream);
        let Self { target, rows, count, products, .. } = self;
        let (count, hidden, width) = (*count, target.dims.hidden, mlp.down.cols);
        let x = head(stream, &rows.normed, [count, hidden])?;
        let gate_up = head_mut(stream, &mut rows.gate_up, [count, 2 * width])?;
        products.launch(stream, x, mlp.gate_up.tensor(stream)?, gate_up)?;
        let args = silu_mul::Args {
            gate_up: head(stream, &rows.gate_up, [count, 2 * width])?,
            y: head_mut(stream, &mut rows.gated, [count, width])?,
        };
        gate.launch(stream, Choice::Auto, args)?;
        self.down(stream, mlp)
    }

    /// The second product of an MLP.
    fn down(&mut self, stream: &Stream, mlp: &DeviceMlp) -> Result<(), CudaError> {
        let Self { target, rows, count, products, .. } = self;
        let gated = head(stream, &rows.gated, [*count, mlp.down.cols])?;
        let out = head_mut(stream, &mut rows.parts, [*count, target.dims.hidden])?;
        Ok(products.launch(stream, gated, mlp.down.tensor(stream)?, out)?)
    }

    /// Each row's experts; padding has none.
    fn route(&mut self, moe: &DeviceMoe) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, slots, .. } = self;
        let (count, dims, experts) = (*count, &target.dims, moe.router.rows);
        let small = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        let args = router::Args {
            x: head(stream, &rows.normed, [count, dims.hidden])?,
            w: moe.router.tensor(stream)?,
            bias: head(stream, &moe.bias, [experts])?,
            slots: *slots,
            groups: small(dims.router.groups),
            top_groups: small(dims.router.top_groups),
            normalize: i32::from(dims.router.normalize),
            scaling: dims.router.scaling,
            arrived: head_mut(stream, &mut rows.routing.arrived, [count, experts])?,
            scores: head_mut(stream, &mut rows.routing.scores, [count, experts])?,
            ids: head_mut(stream, &mut rows.routing.ids, [count, dims.router.top_k])?,
            weights: head_mut(stream, &mut rows.routing.weights, [count, dims.router.top_k])?,
        };
        target.kernels.router.launch(stream, args)?;
        Ok(())
    }

    /// The routed experts, to the second part.
    fn experts(&mut self, moe: &DeviceMoe) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, .. } = self;
        let shape = [*count, target.dims.router.top_k];
        let ids = head(stream, &rows.routing.ids, shape)?;
        let weights = head(stream, &rows.routing.weights, shape)?;
        let parts = (&mut rows.parts, &mut rows.experts);
        target.run_experts(stream, moe, &rows.normed, (ids, weights), parts)
    }

    /// The seam: `parts` parts of every rank to the residual stream, which is normed with `gain` for what comes next, and kept if this
    /// is the end of a tapped layer.
    fn reduce_add_norm(
        &mut self,
        parts: usize,
        gain: &CudaSlice<bf16>,
        ended: Option<usize>,
    ) -> Result<(), CudaError> {
        let Self { stream, target, rows, count, exchange, .. } = self;
        let (count, hidden) = (*count, target.dims.hidden);
        let met = exchange.meet(stream, &mut rows.parts, parts * count * hidden, &mut rows.room)?;
        let args = add_rms_norm::Args {
            h: head_mut(stream, &mut rows.hidden, [count, hidden])?,
            parts: TensorRef::new(stream, met, [exchange.parts() * parts, count, hidden])?,
            gain: head(stream, gain, [hidden])?,
            eps: target.dims.eps,
            early: i32::from(count >= EARLY_ROWS),
            tap: RowState::tap(stream, &mut rows.tapped, &rows.taps, ended, [rows.limit, count, hidden])?,
            y: head_mut(stream, &mut rows.normed, [count, hidden])?,
        };
        target.kernels.add_rms_norm.launch(stream, Choice::Auto, args)?;
        Ok(())
    }
}

impl CudaTarget {
    /// The experts of `moe` over the first rows of `x`, as many as have `choices` (ids and weights), to the second of `parts`.
    fn run_experts(
        &self,
        stream: &Stream,
        moe: &DeviceMoe,
        x: &CudaSlice<bf16>,
        (ids, weights): Choices<'_>,
        (parts, scratch): (&mut CudaSlice<bf16>, &mut Scratch),
    ) -> Result<(), CudaError> {
        let ([rows, _], hidden) = (ids.shape(), self.dims.hidden);
        let x = head(stream, x, [rows, hidden])?;
        let y = part_mut(stream, parts, rows * hidden, [rows, hidden])?;
        let (kernels, arithmetic) = (&self.kernels.experts, scratch.plan().arithmetic);
        let form = kernels.form(rows, arithmetic);
        Ok(kernels.run(stream, form, &moe.experts, 0, scratch, Batch { rows, x, ids, weights, y })?)
    }

    /// Enqueues the routed experts of layer `layer` alone, over rows of the last pass, with `choices` (ids and weights, `[rows, top_k]`
    /// each) instead of the router's: to time what a pass does there. What it computes means nothing. A layer without experts does
    /// nothing. Safe to capture in a graph.
    ///
    /// # Errors
    /// A layer that is not there, more rows than planned, a refused launch.
    pub fn experts_alone(
        &self,
        stream: &Stream,
        state: &mut PassState,
        layer: usize,
        choices: Choices<'_>,
    ) -> Result<(), CudaError> {
        within("a layer", layer, self.layers.len().saturating_sub(1))?;
        let DeviceFeedForward::Moe(moe) = &self.layers[layer].feed_forward else { return Ok(()) };
        let RowState { normed, parts, experts, .. } = &mut state.rows;
        self.run_experts(stream, moe, normed, choices, (parts, experts))
    }
}
