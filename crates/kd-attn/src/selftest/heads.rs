//! `drafter_heads` against the norm and the half-split rotation of the drafter's queries and keys.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::drafter_heads;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};
use kd_tensor::ops;

use super::{Angles, EPS, POSITIONS, rotation_slack};
use crate::RopeTable;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "drafter_heads") {
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
    kernel: drafter_heads::DrafterHeads,
    dim: usize,
    queries: usize,
    keys: usize,
    /// `[rows, queries + 2 keys, dim]`
    qkv: Vec<bf16>,
    /// Of queries, of keys.
    gains: [CudaSlice<bf16>; 2],
    gain_values: [Vec<f32>; 2],
    angles: Angles,
    rope: CudaSlice<f32>,
}

struct Memory {
    qkv: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    q: Output<bf16>,
    own: Output<bf16>,
}

impl Heads {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((d, dim), (q, queries), (n, keys)) = (row.dim("D")?, row.dim("Q")?, row.dim("N")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let gains = [random.values(dim, 2.0), random.values(dim, 2.0)];
        let angles = Angles::new(dim, rows, &mut random);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: drafter_heads::DrafterHeads::load(kernels, drafter_heads::Dims { d, q, n })?,
            dim,
            queries,
            keys,
            qkv: random.values(rows * (queries + 2 * keys) * dim, 4.0),
            gains: [upload(&stream, &gains[0])?, upload(&stream, &gains[1])?],
            gain_values: gains.map(|gain| gain.iter().map(|value| value.to_f32()).collect()),
            rope: upload(&stream, &angles.table())?,
            angles,
            stream,
        })
    }

    fn width(&self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
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
        let (stream, rows) = (&self.stream, order.len());
        Ok(Memory {
            qkv: upload(stream, &gather(&self.qkv, self.width(), order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            q: Output::poisoned(stream, rows, self.queries * self.dim)?,
            own: Output::poisoned(stream, rows, 2 * self.keys * self.dim)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, dim) = (&self.stream, memory.positions.len(), self.dim);
        let all = self.queries + 2 * self.keys;
        let args = drafter_heads::Args {
            qkv: TensorRef::new(stream, memory.qkv.as_view(), [rows, all, dim])?,
            query_gain: TensorRef::new(stream, self.gains[0].as_view(), [dim])?,
            key_gain: TensorRef::new(stream, self.gains[1].as_view(), [dim])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, dim])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            q: memory.q.tensor(stream, [rows, self.queries, dim])?,
            own: memory.own.tensor(stream, [rows, 2, self.keys, dim])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.q.written(&self.stream, "q")?, memory.own.written(&self.stream, "own")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [q, own] = written else { return Err("an output is missing".to_owned()) };
        let (table, mut bound) = (self.angles.of(order), Bound::default());
        for (row, &input) in order.iter().enumerate() {
            let heads = gather(&self.qkv, self.width(), &[input]);
            let (queries, heads) = heads.split_at(self.queries * self.dim);
            let (keys, values) = heads.split_at(self.keys * self.dim);
            let (expected, slack) = norm_rotate(queries, &self.gain_values[0], &table, row);
            bound.row(row, &q.values(row), &expected, |i| slack[i])?;
            let (expected, slack) = norm_rotate(keys, &self.gain_values[1], &table, row);
            let found: Vec<bf16> = own.values(row);
            let (found_keys, found_values) = found.split_at(keys.len());
            bound.row(row, found_keys, &expected, |i| slack[i])?;
            if found_values != values {
                return Err(format!("row {row}: a value is not the one that was given"));
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.width() * size_of::<bf16>() + self.dim * size_of::<f32>() + size_of::<i32>())
    }
}
