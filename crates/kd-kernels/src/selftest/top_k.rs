//! `top_k` against `kd_ddtree::DraftRow`.

use cudarc::driver::CudaSlice;
use kd_ddtree::DraftRow;

use super::{Failure, Outcome, Output, Random, Subject, Written, units, upload, verify};
use crate::bundle::Row;
use crate::families::top_k;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

const K: usize = 64;
const CHUNK: usize = 4096;
/// Different rows of logits; launches with more repeat them.
const DISTINCT: usize = 40;
/// The first kinds of [`logits`] are difficult on purpose.
pub(super) const DIFFICULT: usize = 11;
/// How far a log-probability may be: sums of up to 2^18 f32 terms in another order, and one f32 rounding.
const LOGPROB: f32 = 2e-5;
const RANK: usize = 3;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "top_k") {
        outcomes.extend(verify(&TopK::new(device, kernels, row, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// Logits of a test: mostly a smooth row with a few peaks, and those rows that a kernel gets wrong first.
pub(super) fn logits(kind: usize, vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut row: Vec<f32> = (0..vocab).map(|_| 6.0 * random.unit() * random.unit()).collect();
    for _ in 0..20 {
        row[random.below(vocab)] = 15.0 + 5.0 * random.unit();
    }
    let at = random.below(vocab);
    match kind {
        1 => row.iter_mut().for_each(|x| *x = x.round()),
        2 => row.fill(-0.0),
        3 => row.iter_mut().step_by(2).for_each(|x| *x = f32::NEG_INFINITY),
        4 => {
            row.fill(f32::NEG_INFINITY);
            (row[at], row[vocab - 1]) = (f32::MIN, 3.0);
        }
        5 => row[at] = f32::NAN,
        6 => row[vocab - 1] = -f32::NAN,
        7 => row[at] = f32::INFINITY,
        8 => row.fill(f32::NEG_INFINITY),
        // All the best in one thread's reach, then ascending: the selection's worst orders.
        9 => row[..K].iter_mut().enumerate().for_each(|(i, x)| *x = 50.0 + i as f32),
        10 => row.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 * 1e-3),
        _ => {}
    }
    row
}

struct TopK {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: top_k::TopK,
    vocab: usize,
    rows: Vec<Vec<f32>>,
}

struct Memory {
    rows: usize,
    logits: CudaSlice<f32>,
    keys: Output<u64>,
    sums: Output<f32>,
    arrived: Output<i32>,
    tokens: Output<i32>,
    values: Output<f32>,
    stats: Output<f32>,
    finite: Output<i32>,
}

impl TopK {
    fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, KernelError> {
        let (v, vocab) = row.dim("V")?;
        let mut random = Random::new(seed);
        Ok(Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: top_k::TopK::load(kernels, top_k::Dims { v })?,
            vocab,
            rows: (0..DISTINCT).map(|kind| logits(kind, vocab, &mut random)).collect(),
        })
    }

    fn row(&self, input: usize) -> &[f32] {
        &self.rows[input % DISTINCT]
    }

    fn judge_row(&self, input: usize, written: &[Written], i: usize) -> Result<(), String> {
        let [tokens, values, stats, finite, arrived] = written else {
            return Err("outputs are missing".to_owned());
        };
        let row = self.row(input);
        let bad = row.iter().any(|x| x.is_nan() || *x == f32::INFINITY);
        let usable = !bad && row.iter().any(|x| x.is_finite());
        if (finite.values(i), arrived.values(i)) != (vec![i32::from(usable)], vec![0]) {
            return Err(format!("row {i}: finite or the counter is wrong"));
        }
        // A row without a finite maximum has no CPU result: the flag is all that counts.
        let Some(expected) = DraftRow::from_logits(row, K) else { return Ok(()) };
        let (tokens, values): (Vec<i32>, Vec<f32>) = (tokens.values(i), values.values(i));
        let stats: Vec<f32> = stats.values(i);
        let lse = stats[0] + stats[1].ln();
        for (rank, (token, value)) in tokens.iter().zip(&values).enumerate() {
            let wanted = expected.child(rank);
            let id = wanted.map_or(-1, |child| (child.token as usize + RANK * self.vocab) as i32);
            if *token != id {
                return Err(format!("row {i}: token {token} has rank {rank}, not {id}"));
            }
            let Some(child) = wanted else { continue };
            if *value != row[child.token as usize] {
                return Err(format!("row {i}: rank {rank} has logit {value}"));
            }
            let error = (value - lse - child.logprob).abs() / (1.0 + child.logprob.abs());
            if error.is_nan() || error > LOGPROB {
                return Err(format!(
                    "row {i}: log-probability {} of rank {rank}, not {}",
                    value - lse,
                    child.logprob
                ));
            }
        }
        Ok(())
    }
}

impl Subject for TopK {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, chunks) = (&self.stream, order.len(), self.vocab.div_ceil(CHUNK));
        let logits: Vec<f32> = order.iter().flat_map(|input| self.row(*input)).copied().collect();
        Ok(Memory {
            rows,
            logits: upload(stream, &logits)?,
            keys: Output::poisoned(stream, rows, chunks * K)?,
            sums: Output::poisoned(stream, rows, chunks * 4)?,
            arrived: Output::holding(stream, &vec![0; rows], rows, 1)?,
            tokens: Output::poisoned(stream, rows, K)?,
            values: Output::poisoned(stream, rows, K)?,
            stats: Output::poisoned(stream, rows, 2)?,
            finite: Output::poisoned(stream, rows, 1)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, chunks) = (&self.stream, memory.rows, self.vocab.div_ceil(CHUNK));
        let args = top_k::Args {
            logits: TensorRef::new(stream, memory.logits.as_view(), [rows, self.vocab])?,
            rank: RANK as i32,
            keys: memory.keys.tensor(stream, [rows, chunks, K])?,
            sums: memory.sums.tensor(stream, [rows, chunks, 4])?,
            arrived: memory.arrived.tensor(stream, [rows])?,
            tokens: memory.tokens.tensor(stream, [rows, K])?,
            values: memory.values.tensor(stream, [rows, K])?,
            stats: memory.stats.tensor(stream, [rows, 2])?,
            finite: memory.finite.tensor(stream, [rows])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![
            memory.tokens.written(&self.stream, "tokens")?,
            memory.values.written(&self.stream, "values")?,
            memory.stats.written(&self.stream, "stats")?,
            memory.finite.written(&self.stream, "finite")?,
            memory.arrived.written(&self.stream, "arrived")?,
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        order.iter().enumerate().try_for_each(|(i, input)| self.judge_row(*input, written, i))?;
        Ok(0.0)
    }

    fn timed(&self, rows: usize) -> Vec<usize> {
        (DIFFICULT..DISTINCT).cycle().take(rows).collect()
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (self.vocab * size_of::<f32>() + K * (size_of::<i32>() + size_of::<f32>()) + 12)
    }
}
