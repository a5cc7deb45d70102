//! `rms_norm` and `add_rms_norm` against `kd_tensor::ops::rms_norm`.

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::ops;

use super::memory::POISON;
use super::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, first_difference, gather, units, upload,
    verify,
};
use crate::bundle::Row;
use crate::families::{add_rms_norm, rms_norm};
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

const EPS: f32 = 1e-5;

/// Ranks whose partial sums the fused form adds: one, and enough that the order of the sum shows.
const PARTS: [usize; 2] = [1, 4];

/// Both families; the fused form must be bitwise an add in rank order followed by the norm.
pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "rms_norm") {
        outcomes.extend(verify(&Norm::new(device, kernels, row, 0, most, seed)?, rows)?);
    }
    for row in units(kernels, "add_rms_norm") {
        for parts in PARTS {
            let norm = Norm::new(device, kernels, row, parts, most, seed)?;
            outcomes.extend(verify(&norm, rows)?);
            rows.iter().try_for_each(|rows| norm.taps_of_fewer_rows(*rows))?;
        }
    }
    Ok(outcomes)
}

/// Partial sums of `ranks` ranks, of which two large ones cancel, so that the order of the sum shows.
fn partial_sums(ranks: usize, count: usize, random: &mut Random) -> Vec<Vec<bf16>> {
    let mut parts: Vec<Vec<bf16>> = (0..ranks).map(|_| random.values(count, 1.0)).collect();
    if let [_, large, .., last] = &mut parts[..] {
        *large = random.values(count, 3e7);
        *last = large.iter().map(|value| -*value).collect();
    }
    parts
}

/// What the residual stream must hold: its input `x` plus the parts' sum in rank order, rounded once.
fn residual(x: Vec<bf16>, parts: &[Vec<bf16>]) -> Vec<bf16> {
    let Some((first, rest)) = parts.split_first() else { return x };
    let sum = |i: usize| rest.iter().fold(first[i].to_f32(), |sum, part| sum + part[i].to_f32());
    x.iter().enumerate().map(|(i, x)| bf16::from_f32(x.to_f32() + sum(i))).collect()
}

struct Norm {
    stream: Stream,
    unit: String,
    variant: String,
    norm: rms_norm::RmsNorm,
    fused: Option<add_rms_norm::AddRmsNorm>,
    width: usize,
    x: Vec<bf16>,
    /// The partial sums of each rank; none for the plain norm.
    parts: Vec<Vec<bf16>>,
    gain: CudaSlice<bf16>,
    gain_values: Vec<f32>,
}

struct Memory {
    rows: usize,
    /// Input, and the residual stream of the fused form.
    h: Output<bf16>,
    parts: CudaSlice<bf16>,
    /// Where the fused form leaves the residual stream once more.
    tap: Output<bf16>,
    y: Output<bf16>,
}

impl Norm {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        parts: usize,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (h, width) = row.dim("H")?;
        let fused = parts > 0;
        let stream = device.stream()?;
        let mut random = Random::new(seed);
        let gain = random.values(width, 2.0);
        Ok(Self {
            norm: rms_norm::RmsNorm::load(kernels, rms_norm::Dims { h })?,
            fused: fused
                .then(|| add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h }))
                .transpose()?,
            unit: if parts > 1 { format!("{}, {parts} ranks", row.unit) } else { row.unit.clone() },
            variant: row.variant.clone(),
            width,
            x: random.values(rows * width, 3.0),
            parts: partial_sums(parts, rows * width, &mut random),
            gain: upload(&stream, &gain)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            stream,
        })
    }

    /// The plain norm of the first `rows` rows of `h`, into `y`.
    fn launch_norm(&self, rows: usize, h: &Output<bf16>, y: &mut Output<bf16>) -> Result<(), KernelError> {
        let (stream, shape) = (&self.stream, [rows, self.width]);
        let x = TensorRef::new(stream, h.slice().slice(..rows * self.width), shape)?;
        let gain = TensorRef::new(stream, self.gain.as_view(), [self.width])?;
        let args = rms_norm::Args { x, gain, eps: EPS, y: y.tensor(stream, shape)? };
        self.norm.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    /// What the residual stream must hold for the rows `order`.
    fn residual(&self, order: &[usize]) -> Vec<bf16> {
        let x = gather(&self.x, self.width, order);
        let parts: Vec<Vec<bf16>> = self.parts.iter().map(|part| gather(part, self.width, order)).collect();
        residual(x, &parts)
    }
}

