//! `latent_append` against the norm and the rotation of `Mla::latents`.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::latent_append;
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
    for row in units(kernels, "latent_append") {
        outcomes.extend(verify(&LatentAppend::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct LatentAppend {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: latent_append::LatentAppend,
    latent: usize,
    width: usize,
    kv: Vec<bf16>,
    gain: CudaSlice<bf16>,
    gain_values: Vec<f32>,
    angles: Angles,
    rope: CudaSlice<f32>,
    /// Where each input row goes; -1 for padding.
    slots: Vec<i32>,
}

pub(super) struct Memory {
    order: Vec<usize>,
    kv: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    cache: Output<bf16>,
}

impl LatentAppend {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((c, latent), (r, rotated)) = (row.dim("C")?, row.dim("R")?);
        let (stream, width) = (device.stream()?, latent + rotated);
        let mut random = Random::new(seed);
        let gain = random.values(latent, 2.0);
        let angles = Angles::new(rotated, rows, &mut random);
        let mut slots: Vec<i32> =
            random.distinct(rows, 2 * rows).into_iter().map(|slot| slot as i32).collect();
        slots.iter_mut().skip(3).step_by(10).for_each(|slot| *slot = -1);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: latent_append::LatentAppend::load(kernels, latent_append::Dims { c, r })?,
            latent,
            width,
            kv: random.values(rows * width, 4.0),
            gain: upload(&stream, &gain)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            rope: upload(&stream, &angles.table())?,
            angles,
            slots,
            stream,
        })
    }
}

impl Subject for LatentAppend {
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
            kv: upload(stream, &gather(&self.kv, self.width, order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            slots: upload(stream, &gather(&self.slots, 1, order))?,
            cache: Output::poisoned(stream, 2 * self.slots.len(), self.width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.order.len());
        let rotated = self.width - self.latent;
        let args = latent_append::Args {
            kv: TensorRef::new(stream, memory.kv.as_view(), [rows, self.width])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [self.latent])?,
            eps: EPS,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, rotated])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            cache: memory.cache.tensor(stream, [2 * self.slots.len(), self.width])?,
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
        for (row, &input) in order.iter().enumerate() {
            if self.slots[input] < 0 {
                continue;
            }
            let mut expected: Vec<f32> =
                gather(&self.kv, self.width, &[input]).iter().map(|value| value.to_f32()).collect();
            let before = expected.clone();
            let (latent, key) = expected.split_at_mut(self.latent);
            ops::rms_norm_in_place(latent, &self.gain_values, EPS);
            table.rotate_interleaved(row, key);
            let slack =
                |i: usize| if i < self.latent { 0.0 } else { rotation_slack(before[i], before[i ^ 1]) };
            bound.row(row, &cache.values(row), &expected, slack)?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.width * size_of::<bf16>() + 2 * size_of::<i32>())
            + rows * (self.width - self.latent) * size_of::<f32>()
            + self.latent * size_of::<bf16>()
    }
}
