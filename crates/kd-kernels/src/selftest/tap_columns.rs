//! `tap_columns` against the columns themselves.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::tap_columns;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

/// Ranks of the test, and which of them takes its part.
const RANKS: usize = 3;
const RANK: usize = 1;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "tap_columns") {
        outcomes.extend(verify(&TapColumns::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct TapColumns {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: tap_columns::TapColumns,
    width: usize,
    x: Vec<bf16>,
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    y: Output<bf16>,
}

impl TapColumns {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (c, width) = row.dim("C")?;
        Ok(Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: tap_columns::TapColumns::load(kernels, tap_columns::Dims { c })?,
            width,
            x: Random::new(seed).values(rows * RANKS * width, 1.0),
        })
    }
}

impl Subject for TapColumns {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        Ok(Memory {
            rows: order.len(),
            x: upload(&self.stream, &gather(&self.x, RANKS * self.width, order))?,
            y: Output::poisoned(&self.stream, order.len(), self.width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let args = tap_columns::Args {
            x: TensorRef::new(stream, memory.x.as_view(), [rows, RANKS * self.width])?,
            rank: RANK as i32,
            y: memory.y.tensor(stream, [rows, self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        for (i, &input) in order.iter().enumerate() {
            let expected = &self.x[(input * RANKS + RANK) * self.width..][..self.width];
            if y.values::<bf16>(i) != expected {
                return Err(format!("row {i} does not hold the columns of rank {RANK}"));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * 2 * self.width * size_of::<bf16>()
    }
}
