//! `drafter_context` against the drafter's keys (normed and rotated) and values (copied) of every layer.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::drafter_context;
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
    for row in units(kernels, "drafter_context") {
        outcomes.extend(verify(&DrafterContext::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// Layers of the test.
const LAYERS: usize = 3;

struct DrafterContext {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: drafter_context::DrafterContext,
    heads: usize,
    dim: usize,
    /// `[rows, LAYERS, 2, heads, dim]`
    kv: Vec<bf16>,
    gain: CudaSlice<bf16>,
    /// `[LAYERS, dim]`
    gain_values: Vec<f32>,
    angles: Angles,
    rope: CudaSlice<f32>,
    /// Where each input row goes; -1 for padding.
    slots: Vec<i32>,
}

struct Memory {
    order: Vec<usize>,
    kv: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    cache: Output<bf16>,
}

impl DrafterContext {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((d, dim), (n, heads)) = (row.dim("D")?, row.dim("N")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let gain = random.values(LAYERS * dim, 2.0);
        let angles = Angles::new(dim, rows, &mut random);
        let mut slots: Vec<i32> =
            random.distinct(rows, 2 * rows).into_iter().map(|slot| slot as i32).collect();
        slots.iter_mut().skip(3).step_by(10).for_each(|slot| *slot = -1);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: drafter_context::DrafterContext::load(kernels, drafter_context::Dims { d, n })?,
            heads,
            dim,
            kv: random.values(rows * LAYERS * 2 * heads * dim, 4.0),
            gain: upload(&stream, &gain)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            rope: upload(&stream, &angles.table())?,
            angles,
            slots,
            stream,
        })
    }
}

impl Subject for DrafterContext {
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
            kv: upload(stream, &gather(&self.kv, LAYERS * 2 * width, order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            slots: upload(stream, &gather(&self.slots, 1, order))?,
            cache: Output::poisoned(stream, LAYERS * 2 * self.slots.len(), 2 * width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, heads, dim) = (&self.stream, memory.order.len(), self.heads, self.dim);
        let args = drafter_context::Args {
            kv: TensorRef::new(stream, memory.kv.as_view(), [rows, LAYERS, 2, heads, dim])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [LAYERS, dim])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, dim])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            cache: memory.cache.tensor(stream, [LAYERS, 2 * self.slots.len(), 2, heads, dim])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        // The layers' caches follow each other: a row of the launch is one of each.
        let cache = memory.cache.written(&self.stream, "cache")?;
        let bytes = 2 * self.slots.len() * cache.row_bytes;
        let guard = cache.bytes.get(LAYERS * bytes..).unwrap_or_default();
        let slots = gather(&self.slots, 1, &memory.order);
        let layers = cache.bytes.chunks_exact(bytes).take(LAYERS).enumerate().map(|(layer, bytes)| {
            let guard = if layer + 1 == LAYERS { guard } else { &[] };
            Written { bytes: [bytes, guard].concat(), ..cache }.scattered(&slots)
        });
        Ok(layers.collect())
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let (table, mut bound) = (self.angles.of(order), Bound::default());
        let width = self.heads * self.dim;
        if written.len() != LAYERS {
            return Err(format!("{} layers were written, not {LAYERS}", written.len()));
        }
        for (layer, cache) in written.iter().enumerate() {
            let gain = &self.gain_values[layer * self.dim..(layer + 1) * self.dim];
            for (row, &input) in order.iter().enumerate() {
                if self.slots[input] < 0 {
                    continue;
                }
                let entry: Vec<bf16> = cache.values(row);
                let (keys, values) = entry.split_at_checked(width).ok_or("a cache entry is cut short")?;
                let given = gather(&self.kv, 2 * width, &[input * LAYERS + layer]);
                let (expected, slack) = norm_rotate(&given[..width], gain, &table, row);
                bound
                    .row(row, keys, &expected, |i| slack[i])
                    .map_err(|what| format!("layer {layer}: {what}"))?;
                if *values != given[width..] {
                    return Err(format!("layer {layer}: the values of row {row} are not those of the input"));
                }
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (LAYERS * 4 * self.heads * self.dim * size_of::<bf16>()
            + self.dim * size_of::<f32>()
            + 2 * size_of::<i32>())
    }
}
