//! `few_gate` against the two launches whose place it takes, bit by bit; each of them has a check of its own.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, same_bits, units, upload, verify};
use crate::bundle::Row;
use crate::families::{few_gate, silu_mul};
use crate::{Choice, DenseProduct, DenseScratch, Device, KernelError, Kernels, Stream, TensorRef};

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "few_gate") {
        outcomes.extend(verify(&FewGate::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct FewGate {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: few_gate::FewGate,
    product: DenseProduct,
    activation: silu_mul::SiluMul,
    hidden: usize,
    width: usize,
    x: Vec<bf16>,
    weights: CudaSlice<bf16>,
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    gate_up: Output<bf16>,
    scratch: DenseScratch,
    /// Of this form and of the other.
    y: [Output<bf16>; 2],
}

impl FewGate {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((k, hidden), (i, width)) = (row.dim("K")?, row.dim("I")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let weights = random.values(2 * width * hidden, 8.0 / (hidden as f32).sqrt());
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: few_gate::FewGate::load(kernels, few_gate::Dims { k, i })?,
            product: DenseProduct::few(kernels, hidden)?,
            activation: silu_mul::SiluMul::load(kernels, silu_mul::Dims { i })?,
            hidden,
            width,
            x: random.values(rows * hidden, 2.0),
            weights: upload(&stream, &weights)?,
            stream,
        })
    }
}

impl Subject for FewGate {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows) = (&self.stream, order.len());
        let y = || Output::poisoned(stream, rows, self.width);
        Ok(Memory {
            rows,
            x: upload(stream, &gather(&self.x, self.hidden, order))?,
            gate_up: Output::poisoned(stream, rows, 2 * self.width)?,
            scratch: DenseScratch::few(stream, rows, 2 * self.width)?,
            y: [y()?, y()?],
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let args = few_gate::Args {
            x: TensorRef::new(stream, memory.x.as_view(), [rows, self.hidden])?,
            w: TensorRef::new(stream, self.weights.as_view(), [2 * self.width, self.hidden])?,
            y: memory.y[0].tensor(stream, [rows, self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let x = TensorRef::new(stream, memory.x.as_view(), [rows, self.hidden])?;
        let w = TensorRef::new(stream, self.weights.as_view(), [2 * self.width, self.hidden])?;
        let to = memory.gate_up.tensor(stream, [rows, 2 * self.width])?;
        self.product.launch(stream, &mut memory.scratch, x, w, to)?;
        let gate_up = memory.gate_up.slice().slice(..rows * 2 * self.width);
        let args = silu_mul::Args {
            gate_up: TensorRef::new(stream, gate_up, [rows, 2 * self.width])?,
            y: memory.y[1].tensor(stream, [rows, self.width])?,
        };
        self.activation.launch(stream, Choice::Auto, args)?;
        memory.y.iter().map(|y| y.written(stream, "y")).collect()
    }

    fn judge(&self, _: &[usize], written: &[Written]) -> Result<f64, String> {
        same_bits(written)
    }

    fn bytes(&self, rows: usize) -> usize {
        (2 * self.width * self.hidden + rows * (self.hidden + self.width)) * size_of::<bf16>()
    }
}
