//! `drafter_append` against the drafter's keys (normed and rotated) and values (copied).

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::drafter_append;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};

use super::heads::norm_rotate;
use super::{Angles, EPS, POSITIONS};

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "drafter_append") {
        outcomes.extend(verify(&DrafterAppend::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct DrafterAppend {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: drafter_append::DrafterAppend,
    heads: usize,
    dim: usize,
    keys: Vec<bf16>,
    values: Vec<bf16>,
    gain: CudaSlice<bf16>,
    gain_values: Vec<f32>,
    angles: Angles,
    rope: CudaSlice<f32>,
    /// Where each input row goes; -1 for padding.
    slots: Vec<i32>,
}

struct Memory {
    order: Vec<usize>,
    keys: CudaSlice<bf16>,
    values: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    cache: Output<bf16>,
}

impl DrafterAppend {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((d, dim), (n, heads)) = (row.dim("D")?, row.dim("N")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let gain = random.values(dim, 2.0);
        let angles = Angles::new(dim, rows, &mut random);
        let mut slots: Vec<i32> =
            random.distinct(rows, 2 * rows).into_iter().map(|slot| slot as i32).collect();
        slots.iter_mut().skip(3).step_by(10).for_each(|slot| *slot = -1);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: drafter_append::DrafterAppend::load(kernels, drafter_append::Dims { d, n })?,
            heads,
            dim,
            keys: random.values(rows * heads * dim, 4.0),
            values: random.values(rows * heads * dim, 4.0),
            gain: upload(&stream, &gain)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            rope: upload(&stream, &angles.table())?,
            angles,
            slots,
            stream,
        })
    }
}

impl Subject for DrafterAppend {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, width) = (&self.stream, self.heads * self.dim);
        Ok(Memory {
            order: order.to_vec(),
            keys: upload(stream, &gather(&self.keys, width, order))?,
            values: upload(stream, &gather(&self.values, width, order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            slots: upload(stream, &gather(&self.slots, 1, order))?,
            cache: Output::poisoned(stream, 2 * self.slots.len(), 2 * width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, heads, dim) = (&self.stream, memory.order.len(), self.heads, self.dim);
        let args = drafter_append::Args {
            keys: TensorRef::new(stream, memory.keys.as_view(), [rows, heads, dim])?,
            values: TensorRef::new(stream, memory.values.as_view(), [rows, heads, dim])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [dim])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, dim])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            cache: memory.cache.tensor(stream, [2 * self.slots.len(), 2, heads, dim])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let cache = memory.cache.written(&self.stream, "cache")?;
        Ok(vec![cache.scattered(&gather(&self.slots, 1, &memory.order))])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let cache = written.first().ok_or("the output is missing")?;
        let (table, mut bound) = (self.angles.of(order), Bound::default());
        let width = self.heads * self.dim;
        for (row, &input) in order.iter().enumerate() {
            if self.slots[input] < 0 {
                continue;
            }
            let entry: Vec<bf16> = cache.values(row);
            let (keys, values) = entry.split_at_checked(width).ok_or("a cache entry is cut short")?;
            let (expected, slack) =
                norm_rotate(&gather(&self.keys, width, &[input]), &self.gain_values, &table, row);
            bound.row(row, keys, &expected, |i| slack[i])?;
            if values != gather(&self.values, width, &[input]) {
                return Err(format!("the values of row {row} are not those of the input"));
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (4 * self.heads * self.dim * size_of::<bf16>()
            + self.dim * size_of::<f32>()
            + 2 * size_of::<i32>())
    }
}
