//! `embed` against `kd_tensor::ops::embed`.

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::{Bf16Matrix, Matrix, ops};

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::embed;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

/// Rows of the test's table, of which the rank holds a part in the middle.
const VOCAB: usize = 1000;
const HELD: usize = 250;
const RANK: usize = 2;
const FIRST: usize = RANK * HELD;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "embed") {
        outcomes.extend(verify(&Embed::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct Embed {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: embed::Embed,
    width: usize,
    ids: Vec<u32>,
    /// The whole table, on the host.
    table: Vec<bf16>,
    /// The rank's part.
    held: CudaSlice<bf16>,
}

struct Memory {
    ids: CudaSlice<i32>,
    y: Output<bf16>,
}

impl Embed {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (h, width) = row.dim("H")?;
        let stream = device.stream()?;
        let mut random = Random::new(seed);
        let table = random.values(VOCAB * width, 1.0);
        // The edges of the rank's part and of the table, then anything.
        let edges = [FIRST, FIRST - 1, FIRST + HELD - 1, FIRST + HELD, 0, VOCAB - 1];
        let ids =
            (0..rows).map(|i| edges.get(i).copied().unwrap_or_else(|| random.below(VOCAB)) as u32).collect();
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: embed::Embed::load(kernels, embed::Dims { h })?,
            width,
            ids,
            held: upload(&stream, &table[FIRST * width..(FIRST + HELD) * width])?,
            table,
            stream,
        })
    }

    /// The CPU operation on the whole table, without the rows of other ranks.
    fn expected(&self, order: &[usize]) -> Result<Matrix, String> {
        let table =
            Bf16Matrix::new(VOCAB, self.width, self.table.clone()).map_err(|error| error.to_string())?;
        let ids = gather(&self.ids, 1, order);
        let mut whole = ops::embed(&table, &ids).map_err(|error| error.to_string())?;
        for (row, id) in whole.iter_rows_mut().zip(ids) {
            if !(FIRST..FIRST + HELD).contains(&(id as usize)) {
                row.fill(0.0);
            }
        }
        Ok(whole)
    }
}

impl Subject for Embed {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let ids: Vec<i32> = gather(&self.ids, 1, order).iter().map(|id| id.cast_signed()).collect();
        let y = Output::poisoned(&self.stream, order.len(), self.width)?;
        Ok(Memory { ids: upload(&self.stream, &ids)?, y })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.ids.len());
        let args = embed::Args {
            table: TensorRef::new(stream, self.held.as_view(), [HELD, self.width])?,
            ids: TensorRef::new(stream, memory.ids.as_view(), [rows])?,
            rank: RANK as i32,
            y: memory.y.tensor(stream, [rows, self.width])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let expected = self.expected(order)?;
        let y = written.first().ok_or("the output is missing")?;
        for (i, expected) in expected.iter_rows().enumerate() {
            let found: Vec<f32> = y.values::<bf16>(i).iter().map(|value| value.to_f32()).collect();
            if found != expected {
                return Err(format!("row {i} is not row {} of the table", self.ids[order[i]]));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.width * size_of::<bf16>() + size_of::<i32>())
    }
}
