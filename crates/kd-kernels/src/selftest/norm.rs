//! `rms_norm` and `add_rms_norm` against `kd_tensor::ops::rms_norm`.

use cudarc::driver::CudaSlice;
use cudarc::driver::sys::CUevent_flags;
use half::bf16;
use kd_tensor::ops;

use super::random::Random;
use super::{Failure, Outcome, driver};
use crate::bundle::Row;
use crate::families::{add_rms_norm, rms_norm};
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};

const EPS: f32 = 1e-5;
/// Launches of one timing.
const REPEATS: usize = 200;
/// A NaN that no norm produces: what the kernel leaves unwritten shows.
const POISON: bf16 = bf16::from_bits(0x7fa5);
/// Rounding to bf16 (8 significant bits, so half a unit in the last place is at most 2^-8 of the value) and the order of
/// the f32 sum.
const RELATIVE: f32 = 1.0 / 256.0 + 1.0 / 65_536.0;
/// Half the smallest subnormal of bf16.
const ABSOLUTE: f32 = 4.6e-41;

/// Checks every unit of both families in the bundle: values, untouched memory, rows bitwise independent of their number
/// and neighbours, and the fused form bitwise equal to an add followed by the norm.
///
/// # Errors
/// The first difference, or a kernel that cannot run.
pub fn norms(device: &Device, kernels: &Kernels, rows: &[usize], seed: u64) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let units = &kernels.bundle().header().units;
    let most = rows.iter().copied().max().unwrap_or(1);
    for row in units.iter().filter(|row| row.family == "rms_norm" || row.family == "add_rms_norm") {
        let case = Case::new(device, kernels, row, most, seed)?;
        for count in rows {
            outcomes.push(case.check(*count)?);
        }
    }
    Ok(outcomes)
}

/// One unit with inputs for the largest launch; smaller launches take a prefix.
struct Case {
    stream: Stream,
    unit: String,
    variant: String,
    norm: rms_norm::RmsNorm,
    fused: Option<add_rms_norm::AddRmsNorm>,
    width: usize,
    x: Vec<bf16>,
    delta: Vec<bf16>,
    gain: CudaSlice<bf16>,
    gain_values: Vec<f32>,
    /// Output of the largest launch.
    whole: Vec<bf16>,
}

/// Device memory of one launch: one guard row more than the launch has.
struct Memory {
    h: CudaSlice<bf16>,
    delta: CudaSlice<bf16>,
    y: CudaSlice<bf16>,
}

