//! A layer with folded scales ([`Arithmetic::Folded`](super::Arithmetic)): grouping, both products and the weighted sum.

use kd_kernels::families::{
    moe_combine_folded, moe_down_folded, moe_down_folded_wgmma, moe_gate_up_folded, moe_gate_up_folded_wgmma,
    moe_group_folded,
};
use kd_kernels::{Choice, Int4Ref, KernelError, Kernels, Stream, TensorMut, TensorRef};

use super::many::variant;
use super::{Batch, DeviceExperts, Form, GpuError, Scratch, Shape};

/// The loaded kernels.
#[derive(Debug)]
pub(super) struct Folded {
    group: moe_group_folded::MoeGroupFolded,
    gate_up: moe_gate_up_folded::MoeGateUpFolded,
    down: moe_down_folded::MoeDownFolded,
    wgmma: Option<FoldedWgmma>,
    combine: moe_combine_folded::MoeCombineFolded,
}

/// Both products of [`Form::FoldedWgmma`] and [`Form::FoldedTall`].
#[derive(Debug)]
struct FoldedWgmma {
    gate_up: moe_gate_up_folded_wgmma::MoeGateUpFoldedWgmma,
    down: moe_down_folded_wgmma::MoeDownFoldedWgmma,
}

impl Folded {
    /// Those of `shape`.
    pub(super) fn load(kernels: &Kernels, [h, i, e, t]: [i64; 4]) -> Result<Self, KernelError> {
        Ok(Self {
            group: moe_group_folded::MoeGroupFolded::load(kernels, moe_group_folded::Dims { h, e, t })?,
            gate_up: moe_gate_up_folded::MoeGateUpFolded::load(kernels, moe_gate_up_folded::Dims { h, i })?,
            down: moe_down_folded::MoeDownFolded::load(kernels, moe_down_folded::Dims { h, i })?,
            wgmma: FoldedWgmma::load(kernels, h, i)?,
            combine: moe_combine_folded::MoeCombineFolded::load(kernels, moe_combine_folded::Dims { h, t })?,
        })
    }

    /// Whether both products have `form`.
    pub(super) fn has(&self, form: Form) -> bool {
        match form {
            Form::FoldedWgmma | Form::FoldedTall => self.wgmma.as_ref().is_some_and(|wgmma| {
                [wgmma.gate_up.units(), wgmma.down.units()].iter().all(|units| variant(units, form).is_some())
            }),
            _ => variant(self.gate_up.units(), form).is_some() && variant(self.down.units(), form).is_some(),
        }
    }

    /// All of the layer in `form`.
    pub(super) fn run(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        first_expert: i32,
        scratch: &mut Scratch,
        batch: Batch<'_>,
    ) -> Result<(), GpuError> {
        let Shape { hidden, top_k, .. } = scratch.plan.shape;
        let (rows, choices, lists) = (batch.rows, batch.rows * top_k, scratch.plan.lists());
        let values = scratch.values.folded()?;
        let group = moe_group_folded::Args {
            x: batch.x,
            ids: batch.ids,
            first_expert,
            slab: form.slab(),
            turned: i32::from(matches!(form, Form::FoldedWgmma | Form::FoldedTall)),
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            slabs: TensorMut::new(stream, scratch.entries.slice_mut(..lists * 4), [lists, 4])?,
            rows: TensorMut::new(stream, scratch.rows.slice_mut(..choices), [choices])?,
            places: TensorMut::new(stream, scratch.places.slice_mut(..choices), [rows, top_k])?,
            folded: TensorMut::new(stream, values.rows.slice_mut(..rows * hidden), [rows, hidden])?,
            lifts: TensorMut::new(stream, values.lifts.slice_mut(..rows), [rows])?,
            norms: TensorMut::new(stream, values.norms.slice_mut(..rows), [rows])?,
        };
        self.group.launch(stream, Choice::Auto, group)?;
        match (form, &self.wgmma) {
            (Form::FoldedWgmma | Form::FoldedTall, Some(wgmma)) => {
                wgmma.run(stream, form, experts, scratch, rows)?
            }
            (Form::FoldedWgmma | Form::FoldedTall, None) => {
                return Err(GpuError::Form { form: form.name(), shape: scratch.plan.shape });
            }
            _ => self.products(stream, form, experts, scratch, rows)?,
        }
        let values = scratch.values.folded()?;
        let combine = moe_combine_folded::Args {
            parts: TensorRef::new(stream, values.parts.slice(..choices * hidden), [choices, hidden])?,
            weights: batch.weights,
            places: TensorRef::new(stream, scratch.places.slice(..choices), [rows, top_k])?,
            y: batch.y,
        };
        self.combine.launch(stream, Choice::Auto, combine)?;
        Ok(())
    }

