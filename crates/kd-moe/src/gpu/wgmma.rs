//! Both products of a layer as products of warpgroups: [`Form::Wgmma`](super::Form::Wgmma).

use kd_kernels::families::{moe_down_wgmma, moe_gate_up_wgmma};
use kd_kernels::{Choice, Int4Ref, KernelError, Kernels, Stream, TensorMut, TensorRef};

use super::{DeviceExperts, GpuError, Scratch, Shape};

/// The loaded kernels.
#[derive(Debug)]
pub(super) struct Wgmma {
    gate_up: moe_gate_up_wgmma::MoeGateUpWgmma,
    down: moe_down_wgmma::MoeDownWgmma,
}

impl Wgmma {
    /// Those for rows of `h` values and experts of width `i`; nothing where there are none, on other architectures.
    pub(super) fn load(kernels: &Kernels, h: i64, i: i64) -> Result<Option<Self>, KernelError> {
        let gate_up = moe_gate_up_wgmma::MoeGateUpWgmma::load(kernels, moe_gate_up_wgmma::Dims { h, i });
        let down = moe_down_wgmma::MoeDownWgmma::load(kernels, moe_down_wgmma::Dims { h, i });
        match (gate_up, down) {
            (Ok(gate_up), Ok(down)) => Ok(Some(Self { gate_up, down })),
            (Err(KernelError::NoUnit { .. }), _) | (_, Err(KernelError::NoUnit { .. })) => Ok(None),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Both products of `rows` rows, grouped and turned for this form.
    pub(super) fn run(
        &self,
        stream: &Stream,
        experts: &DeviceExperts,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Result<(), GpuError> {
        let Shape { hidden, width, top_k, .. } = scratch.plan.shape;
        let (choices, held, lists) = (rows * top_k, experts.shape().experts, scratch.plan.lists());
        let gate_up = moe_gate_up_wgmma::Args {
            w: Int4Ref::new(stream, experts.gate_up.as_view(), [held, 2 * width, hidden])?,
            x: TensorRef::new(stream, scratch.lifted.slice(..rows * hidden), [rows, hidden])?,
            plan: TensorRef::new(stream, scratch.totals.slice(..2), [2])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            rows: TensorRef::new(stream, scratch.rows.slice(..choices), [choices])?,
            h: TensorMut::new(stream, scratch.hidden.slice_mut(..choices * width), [choices, width])?,
        };
        self.gate_up.launch(stream, Choice::Auto, gate_up)?;
        let down = moe_down_wgmma::Args {
            w: Int4Ref::new(stream, experts.down.as_view(), [held, hidden, width])?,
            h: TensorRef::new(stream, scratch.hidden.slice(..choices * width), [choices, width])?,
            plan: TensorRef::new(stream, scratch.totals.slice(..2), [2])?,
            slabs: TensorRef::new(stream, scratch.entries.slice(..lists * 4), [lists, 4])?,
            parts: TensorMut::new(stream, scratch.parts.slice_mut(..choices * hidden), [choices, hidden])?,
        };
        self.down.launch(stream, Choice::Auto, down)?;
        Ok(())
    }
}
