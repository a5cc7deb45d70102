//! Both products of a layer blocked in registers: [`Form::Middle`] and [`Form::Many`].

use kd_kernels::families::{moe_down_many, moe_gate_up_many};
use kd_kernels::{Choice, Int4Ref, KernelError, Kernels, Stream, TensorMut, TensorRef, Units};
use kd_tensor::int4::GROUP;

use super::{DeviceExperts, Form, GpuError, Scratch, Shape};

/// The loaded kernels.
#[derive(Debug)]
pub(super) struct Many {
    gate_up: moe_gate_up_many::MoeGateUpMany,
    down: moe_down_many::MoeDownMany,
}

/// The variant of `form` among `units`: widths that are no multiple of 128 have one of another name, for half as many warps.
pub(super) fn variant(units: &Units, form: Form) -> Option<&str> {
    let named = |name: &str| units.iter().map(|unit| unit.variant()).find(|variant| *variant == name);
    let half = match form {
        Form::Many => Some("many_half"),
        Form::Folded => Some("folded_half"),
        _ => None,
    };
    named(form.name()).or_else(|| named(half?))
}

impl Many {
    /// Those for rows of `h` values and experts of width `i`.
    pub(super) fn load(kernels: &Kernels, h: i64, i: i64) -> Result<Self, KernelError> {
        Ok(Self {
            gate_up: moe_gate_up_many::MoeGateUpMany::load(kernels, moe_gate_up_many::Dims { h, i })?,
            down: moe_down_many::MoeDownMany::load(kernels, moe_down_many::Dims { h, i })?,
        })
    }

    /// Whether both products have `form`.
    pub(super) fn has(&self, form: Form) -> bool {
        variant(self.gate_up.units(), form).is_some() && variant(self.down.units(), form).is_some()
    }

    /// Both products of `rows` rows, grouped for `form`.
    pub(super) fn run(
        &self,
        stream: &Stream,
        form: Form,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let shape = scratch.plan.shape;
        let Shape { hidden, width, top_k, .. } = shape;
        let missing = GpuError::Form { form: form.name(), shape };
        let [Some(first), Some(second)] =
            [self.gate_up.units(), self.down.units()].map(|units| variant(units, form))
        else {
            return Err(missing);
        };
        let (choices, held, lists) = (rows * top_k, experts.shape().experts, scratch.plan.lists());
        let (groups, h_groups) = (hidden / GROUP, width / GROUP);
        let values = scratch.values.grouped()?;
        let gate_up = moe_gate_up_many::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            x: TensorRef::new(stream, values.lifted.slice(..rows * hidden), [rows, hidden])?,
            starts: TensorRef::new(stream, values.starts.slice(..rows * groups), [rows, groups])?,
            plan: TensorMut::new(stream, scratch.totals.slice_mut(..4), [4])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, values.hidden.slice_mut(..choices * width), [choices, width])?,
            h_starts: TensorMut::new(
                stream,
                values.hidden_starts.slice_mut(..choices * h_groups),
                [choices, h_groups],
            )?,
        };
        self.gate_up.launch(stream, Choice::Forced(first), gate_up)?;
        let down = moe_down_many::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            h: TensorRef::new(stream, values.hidden.slice(..choices * width), [choices, width])?,
            starts: TensorRef::new(
                stream,
                values.hidden_starts.slice(..choices * h_groups),
                [choices, h_groups],
            )?,
            plan: TensorRef::new(stream, scratch.totals.slice(..2), [2])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            parts: TensorMut::new(stream, values.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, Choice::Forced(second), down)?;
        Ok(())
    }
}
