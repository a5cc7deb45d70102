//! `mla_inputs` against the norms and the rotation of `Mla::latents` and `Mla::queries`.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::mla_inputs;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};
use kd_tensor::ops;

use super::{Angles, EPS, POSITIONS, rotation_slack};

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "mla_inputs") {
        outcomes.extend(verify(&MlaInputs::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct MlaInputs {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: mla_inputs::MlaInputs,
    query: usize,
    latent: usize,
    rotated: usize,
    x: Vec<bf16>,
    /// Gains of the query and of the latent.
    gains: [CudaSlice<bf16>; 2],
    gain_values: [Vec<f32>; 2],
    angles: Angles,
    rope: CudaSlice<f32>,
    /// Where each input row's entry goes; -1 for padding.
    slots: Vec<i32>,
}

pub(super) struct Memory {
    order: Vec<usize>,
    x: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    q: Output<bf16>,
    cache: Output<bf16>,
}

impl MlaInputs {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((q, query), (c, latent), (r, rotated)) = (row.dim("Q")?, row.dim("C")?, row.dim("R")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let gains = [random.values(query, 2.0), random.values(latent, 2.0)];
        let angles = Angles::new(rotated, rows, &mut random);
        let mut slots: Vec<i32> =
            random.distinct(rows, 2 * rows).into_iter().map(|slot| slot as i32).collect();
        slots.iter_mut().skip(3).step_by(10).for_each(|slot| *slot = -1);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: mla_inputs::MlaInputs::load(kernels, mla_inputs::Dims { q, c, r })?,
            query,
            latent,
            rotated,
            x: random.values(rows * (query + latent + rotated), 4.0),
            gain_values: [0, 1].map(|i| gains[i].iter().map(|value| value.to_f32()).collect()),
            gains: [upload(&stream, &gains[0])?, upload(&stream, &gains[1])?],
            rope: upload(&stream, &angles.table())?,
            angles,
            slots,
            stream,
        })
    }

    fn width(&self) -> usize {
        self.query + self.latent + self.rotated
    }
}

impl Subject for MlaInputs {
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
            x: upload(stream, &gather(&self.x, self.width(), order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            slots: upload(stream, &gather(&self.slots, 1, order))?,
            q: Output::poisoned(stream, order.len(), self.query)?,
            cache: Output::poisoned(stream, 2 * self.slots.len(), self.latent + self.rotated)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.order.len());
        let args = mla_inputs::Args {
            x: TensorRef::new(stream, memory.x.as_view(), [rows, self.width()])?,
            q_gain: TensorRef::new(stream, self.gains[0].as_view(), [self.query])?,
            kv_gain: TensorRef::new(stream, self.gains[1].as_view(), [self.latent])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, self.rotated])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            q: memory.q.tensor(stream, [rows, self.query])?,
            cache: memory.cache.tensor(stream, [2 * self.slots.len(), self.latent + self.rotated])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let cache = memory.cache.written(&self.stream, "cache")?;
        let entries = cache.scattered(&gather(&self.slots, 1, &memory.order));
        Ok(vec![memory.q.written(&self.stream, "q")?, entries])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [q, cache] = written else { return Err("outputs are missing".to_owned()) };
        let (table, mut bound) = (self.angles.of(order), Bound::default());
        for (row, &input) in order.iter().enumerate() {
            let mut expected: Vec<f32> =
                gather(&self.x, self.width(), &[input]).iter().map(|value| value.to_f32()).collect();
            let (query, entry) = expected.split_at_mut(self.query);
            ops::rms_norm_in_place(query, &self.gain_values[0], EPS);
            bound.row(row, &q.values(row), query, |_| 0.0)?;
            if self.slots[input] < 0 {
                continue;
            }
            let before = entry.to_vec();
            let (latent, key) = entry.split_at_mut(self.latent);
            ops::rms_norm_in_place(latent, &self.gain_values[1], EPS);
            table.rotate_interleaved(row, key);
            let slack =
                |i: usize| if i < self.latent { 0.0 } else { rotation_slack(before[i], before[i ^ 1]) };
            bound.row(row, &cache.values(row), entry, slack)?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.width() * size_of::<bf16>() + 2 * size_of::<i32>())
            + rows * self.rotated * size_of::<f32>()
            + (self.query + self.latent) * size_of::<bf16>()
    }
}
