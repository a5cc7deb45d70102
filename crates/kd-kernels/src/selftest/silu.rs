//! `silu_mul` against `kd_tensor::ops::silu_mul`.

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::ops;

use super::{Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::silu_mul;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "silu_mul") {
        outcomes.extend(verify(&Silu::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct Silu {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: silu_mul::SiluMul,
    width: usize,
    gate_up: Vec<bf16>,
}

struct Memory {
    rows: usize,
    gate_up: CudaSlice<bf16>,
    y: Output<bf16>,
}

impl Silu {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (i, width) = row.dim("I")?;
        let mut random = Random::new(seed);
        let mut gate_up = random.values(rows * 2 * width, 12.0);
        // Where the exponential overflows, vanishes and is 1.
        for (value, gate) in gate_up.iter_mut().zip([-200.0, 200.0, 0.0, -88.5, -0.0]) {
            *value = bf16::from_f32(gate);
        }
        Ok(Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: silu_mul::SiluMul::load(kernels, silu_mul::Dims { i })?,
            width,
            gate_up,
        })
    }
}

impl Subject for Silu {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let gate_up = upload(&self.stream, &gather(&self.gate_up, 2 * self.width, order))?;
        let y = Output::poisoned(&self.stream, order.len(), self.width)?;
        Ok(Memory { rows: order.len(), gate_up, y })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let args = silu_mul::Args {
            gate_up: TensorRef::new(stream, memory.gate_up.as_view(), [rows, 2 * self.width])?,
            y: memory.y.tensor(stream, [rows, self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let mut bound = Bound::default();
        let inputs = gather(&self.gate_up, 2 * self.width, order);
        for (row, input) in inputs.chunks_exact(2 * self.width).enumerate() {
            let input: Vec<f32> = input.iter().map(|value| value.to_f32()).collect();
            let (gate, up) = input.split_at(self.width);
            let mut expected = gate.to_vec();
            ops::silu_mul(&mut expected, up);
            bound.row(row, &y.values(row), &expected, |_| 0.0)?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        3 * rows * self.width * size_of::<bf16>()
    }
}
