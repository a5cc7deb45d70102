//! `gather_taps` against rows picked on the host.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::gather_taps;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

/// Taps of the test, and rows of each.
const TAPS: usize = 3;
const ROWS: usize = 70;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "gather_taps") {
        outcomes.extend(verify(&Taps::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct Taps {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: gather_taps::GatherTaps,
    width: usize,
    /// Which row each row of the result is; one that there is not gives zeros.
    rows: Vec<i32>,
    /// `[TAPS, ROWS, width]`
    taps: Vec<bf16>,
    held: CudaSlice<bf16>,
}

struct Memory {
    rows: CudaSlice<i32>,
    y: Output<bf16>,
}

impl Taps {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (h, width) = row.dim("H")?;
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let taps = random.values(TAPS * ROWS * width, 1.0);
        let edges = [0, -1, ROWS as i32 - 1, ROWS as i32];
        let at = |i: usize| edges.get(i).copied().unwrap_or_else(|| random.below(ROWS) as i32);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: gather_taps::GatherTaps::load(kernels, gather_taps::Dims { h })?,
            width,
            rows: (0..rows).map(at).collect(),
            held: upload(&stream, &taps)?,
            taps,
            stream,
        })
    }
}

impl Subject for Taps {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let y = Output::poisoned(&self.stream, order.len(), TAPS * self.width)?;
        Ok(Memory { rows: upload(&self.stream, &gather(&self.rows, 1, order))?, y })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows.len());
        let args = gather_taps::Args {
            taps: TensorRef::new(stream, self.held.as_view(), [TAPS, ROWS, self.width])?,
            rows: TensorRef::new(stream, memory.rows.as_view(), [rows])?,
            y: memory.y.tensor(stream, [rows, TAPS, self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        for (i, &input) in order.iter().enumerate() {
            let held = usize::try_from(self.rows[input]).ok().filter(|row| *row < ROWS);
            let of = |tap: usize| match held {
                Some(row) => self.taps[(tap * ROWS + row) * self.width..][..self.width].to_vec(),
                None => vec![bf16::ZERO; self.width],
            };
            if y.values::<bf16>(i) != (0..TAPS).flat_map(of).collect::<Vec<_>>() {
                return Err(format!("row {i} is not row {} of each tap", self.rows[input]));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * TAPS * self.width * size_of::<bf16>() + size_of::<i32>())
    }
}
