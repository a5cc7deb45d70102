//! `lm_head` and `lm_head_wgmma` against `kd_tensor::linear`, against each other bit by bit, and what they say of each tile
//! against their own logits.

use std::collections::BTreeMap;

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::{Bf16Matrix, Matrix, Pool, linear};

use super::{
    Failure, Outcome, Output, Random, Subject, Written, gather, same_as_first, units, upload, verify,
};
use crate::bundle::Row;
use crate::families::{lm_head, lm_head_wgmma};
use crate::{Choice, Device, HEAD_TILE as TILE, KernelError, Kernels, Stream, TensorRef};

/// One rank's tokens of K2.6, and a vocabulary that is no whole number of tiles.
const WIDE: usize = 20_480;
const NARROW: usize = 4_132;
/// Logits compared with the CPU. All must be written, and the same in every launch.
const COMPARED: usize = 96;
/// Of so many input rows one has a NaN and one an infinity.
const CYCLE: usize = 40;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    // What the first variant of each K wrote.
    let mut first = BTreeMap::new();
    for row in ["lm_head", "lm_head_wgmma"].iter().flat_map(|family| units(kernels, family)) {
        let head = Head::new(device, kernels, row, most, seed)?;
        outcomes.extend(verify(&head, rows)?);
        same_as_first(&head, first.entry(head.k).or_default(), most)?;
    }
    Ok(outcomes)
}

/// A tile of a row as the kernel must describe it: the first of its greatest logits, their sum relative to it, and whether one
/// is a NaN or +inf.
pub(super) fn summary(first: usize, tile: &[f32]) -> [f32; 4] {
    let (mut most, mut token) = (f32::NEG_INFINITY, first);
    for (i, x) in tile.iter().enumerate() {
        if *x > most {
            (most, token) = (*x, first + i);
        }
    }
    let sum = tile.iter().filter(|x| **x > f32::NEG_INFINITY).map(|x| (x - most).exp()).sum::<f32>();
    let bad = tile.iter().any(|x| x.is_nan() || *x == f32::INFINITY);
    [most, sum, f32::from(u8::from(bad)), f32::from_bits(token as u32)]
}

struct Head {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: Kernel,
    k: usize,
    n: usize,
    x: Vec<bf16>,
    weights: CudaSlice<bf16>,
    columns: Vec<usize>,
    expected: Matrix,
}

enum Kernel {
    Any(lm_head::LmHead),
    Groups(lm_head_wgmma::LmHeadWgmma),
}

impl Kernel {
    fn load(kernels: &Kernels, family: &str, k: i64) -> Result<Self, KernelError> {
        Ok(match family {
            "lm_head_wgmma" => {
                Self::Groups(lm_head_wgmma::LmHeadWgmma::load(kernels, lm_head_wgmma::Dims { k })?)
            }
            _ => Self::Any(lm_head::LmHead::load(kernels, lm_head::Dims { k })?),
        })
    }
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    logits: Output<f32>,
    tiles: Output<f32>,
}

