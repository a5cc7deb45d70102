//! The attention of tree passes: absorbed queries over pages and scratch.

use kd_kernels::families::{
    absorb_query, absorb_value, head_queries, head_values, query_rope, tree_mla_merge,
};
use kd_kernels::{Choice, CudaSlice, Stream, TensorRef};

use half::bf16;

use super::CudaError;
use super::cache::{Attended, LayerPages, Pages};
use super::inputs::PassInputs;
use super::kernels::FewKernels;
use super::layer::Pass;
use super::limits::{Bucket, Limits};
use super::memory::{head, head_mut, part, part_mut};
use super::state::PassState;
use super::weights::DeviceLayer;

/// What tree attention has of its own beside [`Pass`].
pub(crate) struct TreeAttention<'a> {
    pub(crate) inputs: &'a PassInputs,
    pub(crate) limits: Limits,
    pub(crate) bucket: Bucket,
    pub(crate) pages: &'a Pages,
    pub(crate) scratch: &'a mut CudaSlice<bf16>,
    pub(crate) absorbed: &'a mut CudaSlice<bf16>,
    pub(crate) mixed: &'a mut CudaSlice<bf16>,
    pub(crate) part_o: &'a mut CudaSlice<f32>,
    pub(crate) part_ml: &'a mut CudaSlice<f32>,
    /// Work items taken in this pass; zero between passes.
    pub(crate) queue: &'a mut CudaSlice<i32>,
}