    /// Both products of `rows` rows.
    fn products(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = scratch.plan.shape;
        let (choices, held, lists) = (rows * top_k, experts.shape().experts, scratch.plan.lists());
        let [Some(first), Some(second)] =
            [self.gate_up.units(), self.down.units()].map(|units| variant(units, form))
        else {
            return Err(GpuError::Form { form: form.name(), shape: scratch.plan.shape });
        };
        let values = scratch.values.folded()?;
        let gate_up = moe_gate_up_folded::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            exponents: TensorRef::new(stream, experts.gate_up_exponents.as_view(), [held, 2 * width])?,
            bounds: TensorRef::new(stream, experts.bounds.as_view(), [held])?,
            x: TensorRef::new(stream, values.rows.slice(..rows * hidden), [rows, hidden])?,
            lifts: TensorRef::new(stream, values.lifts.slice(..rows), [rows])?,
            norms: TensorRef::new(stream, values.norms.slice(..rows), [rows])?,
            plan: TensorRef::new(stream, scratch.totals.slice(..4), [4])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, values.hidden.slice_mut(..choices * width), [choices, width])?,
            lowers: TensorMut::new(stream, values.lowers.slice_mut(..choices), [choices])?,
        };
        self.gate_up.launch(stream, Choice::Forced(first), gate_up)?;
        let down = moe_down_folded::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            exponents: TensorRef::new(stream, experts.down_exponents.as_view(), [held, hidden])?,
            h: TensorRef::new(stream, values.hidden.slice(..choices * width), [choices, width])?,
            lowers: TensorRef::new(stream, values.lowers.slice(..choices), [choices])?,
            plan: TensorRef::new(stream, scratch.totals.slice(..4), [4])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            parts: TensorMut::new(stream, values.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, Choice::Forced(second), down)?;
        Ok(())
    }
}

impl FoldedWgmma {
    /// Nothing where there are none, on other architectures.
    fn load(kernels: &Kernels, h: i64, i: i64) -> Result<Option<Self>, KernelError> {
        use moe_down_folded_wgmma as down;
        use moe_gate_up_folded_wgmma as gate_up;
        let gate_up = gate_up::MoeGateUpFoldedWgmma::load(kernels, gate_up::Dims { h, i });
        let down = down::MoeDownFoldedWgmma::load(kernels, down::Dims { h, i });
        match (gate_up, down) {
            (Ok(gate_up), Ok(down)) => Ok(Some(Self { gate_up, down })),
            (Err(KernelError::NoUnit { .. }), _) | (_, Err(KernelError::NoUnit { .. })) => Ok(None),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Both products of `rows` rows, grouped and turned for `form`.
    fn run(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = scratch.plan.shape;
        let (choices, held, lists) = (rows * top_k, experts.shape().experts, scratch.plan.lists());
        let values = scratch.values.folded()?;
        let gate_up = moe_gate_up_folded_wgmma::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            exponents: TensorRef::new(stream, experts.gate_up_exponents.as_view(), [held, 2 * width])?,
            bounds: TensorRef::new(stream, experts.bounds.as_view(), [held])?,
            x: TensorRef::new(stream, values.rows.slice(..rows * hidden), [rows, hidden])?,
            lifts: TensorRef::new(stream, values.lifts.slice(..rows), [rows])?,
            norms: TensorRef::new(stream, values.norms.slice(..rows), [rows])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, values.hidden.slice_mut(..choices * width), [choices, width])?,
            lowers: TensorMut::new(stream, values.lowers.slice_mut(..choices), [choices])?,
        };
        self.gate_up.launch(stream, Choice::Forced(form.name()), gate_up)?;
        let down = moe_down_folded_wgmma::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            exponents: TensorRef::new(stream, experts.down_exponents.as_view(), [held, hidden])?,
            h: TensorRef::new(stream, values.hidden.slice(..choices * width), [choices, width])?,
            lowers: TensorRef::new(stream, values.lowers.slice(..choices), [choices])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            parts: TensorMut::new(stream, values.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, Choice::Forced(form.name()), down)?;
        Ok(())
    }
}
