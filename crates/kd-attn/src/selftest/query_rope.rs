//! `query_rope` against the rotation of `Mla::queries`.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::query_rope;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};

use super::{Angles, POSITIONS, rotation_slack};

/// Heads of the test: not a whole number of CTAs.
const HEADS: usize = 5;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "query_rope") {
        outcomes.extend(verify(&QueryRope::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct QueryRope {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: query_rope::QueryRope,
    nope: usize,
    rotated: usize,
    /// What stands in front of the rotated part of the result.
    front: usize,
    q: Vec<bf16>,
    angles: Angles,
    rope: CudaSlice<f32>,
}

pub(super) struct Memory {
    order: Vec<usize>,
    q: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    y: Output<bf16>,
}

impl QueryRope {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((n, nope), (r, rotated), (w, front)) = (row.dim("N")?, row.dim("R")?, row.dim("W")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let angles = Angles::new(rotated, rows, &mut random);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: query_rope::QueryRope::load(kernels, query_rope::Dims { n, r, w })?,
            nope,
            rotated,
            front,
            q: random.values(rows * HEADS * (nope + rotated), 4.0),
            rope: upload(&stream, &angles.table())?,
            angles,
            stream,
        })
    }

    fn width(&self) -> usize {
        HEADS * (self.nope + self.rotated)
    }
}

impl Subject for QueryRope {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let stream = &self.stream;
        Ok(Memory {
            order: order.to_vec(),
            q: upload(stream, &gather(&self.q, self.width(), order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            y: Output::poisoned(stream, order.len(), HEADS * (self.front + self.rotated))?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.order.len());
        let args = query_rope::Args {
            q: TensorRef::new(stream, memory.q.as_view(), [rows, HEADS, self.nope + self.rotated])?,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, self.rotated])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            y: memory.y.tensor(stream, [rows, HEADS, self.front + self.rotated])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let (table, mut bound) = (self.angles.of(order), Bound::default());
        for (row, &input) in order.iter().enumerate() {
            let (q, found) = (gather(&self.q, self.width(), &[input]), y.values::<bf16>(row));
            let heads = q.chunks_exact(self.nope + self.rotated);
            for (q, found) in heads.zip(found.chunks_exact(self.front + self.rotated)) {
                let (front, found) = found.split_at(self.front);
                let kept = if self.front == self.nope { &q[..self.nope] } else { &[] };
                let left_alone = front[kept.len()..].iter().all(|value| value.to_bits() == u16::MAX);
                if !front.starts_with(kept) || !left_alone {
                    return Err(format!("row {row}: what is in front of the rotated part"));
                }
                let before: Vec<f32> = q[self.nope..].iter().map(|value| value.to_f32()).collect();
                let mut expected = before.clone();
                table.rotate_interleaved(row, &mut expected);
                bound.row(row, found, &expected, |i| rotation_slack(before[i], before[i ^ 1]))?;
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.width() * size_of::<bf16>() + size_of::<i32>() + self.rotated * size_of::<f32>())
    }
}
