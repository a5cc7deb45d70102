//! `lm_head_top_k` against `kd_ddtree::DraftRow`, on rows that a kernel gets wrong first.

use cudarc::driver::CudaSlice;

use super::best::Best;
use super::lm_head::summary;
use super::top_k::logits;
use super::{Failure, Outcome, Output, Random, Subject, Written, units, upload, verify};
use crate::bundle::Row;
use crate::families::lm_head_top_k;
use crate::{Choice, Device, HEAD_TILE as TILE, KernelError, Kernels, Stream, TensorRef};

const K: usize = 64;
/// Different rows of logits; launches with more repeat them.
const DISTINCT: usize = 40;
const RANK: usize = 3;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "lm_head_top_k") {
        outcomes.extend(verify(&TopK::new(device, kernels, row, seed)?, rows)?);
    }
    Ok(outcomes)
}

struct TopK {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: lm_head_top_k::LmHeadTopK,
    vocab: usize,
    logits: Vec<Vec<f32>>,
    tiles: Vec<Vec<f32>>,
}

struct Memory {
    rows: usize,
    logits: CudaSlice<f32>,
    tiles: CudaSlice<f32>,
    tokens: Output<i32>,
    values: Output<f32>,
    stats: Output<f32>,
    finite: Output<i32>,
}

impl TopK {
    fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, KernelError> {
        let (v, vocab) = row.dim("V")?;
        let mut random = Random::new(seed);
        let logits: Vec<Vec<f32>> = (0..DISTINCT).map(|kind| logits(kind, vocab, &mut random)).collect();
        let tiles = |row: &Vec<f32>| {
            row.chunks(TILE).enumerate().flat_map(|(i, tile)| summary(i * TILE, tile)).collect()
        };
        Ok(Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: lm_head_top_k::LmHeadTopK::load(kernels, lm_head_top_k::Dims { v })?,
            vocab,
            tiles: logits.iter().map(tiles).collect(),
            logits,
        })
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
        let (stream, rows) = (&self.stream, order.len());
        let gather = |from: &[Vec<f32>]| -> Vec<f32> {
            order.iter().flat_map(|input| &from[input % DISTINCT]).copied().collect()
        };
        Ok(Memory {
            rows,
            logits: upload(stream, &gather(&self.logits))?,
            tiles: upload(stream, &gather(&self.tiles))?,
            tokens: Output::poisoned(stream, rows, K)?,
            values: Output::poisoned(stream, rows, K)?,
            stats: Output::poisoned(stream, rows, 2)?,
            finite: Output::poisoned(stream, rows, 1)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let args = lm_head_top_k::Args {
            logits: TensorRef::new(stream, memory.logits.as_view(), [rows, self.vocab])?,
            tiles: TensorRef::new(stream, memory.tiles.as_view(), [rows, self.vocab.div_ceil(TILE), 4])?,
            rank: RANK as i32,
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
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [tokens, values, stats, finite] = written else { return Err("outputs are missing".to_owned()) };
        for (i, input) in order.iter().enumerate() {
            let best = Best {
                tokens: tokens.values(i),
                values: values.values(i),
                stats: stats.values(i),
                finite: finite.values(i),
            };
            best.judge(&self.logits[input % DISTINCT], RANK * self.vocab)
                .map_err(|what| format!("row {i}: {what}"))?;
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (self.vocab.div_ceil(TILE) * 16 + K * (TILE + 2) * size_of::<f32>() + 12)
    }
}