impl Norm {
    /// One launch whose first `tapped` rows are tapped.
    fn launch_tapped(&self, memory: &mut Memory, tapped: usize) -> Result<(), KernelError> {
        let (stream, shape) = (&self.stream, [memory.rows, self.width]);
        let Some(kernel) = &self.fused else {
            return self.launch_norm(memory.rows, &memory.h, &mut memory.y);
        };
        let args = add_rms_norm::Args {
            h: memory.h.tensor(stream, shape)?,
            parts: TensorRef::new(
                stream,
                memory.parts.as_view(),
                [self.parts.len(), memory.rows, self.width],
            )?,
            gain: TensorRef::new(stream, self.gain.as_view(), [self.width])?,
            eps: EPS,
            early: 0,
            tap: memory.tap.first(stream, tapped, [tapped, self.width])?,
            y: memory.y.tensor(stream, shape)?,
        };
        kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    /// A tap of half the rows holds these and no more.
    fn taps_of_fewer_rows(&self, rows: usize) -> Result<(), Failure> {
        let mut memory = self.memory(&(0..rows).collect::<Vec<_>>())?;
        let tapped = rows.div_ceil(2);
        self.launch_tapped(&mut memory, tapped)?;
        let (h, tap) = (memory.h.written(&self.stream, "h")?, memory.tap.written(&self.stream, "tap")?);
        only_tapped(&h, &tap, rows, tapped).map_err(|what| Failure::Wrong {
            unit: self.unit.clone(),
            rows,
            what,
        })
    }
}

/// Whether `tap` holds the first `tapped` of the `rows` rows of `sum`, and nothing else was written.
pub(super) fn only_tapped(sum: &Written, tap: &Written, rows: usize, tapped: usize) -> Result<(), String> {
    for row in 0..rows {
        if row < tapped && tap.row(row) != sum.row(row) {
            return Err(format!("row {row}: the tap of {tapped} rows is not the residual"));
        }
        if row >= tapped && tap.row(row).iter().any(|byte| *byte != POISON) {
            return Err(format!("row {row}: the tap of {tapped} rows has it too"));
        }
    }
    Ok(())
}

impl Subject for Norm {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, width) = (&self.stream, order.len(), self.width);
        let mut parts: Vec<bf16> = self.parts.iter().flat_map(|part| gather(part, width, order)).collect();
        parts.resize(parts.len().max(1), bf16::ZERO);
        Ok(Memory {
            rows,
            h: Output::holding(stream, &gather(&self.x, width, order), rows, width)?,
            parts: upload(stream, &parts)?,
            tap: Output::poisoned(stream, rows, width)?,
            y: Output::poisoned(stream, rows, width)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        self.launch_tapped(memory, memory.rows)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let mut written = vec![memory.h.written(&self.stream, "h")?, memory.y.written(&self.stream, "y")?];
        if self.fused.is_some() {
            let mut plain = Output::poisoned(&self.stream, memory.rows, self.width)?;
            self.launch_norm(memory.rows, &memory.h, &mut plain)?;
            written.push(plain.written(&self.stream, "y of the plain norm")?);
            written.push(memory.tap.written(&self.stream, "tap")?);
        }
        Ok(written)
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [h, y, fused @ ..] = written else { return Err("outputs are missing".to_owned()) };
        let residual = self.residual(order);
        let mut bound = Bound::default();
        let mut expected = vec![0.0; self.width];
        for (row, residual) in residual.chunks_exact(self.width).enumerate() {
            if let Some(i) = first_difference(&h.values::<bf16>(row), residual) {
                return Err(format!("residual {i} of row {row} is not the rounded sum"));
            }
            let x: Vec<f32> = residual.iter().map(|value| value.to_f32()).collect();
            ops::rms_norm(&x, &self.gain_values, EPS, &mut expected);
            bound.row(row, &y.values(row), &expected, |_| 0.0)?;
            let (plain, tap) = match fused {
                [] if self.fused.is_none() => continue,
                [plain, tap] => (plain, tap),
                _ => return Err("outputs are missing".to_owned()),
            };
            if plain.row(row) != y.row(row) {
                return Err(format!("row {row}: fused differs from add, then norm"));
            }
            if tap.row(row) != h.row(row) {
                return Err(format!("row {row}: the tap is not the residual"));
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        // The residual is read and written, and written to the tap.
        let passes = if self.fused.is_some() { 4 + self.parts.len() } else { 2 };
        (passes * rows * self.width + self.width) * size_of::<bf16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_lacks_a_row_or_has_one_more_is_wrong() {
        let written = |bytes: &[u8]| Written { name: "tap", row_bytes: 2, bytes: bytes.to_vec() };
        let (sum, p) = (written(&[1, 2, 3, 4, 5, 6]), POISON);
        assert_eq!(only_tapped(&sum, &written(&[1, 2, 3, 4, p, p]), 3, 2), Ok(()));
        for wrong in [[1, 2, p, p, p, p], [1, 2, 3, 4, 5, 6], [1, 2, 3, 3, p, p]] {
            only_tapped(&sum, &written(&wrong), 3, 2).expect_err("another tap");
        }
    }

    /// A kernel that adds the parts in another order of ranks gives other bits on these inputs, in every row.
    #[test]
    fn a_reversed_rank_order_shows_in_every_row() {
        let (rows, width) = (33, 512);
        let mut random = Random::new(7);
        let x = random.values(rows * width, 3.0);
        for ranks in PARTS.into_iter().filter(|ranks| *ranks > 1) {
            let mut parts = partial_sums(ranks, rows * width, &mut random);
            let right = residual(x.clone(), &parts);
            parts.reverse();
            let reversed = residual(x.clone(), &parts);
            for (row, (right, reversed)) in right.chunks(width).zip(reversed.chunks(width)).enumerate() {
                assert!(first_difference(right, reversed).is_some(), "row {row} of {ranks} ranks");
            }
        }
    }
}