impl Case {
    fn new(device: &Device, kernels: &Kernels, row: &Row, rows: usize, seed: u64) -> Result<Self, Failure> {
        let h = row.dims.get("H").copied().unwrap_or_default();
        let fused = row.family == "add_rms_norm";
        let stream = device.stream()?;
        let width = usize::try_from(h).unwrap_or_default();
        let mut random = Random::new(seed);
        let gain = random.values(width, 2.0);
        let mut case = Self {
            norm: rms_norm::RmsNorm::load(kernels, rms_norm::Dims { h })?,
            fused: fused
                .then(|| add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h }))
                .transpose()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            width,
            x: random.values(rows * width, 3.0),
            delta: random.values(rows * width, 1.0),
            gain: stream.cuda().clone_htod(&gain).map_err(driver)?,
            gain_values: gain.iter().map(|value| value.to_f32()).collect(),
            whole: Vec::new(),
            stream,
        };
        case.whole = case.run(rows)?.1;
        Ok(case)
    }

    fn memory(&self, rows: usize) -> Result<Memory, KernelError> {
        let cuda = self.stream.cuda();
        let poison = vec![POISON; (rows + 1) * self.width];
        let mut h = poison.clone();
        h[..rows * self.width].copy_from_slice(&self.x[..rows * self.width]);
        let upload = |values: &[bf16]| cuda.clone_htod(values).map_err(driver);
        Ok(Memory { h: upload(&h)?, delta: upload(&self.delta[..rows * self.width])?, y: upload(&poison)? })
    }

    /// One launch on the first `rows` rows of `memory`.
    fn launch(&self, memory: &mut Memory, rows: usize, fused: bool) -> Result<(), KernelError> {
        let (stream, shape, size) = (&self.stream, [rows, self.width], rows * self.width);
        let choice = Choice::Forced(&self.variant);
        let gain = TensorRef::new(stream, self.gain.as_view(), [self.width])?;
        let y = TensorMut::new(stream, memory.y.slice_mut(..size), shape)?;
        match &self.fused {
            Some(kernel) if fused => {
                let h = TensorMut::new(stream, memory.h.slice_mut(..size), shape)?;
                let delta = TensorRef::new(stream, memory.delta.as_view(), shape)?;
                kernel.launch(stream, choice, add_rms_norm::Args { h, delta, gain, eps: EPS, y })?;
            }
            _ => {
                let x = TensorRef::new(stream, memory.h.slice(..size), shape)?;
                self.norm.launch(stream, choice, rms_norm::Args { x, gain, eps: EPS, y })?;
            }
        }
        Ok(())
    }

    /// Residual stream and output after one launch, each with its guard row.
    fn run(&self, rows: usize) -> Result<(Vec<bf16>, Vec<bf16>), KernelError> {
        let mut memory = self.memory(rows)?;
        self.launch(&mut memory, rows, self.fused.is_some())?;
        let download = |slice: &CudaSlice<bf16>| self.stream.cuda().clone_dtoh(slice).map_err(driver);
        let result = (download(&memory.h)?, download(&memory.y)?);
        self.stream.synchronize()?;
        Ok(result)
    }

    fn check(&self, rows: usize) -> Result<Outcome, Failure> {
        let wrong = |what: String| Failure::Wrong { unit: self.unit.clone(), rows, what };
        let (h, y) = self.run(rows)?;
        let size = rows * self.width;
        let untouched =
            |values: &[bf16]| values[size..].iter().all(|value| value.to_bits() == POISON.to_bits());
        if !untouched(&h) || !untouched(&y) {
            return Err(wrong("memory beyond the last row was written".to_owned()));
        }
        let residual = self.residual(size);
        if let Some(i) = first_difference(&h[..size], &residual) {
            return Err(wrong(format!(
                "residual {} of row {}: {}, not {}",
                i % self.width,
                i / self.width,
                h[i],
                residual[i]
            )));
        }
        let error = self.values(&y[..size], &residual).map_err(wrong)?;
        if let Some(i) = first_difference(&y[..size], &self.whole[..size]) {
            let what = format!(
                "row {} differs from the same row of a larger launch at {}",
                i / self.width,
                i % self.width
            );
            return Err(wrong(what));
        }
        if self.fused.is_some() {
            self.fused_is_add_then_norm(rows, &y[..size])?.map_err(wrong)?;
        }
        let passes = if self.fused.is_some() { 4 } else { 2 };
        let bytes = (passes * size + self.width) * size_of::<bf16>();
        Ok(Outcome { unit: self.unit.clone(), rows, error, micros: self.time(rows)?, bytes })
    }

    /// What the residual stream must hold: the rounded sum, or the input.
    fn residual(&self, size: usize) -> Vec<bf16> {
        let pairs = self.x[..size].iter().zip(&self.delta[..size]);
        match self.fused {
            Some(_) => pairs.map(|(x, delta)| bf16::from_f32(x.to_f32() + delta.to_f32())).collect(),
            None => self.x[..size].to_vec(),
        }
    }

    /// The largest error as a fraction of what is allowed, or the first that is over it.
    fn values(&self, y: &[bf16], residual: &[bf16]) -> Result<f64, String> {
        let mut worst = 0.0f64;
        let mut expected = vec![0.0; self.width];
        for (row, (y, x)) in y.chunks_exact(self.width).zip(residual.chunks_exact(self.width)).enumerate() {
            let x: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
            ops::rms_norm(&x, &self.gain_values, EPS, &mut expected);
            for (column, (y, expected)) in y.iter().zip(&expected).enumerate() {
                let error = (y.to_f32() - expected).abs() / (expected.abs() * RELATIVE + ABSOLUTE);
                // Written so that a NaN is over the limit.
                if !matches!(
                    error.partial_cmp(&1.0),
                    Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)
                ) {
                    return Err(format!("element {column} of row {row}: {y}, not {expected}"));
                }
                worst = worst.max(f64::from(error));
            }
        }
        Ok(worst)
    }

    /// The plain norm of the residual that the fused kernel stored gives the fused kernel's output.
    fn fused_is_add_then_norm(&self, rows: usize, y: &[bf16]) -> Result<Result<(), String>, KernelError> {
        let mut memory = self.memory(rows)?;
        self.launch(&mut memory, rows, true)?;
        self.launch(&mut memory, rows, false)?;
        let plain = self.stream.cuda().clone_dtoh(&memory.y).map_err(driver)?;
        self.stream.synchronize()?;
        let difference = first_difference(&plain[..y.len()], y);
        Ok(difference
            .map_or(Ok(()), |i| Err(format!("row {}: fused differs from add, then norm", i / self.width))))
    }

    /// Microseconds of one launch, the mean of many after as many to warm up.
    fn time(&self, rows: usize) -> Result<f64, KernelError> {
        let mut memory = self.memory(rows)?;
        let fused = self.fused.is_some();
        let event = || self.stream.cuda().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
        for _ in 0..REPEATS {
            self.launch(&mut memory, rows, fused)?;
        }
        let begin = event()?;
        for _ in 0..REPEATS {
            self.launch(&mut memory, rows, fused)?;
        }
        let milliseconds = begin.elapsed_ms(&event()?).map_err(driver)?;
        Ok(f64::from(milliseconds) * 1e3 / REPEATS as f64)
    }
}

/// The first index at which the bits differ.
fn first_difference(left: &[bf16], right: &[bf16]) -> Option<usize> {
    left.iter().zip(right).position(|(left, right)| left.to_bits() != right.to_bits())
}