impl Head {
    fn new(device: &Device, kernels: &Kernels, row: &Row, rows: usize, seed: u64) -> Result<Self, Failure> {
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows, what };
        let (dim, k) = row.dim("K")?;
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let n = if k == 7168 { WIDE } else { NARROW };
        let mut x = random.values(rows * k, 1.0);
        for input in (0..rows).filter(|input| input % CYCLE >= CYCLE - 2) {
            let bad = if input % CYCLE == CYCLE - 1 { bf16::NAN } else { bf16::INFINITY };
            x[input * k + random.below(k)] = bad;
        }
        let weight = random.values(n * k, 4.0 / (k as f32).sqrt());
        let mut columns = random.distinct(COMPARED, n);
        (columns[0], columns[1]) = (0, n - 1);
        let compared = Bf16Matrix::new(columns.len(), k, gather(&weight, k, &columns));
        let compared = compared.map_err(|error| failed(error.to_string()))?;
        let matrix = Matrix::from_vec(rows, k, x.iter().map(|value| value.to_f32()).collect());
        let matrix = matrix.map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: Kernel::load(kernels, &row.family, dim)?,
            k,
            n,
            weights: upload(&stream, &weight)?,
            expected: linear(&Pool::single(), matrix.view(), &compared),
            columns,
            x,
            stream,
        })
    }

    fn judge_row(&self, input: usize, logits: &[f32], tiles: &[f32]) -> Result<f32, String> {
        let mut worst = 0.0f32;
        let marred = input % CYCLE >= CYCLE - 2;
        if !marred {
            if let Some(at) = logits.iter().position(|value| !value.is_finite()) {
                return Err(format!("logit {at} was not written"));
            }
            let slack = (self.k as f32).sqrt() / (1 << 20) as f32;
            for (column, expected) in self.columns.iter().zip(self.expected.row(input)) {
                let error = (logits[*column] - expected).abs() / slack;
                if error > 1.0 {
                    return Err(format!("logit {column}: {}, not {expected}", logits[*column]));
                }
                worst = worst.max(error);
            }
        }
        let mut flagged = false;
        for (i, (own, found)) in logits.chunks(TILE).zip(tiles.chunks_exact(4)).enumerate() {
            let wanted = summary(i * TILE, own);
            flagged |= wanted[2] != 0.0;
            if found[2].to_bits() != wanted[2].to_bits() {
                return Err(format!("tile {i}: flag {}, not {}", found[2], wanted[2]));
            }
            if wanted[2] != 0.0 {
                continue;
            }
            let same = found[0] == wanted[0] && found[3].to_bits() == wanted[3].to_bits();
            if !same || (found[1] - wanted[1]).abs() > wanted[1] * 2e-5 {
                return Err(format!("tile {i}: {found:?}, not {wanted:?}"));
            }
        }
        if flagged != marred {
            return Err(format!("flagged: {flagged}"));
        }
        Ok(worst)
    }
}

impl Subject for Head {
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
            rows,
            x: upload(stream, &gather(&self.x, self.k, order))?,
            logits: Output::poisoned(stream, rows, self.n)?,
            tiles: Output::poisoned(stream, rows, self.n.div_ceil(TILE) * 4)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows) = (&self.stream, memory.rows);
        let x = TensorRef::new(stream, memory.x.as_view(), [rows, self.k])?;
        let w = TensorRef::new(stream, self.weights.as_view(), [self.n, self.k])?;
        let logits = memory.logits.tensor(stream, [rows, self.n])?;
        let tiles = memory.tiles.tensor(stream, [rows, self.n.div_ceil(TILE), 4])?;
        let choice = Choice::Forced(self.variant.as_str());
        match &self.kernel {
            Kernel::Any(kernel) => kernel.launch(stream, choice, lm_head::Args { x, w, logits, tiles }),
            Kernel::Groups(kernel) => {
                kernel.launch(stream, choice, lm_head_wgmma::Args { x, w, logits, tiles })
            }
        }
        .map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.logits.written(&self.stream, "logits")?, memory.tiles.written(&self.stream, "tiles")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [logits, tiles] = written else { return Err("outputs are missing".to_owned()) };
        let mut worst = 0.0f32;
        for (i, &input) in order.iter().enumerate() {
            let found = self.judge_row(input, &logits.values::<f32>(i), &tiles.values::<f32>(i));
            worst = worst.max(found.map_err(|what| format!("row {i}: {what}"))?);
        }
        Ok(f64::from(worst))
    }

    fn bytes(&self, rows: usize) -> usize {
        (rows + self.n) * self.k * size_of::<bf16>() + rows * self.n * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_told_by_its_first_maximum_and_flagged_for_nan_and_infinity() {
        let [most, sum, bad, token] = summary(80, &[0.0, 2.0, f32::NEG_INFINITY, 2.0]);
        assert_eq!((most, bad, token.to_bits()), (2.0, 0.0, 81));
        assert!((sum - (2.0 + (-2.0f32).exp())).abs() < 1e-6);
        assert_eq!(summary(0, &[0.0, f32::NAN])[2], 1.0);
        assert_eq!(summary(0, &[f32::INFINITY, 0.0])[2], 1.0);
        assert_eq!(summary(0, &[f32::NEG_INFINITY])[0], f32::NEG_INFINITY);
    }
}
