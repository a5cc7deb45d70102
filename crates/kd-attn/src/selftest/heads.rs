//! `head_norm_rope` against the norm and the half-split rotation of the drafter's queries.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::head_norm_rope;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};
use kd_tensor::ops;

use super::{Angles, EPS, POSITIONS, rotation_slack};
use crate::RopeTable;

/// Heads of the test: not a whole number of CTAs.
const HEADS: usize = 9;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "head_norm_rope") {
        outcomes.extend(verify(&Heads::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// One row of heads through the CPU operations: the result, and the slack of each element.
pub(super) fn norm_rotate(
    heads: &[bf16],
    gain: &[f32],
    table: &RopeTable,
    row: usize,
) -> (Vec<f32>, Vec<f32>) {
    let mut values: Vec<f32> = heads.iter().map(|value| value.to_f32()).collect();
    let mut slack = Vec::with_capacity(values.len());
    let half = gain.len() / 2;
    for head in values.chunks_exact_mut(gain.len()) {
        ops::rms_norm_in_place(head, gain, EPS);
        // The norm's own rounding counts too: it enters the rotation with both members of a pair.
        slack.extend((0..gain.len()).map(|i| 4.0 * rotation_slack(head[i], head[(i + half) % gain.len()])));
        table.rotate_half_split(row, head);
    }
    (values, slack)
}

struct Heads {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: head_norm_rope::HeadNormRope,
    dim: usize,
    x: Vec<bf16>,
    gain: CudaSlice<bf16>,
    gain_values: Vec<f32>,
    angles: Angles,
    rope: CudaSlice<f32>,
}

struct Memory {
    x: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    y: Output<bf16>,
}

impl Heads {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (d, dim) = row.dim("D")?;
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let gain = random.values(dim, 2.0);
        let angles = Angles::new(dim, rows, &mut random);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: head_norm_rope::HeadNormRope::load(kernels, head_norm_rope::Dims { d })?,
            dim,
            x: random.values(rows * HEADS * dim, 4.0),
            gain: upload(&stream, &gain)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            rope: upload(&stream, &angles.table())?,
            angles,
            stream,
        })
    }
}

impl Subject for Heads {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, width) = (&self.stream, HEADS * self.dim);
        Ok(Memory {
            x: upload(stream, &gather(&self.x, width, order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            y: Output::poisoned(stream, order.len(), width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.positions.len());
        let args = head_norm_rope::Args {
            x: TensorRef::new(stream, memory.x.as_view(), [rows, HEADS, self.dim])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [self.dim])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, self.dim])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            y: memory.y.tensor(stream, [rows, HEADS, self.dim])?,
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
            let heads = gather(&self.x, HEADS * self.dim, &[input]);
            let (expected, slack) = norm_rotate(&heads, &self.gain_values, &table, row);
            bound.row(row, &y.values(row), &expected, |i| slack[i])?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * HEADS * self.dim * size_of::<bf16>() + self.dim * size_of::<f32>() + size_of::<i32>())
    }
}
