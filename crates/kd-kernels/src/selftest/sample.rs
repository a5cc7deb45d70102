//! `sample` against `kd_sample::Sampler`.

use cudarc::driver::CudaSlice;
use kd_sample::noise::gumbel;
use kd_sample::{History, Sampler, SamplingParams, cut_key};

use super::top_k::{DIFFICULT, logits};
use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::sample;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

const CHUNK: usize = 4096;
/// Different rows of logits; launches with more repeat them with other noise.
const DISTINCT: usize = 40;
/// Greedy, ordinary, and so cold or hot that f32 scores overflow or say nothing.
const TEMPERATURES: [f64; 7] = [1.0, 0.0, 0.7, 1.5, 1e-3, 1e-60, 1e30];
/// How far the winning score may be, relative to its terms: the logarithms of two libraries.
const VALUE: f64 = 1e-13;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "sample") {
        outcomes.extend(verify(&Sample::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct Sample {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: sample::Sample,
    vocab: usize,
    rows: Vec<Vec<f32>>,
    temperature: Vec<f64>,
    seed: Vec<u64>,
    position: Vec<u64>,
    choice: Vec<u32>,
    /// Entries that the draw may take; 0 for all.
    top_k: Vec<u32>,
    cut: Vec<u64>,
    /// Token and score of each input row; `None` where the specification refuses it.
    expected: Vec<Option<(u32, f64)>>,
}

struct Memory {
    logits: CudaSlice<f32>,
    temperature: CudaSlice<f64>,
    seed: CudaSlice<u64>,
    position: CudaSlice<u64>,
    choice: CudaSlice<u32>,
    cut: CudaSlice<u64>,
    found: Output<f64>,
    arrived: Output<i32>,
    tokens: Output<i32>,
    value: Output<f64>,
}

impl Sample {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (v, vocab) = row.dim("V")?;
        let mut random = Random::new(seed);
        let mut case = Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: sample::Sample::load(kernels, sample::Dims { v })?,
            vocab,
            rows: (0..DISTINCT).map(|kind| logits(kind, vocab, &mut random)).collect(),
            temperature: (0..rows).map(|i| TEMPERATURES[i % TEMPERATURES.len()]).collect(),
            seed: (0..rows).map(|_| random.bits()).collect(),
            // Some beyond 32 bits.
            position: (0..rows).map(|i| random.bits() >> (20 + i % 40)).collect(),
            choice: (0..rows).map(|_| random.below(1 << 20) as u32).collect(),
            top_k: (0..rows).map(|i| if i % 3 == 1 { 1 + random.below(80) as u32 } else { 0 }).collect(),
            cut: Vec::new(),
            expected: Vec::new(),
        };
        case.cut = (0..rows).map(|input| case.last_kept(input)).collect();
        let mut sampler = Sampler::new();
        case.expected = (0..rows).map(|input| case.specified(&mut sampler, input)).collect();
        Ok(case)
    }

    /// The key of the last entry that `top_k` keeps.
    fn last_kept(&self, input: usize) -> u64 {
        let row = &self.rows[input % DISTINCT];
        let mut keys: Vec<u64> = (0..).zip(row).map(|(id, logit)| cut_key(*logit, id)).collect();
        let last = (self.top_k[input] as usize).checked_sub(1).filter(|last| *last < keys.len());
        last.map_or(0, |last| *keys.select_nth_unstable_by(last, |a, b| b.cmp(a)).1)
    }

    fn specified(&self, sampler: &mut Sampler, input: usize) -> Option<(u32, f64)> {
        let (temperature, seed) = (self.temperature[input], self.seed[input]);
        let (position, choice) = (self.position[input], self.choice[input]);
        let top_k = self.top_k[input];
        let params = SamplingParams { temperature, top_k, seed, ..SamplingParams::default() };
        let row = &self.rows[input % DISTINCT];
        let token = sampler.choose(row, &History::default(), &params, position, choice).ok()?.token;
        let logit = f64::from(row[token as usize]);
        let noisy = |temperature| logit / temperature + gumbel(seed, choice, position, token);
        Some((token, if temperature == 0.0 { logit } else { noisy(temperature) }))
    }
}

impl Subject for Sample {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows) = (&self.stream, order.len());
        let logits: Vec<f32> = order.iter().flat_map(|input| &self.rows[input % DISTINCT]).copied().collect();
        Ok(Memory {
            logits: upload(stream, &logits)?,
            temperature: upload(stream, &gather(&self.temperature, 1, order))?,
            seed: upload(stream, &gather(&self.seed, 1, order))?,
            position: upload(stream, &gather(&self.position, 1, order))?,
            choice: upload(stream, &gather(&self.choice, 1, order))?,
            cut: upload(stream, &gather(&self.cut, 1, order))?,
            found: Output::poisoned(stream, rows, self.vocab.div_ceil(CHUNK) * 2)?,
            arrived: Output::holding(stream, &vec![0; rows], rows, 1)?,
            tokens: Output::poisoned(stream, rows, 1)?,
            value: Output::poisoned(stream, rows, 1)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.seed.len());
        let args = sample::Args {
            logits: TensorRef::new(stream, memory.logits.as_view(), [rows, self.vocab])?,
            rank: 0,
            temperature: TensorRef::new(stream, memory.temperature.as_view(), [rows])?,
            seed: TensorRef::new(stream, memory.seed.as_view(), [rows])?,
            position: TensorRef::new(stream, memory.position.as_view(), [rows])?,
            choice: TensorRef::new(stream, memory.choice.as_view(), [rows])?,
            cut: TensorRef::new(stream, memory.cut.as_view(), [rows])?,
            found: memory.found.tensor(stream, [rows, self.vocab.div_ceil(CHUNK), 2])?,
            arrived: memory.arrived.tensor(stream, [rows])?,
            tokens: memory.tokens.tensor(stream, [rows])?,
            value: memory.value.tensor(stream, [rows])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![
            memory.tokens.written(&self.stream, "tokens")?,
            memory.value.written(&self.stream, "value")?,
            memory.arrived.written(&self.stream, "arrived")?,
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [tokens, values, arrived] = written else { return Err("outputs are missing".to_owned()) };
        for (i, &input) in order.iter().enumerate() {
            let (token, value) = (tokens.values::<i32>(i), values.values::<f64>(i));
            let what =
                format!("row {i} (kind {}, temperature {})", input % DISTINCT, self.temperature[input]);
            if arrived.values::<i32>(i) != [0] {
                return Err(format!("{what}: the counter is not zero again"));
            }
            let wanted = self.expected[input];
            if token != [wanted.map_or(-1, |(token, _)| token as i32)] {
                return Err(format!("{what}: token {token:?}, not {wanted:?}"));
            }
            let right = match (&value[..], wanted) {
                ([found], Some((_, wanted))) => (found - wanted).abs() <= VALUE * (wanted.abs() + 50.0),
                ([found], None) => found.is_nan(),
                _ => false,
            };
            if !right {
                return Err(format!("{what}: score {value:?}, not {wanted:?}"));
            }
        }
        Ok(0.0)
    }

    fn timed(&self, rows: usize) -> Vec<usize> {
        let usual = |input: &usize| (0.5..2.0).contains(&self.temperature[*input]);
        let ordinary = |input: &usize| input % DISTINCT >= DIFFICULT && usual(input);
        let inputs: Vec<usize> = (0..self.temperature.len()).filter(ordinary).collect();
        if inputs.is_empty() { (0..rows).collect() } else { inputs.into_iter().cycle().take(rows).collect() }
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (self.vocab * size_of::<f32>()
            + 4 * size_of::<u64>()
            + 2 * size_of::<i32>()
            + size_of::<f64>())
    }
}