impl TreeAttention<'_> {
    /// Attention of layer `index` over the normed rows of `pass`: what is added to the residual stream.
    pub(crate) fn run(
        &mut self,
        pass: &mut Pass<'_>,
        index: usize,
        layer: &DeviceLayer,
    ) -> Result<(), CudaError> {
        let few = pass.target.kernels.few(pass.count);
        match few {
            Some(few) => self.head_queries(few, pass, index, layer)?,
            None => self.queries(pass, index, layer)?,
        }
        self.attend(pass, index)?;
        match few {
            Some(few) => self.head_values(few, pass, layer)?,
            None => self.values(pass, layer)?,
        }
        pass.attention_output(index, layer)
    }

    /// Absorbed and rotated queries of all heads, and the rows' own entries, at their slots.
    fn queries(&mut self, pass: &mut Pass<'_>, index: usize, layer: &DeviceLayer) -> Result<(), CudaError> {
        let (stream, a) = (pass.stream, &pass.target.dims.attention);
        let (kernels, rows, width) = (&pass.target.kernels, pass.count, a.cache_width());
        let limit = self.limits.rows;
        let own = part_mut(stream, self.scratch, index * limit * width, [limit, width])?;
        pass.attention_inputs(layer, own)?;
        let queries = [rows, a.heads, a.nope + a.rope];
        let args = query_rope::Args {
            q: head(stream, &pass.rows.queries, queries)?,
            rope: pass.rope,
            positions: pass.positions,
            y: head_mut(stream, self.absorbed, [rows, a.heads, width])?,
        };
        kernels.query_rope.launch(stream, Choice::Auto, args)?;
        let args = absorb_query::Args {
            q: head(stream, &pass.rows.queries, queries)?,
            w: head(stream, &layer.key_up.data, [a.heads, a.latent, a.nope])?,
            y: head_mut(stream, self.absorbed, [rows, a.heads, width])?,
        };
        kernels.absorb_query.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The same for few rows.
    fn head_queries(
        &mut self,
        few: &FewKernels,
        pass: &mut Pass<'_>,
        index: usize,
        layer: &DeviceLayer,
    ) -> Result<(), CudaError> {
        pass.joint(layer)?;
        let (stream, dims) = (pass.stream, &pass.target.dims);
        let (a, rows, width, limit) =
            (&dims.attention, pass.count, dims.attention.cache_width(), self.limits.rows);
        let args = head_queries::Args {
            joint: head(stream, &pass.rows.joint, [rows, dims.joint()])?,
            q_gain: head(stream, &layer.q_norm, [dims.q_rank])?,
            kv_gain: head(stream, &layer.kv_norm, [a.latent])?,
            eps: a.latent_eps,
            q_b: layer.q_b.tensor(stream)?,
            key_up: head(stream, &layer.key_up.data, [a.heads, a.latent, a.nope])?,
            rope: pass.rope,
            positions: pass.positions,
            slots: pass.slots,
            cache: part_mut(stream, self.scratch, index * limit * width, [limit, width])?,
            y: head_mut(stream, self.absorbed, [rows, a.heads, width])?,
        };
        few.head_queries.launch(stream, args)?;
        Ok(())
    }

    /// The queries' sums over all that each row sees, as partial results.
    fn attend(&mut self, pass: &Pass<'_>, index: usize) -> Result<(), CudaError> {
        let (stream, a, limits, inputs) =
            (pass.stream, &pass.target.dims.attention, self.limits, self.inputs);
        let (width, Bucket { rows, streams, pages: held }) = (a.cache_width(), self.bucket);
        let partial = self.part_ml.len() / 2;
        let pages = LayerPages { all: self.pages, layer: index, count: limits.pages };
        let own = Attended {
            q: head(stream, self.absorbed, [rows, a.heads, width])?,
            queries: head(stream, self.absorbed, [rows * a.heads, width])?,
            table: TensorRef::new(stream, inputs.table_of(streams, held)?, [streams, held])?,
            starts: TensorRef::new(stream, inputs.starts(streams)?, [streams + 1])?,
            committed: TensorRef::new(stream, inputs.committed(streams)?, [streams])?,
            ancestors: TensorRef::new(stream, inputs.ancestors(rows)?, [rows, 2])?,
            scratch: part(stream, self.scratch, index * limits.rows * width, [rows, width])?,
            scale: a.softmax_scale,
            queue: head_mut(stream, self.queue, [1])?,
            part_o: head_mut(stream, self.part_o, [partial, a.latent])?,
            part_ml: head_mut(stream, self.part_ml, [partial, 2])?,
        };
        Ok(pass.target.kernels.cache.attend(stream, &pass.target.dims, pages, own)?)
    }

    /// The partial results merged, and taken out of the latent space: the values of all heads.
    fn values(&mut self, pass: &mut Pass<'_>, layer: &DeviceLayer) -> Result<(), CudaError> {
        let (stream, a, kernels) = (pass.stream, &pass.target.dims.attention, &pass.target.kernels);
        let (Bucket { rows, streams, .. }, inputs) = (self.bucket, self.inputs);
        let partial = self.part_ml.len() / 2;
        let args = tree_mla_merge::Args {
            part_o: head(stream, self.part_o, [partial, a.latent])?,
            part_ml: head(stream, self.part_ml, [partial, 2])?,
            starts: TensorRef::new(stream, inputs.starts(streams)?, [streams + 1])?,
            committed: TensorRef::new(stream, inputs.committed(streams)?, [streams])?,
            ancestors: TensorRef::new(stream, inputs.ancestors(rows)?, [rows, 2])?,
            queue: head_mut(stream, self.queue, [1])?,
            y: head_mut(stream, self.mixed, [rows, a.heads, a.latent])?,
        };
        kernels.tree_mla_merge.launch(stream, Choice::Auto, args)?;
        let args = absorb_value::Args {
            o: head(stream, self.mixed, [rows, a.heads, a.latent])?,
            w: head(stream, &layer.value_up.data, [a.heads, a.value, a.latent])?,
            y: head_mut(stream, &mut pass.rows.values, [rows, a.heads, a.value])?,
        };
        kernels.absorb_value.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The same for few rows.
    fn head_values(
        &mut self,
        few: &FewKernels,
        pass: &mut Pass<'_>,
        layer: &DeviceLayer,
    ) -> Result<(), CudaError> {
        let (stream, a) = (pass.stream, &pass.target.dims.attention);
        let (Bucket { rows, streams, .. }, inputs) = (self.bucket, self.inputs);
        let partial = self.part_ml.len() / 2;
        let args = head_values::Args {
            part_o: head(stream, self.part_o, [partial, a.latent])?,
            part_ml: head(stream, self.part_ml, [partial, 2])?,
            starts: TensorRef::new(stream, inputs.starts(streams)?, [streams + 1])?,
            committed: TensorRef::new(stream, inputs.committed(streams)?, [streams])?,
            ancestors: TensorRef::new(stream, inputs.ancestors(rows)?, [rows, 2])?,
            w: head(stream, &layer.value_up.data, [a.heads, a.value, a.latent])?,
            queue: head_mut(stream, self.queue, [1])?,
            y: head_mut(stream, &mut pass.rows.values, [rows, a.heads, a.value])?,
        };
        few.head_values.launch(stream, Choice::Auto, args)?;
        Ok(())
    }
}

/// A pass over the trees that `state.inputs` holds, and its attention.
pub(crate) fn tree_pass<'a>(
    stream: &'a Stream,
    target: &'a super::CudaTarget,
    state: &'a mut PassState,
    bucket: Bucket,
    exchange: &'a dyn kd_kernels::ranks::Exchange,
) -> Result<(Pass<'a>, TreeAttention<'a>), CudaError> {
    state.fits(bucket)?;
    let PassState {
        inputs,
        limits,
        rows,
        rope,
        pages,
        scratch,
        sums,
        absorbed,
        mixed,
        part_o,
        part_ml,
        queue,
        ..
    } = state;
    let count = bucket.rows;
    let pass = Pass {
        stream,
        target,
        rows,
        count,
        slots: TensorRef::new(stream, inputs.slots(count)?, [count])?,
        positions: TensorRef::new(stream, inputs.positions(count)?, [count])?,
        rope: head(stream, rope, [limits.positions(), target.dims.attention.rope])?,
        products: super::kernels::Multiply::Own(&target.kernels.products, sums),
        exchange,
        joins: true,
        left: None,
    };
    let limits = *limits;
    let tree =
        TreeAttention { inputs, limits, bucket, pages, scratch, absorbed, mixed, part_o, part_ml, queue };
    Ok((pass, tree))
}
