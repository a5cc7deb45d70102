//! `router` and `router_wgmma` against [`Router::route`](crate::Router::route), and against each other bit by bit.

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{router, router_wgmma};
use kd_kernels::selftest::{
    Failure, Outcome, Output, Random, Subject, Written, cases, gather, same_as_first, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, RouterProduct, Stream, TensorRef};
use kd_tensor::{Bf16Matrix, Matrix, Pool};

use crate::{Router, RouterConfig, Routing};

/// How far a score may be: sums of thousands of f32 terms in another order. The sigmoid flattens them by 4 or more.
const SCORE: f32 = 5e-5;
/// A choice is compared where the CPU's own lead is larger than what errors of up to four scores can turn around.
const LEAD: f32 = 4.0 * SCORE;
/// A weight against that of the device's own scores: a sum and a quotient in f32.
const WEIGHT: f32 = 1e-6;
/// The input row that holds a NaN.
const NAN_ROW: usize = 5;
/// Experts of equal weights and biases end a choice before these ids, where warps, CTAs and clusters begin.
const EDGES: [usize; 5] = [16, 32, 64, 128, 256];
/// The input row that ties the experts around the first edge; those of the others follow.
const TIED_ROWS: usize = 7;
/// The input row that is padding.
const PADDED_ROW: usize = 6;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for groups in cases([1, 8]) {
        // What the first variant of each size wrote.
        let mut first = BTreeMap::new();
        for row in ["router", "router_wgmma"].iter().flat_map(|family| units(kernels, family)) {
            let case = Case::new(device, kernels, row, groups, most, seed)?;
            // As in service: CTAs that wait for each other are not launched where they are not held at once.
            let limit = case.kernel.most_rows(kernels, &row.variant);
            let rows: Vec<usize> = rows.iter().copied().filter(|rows| *rows as i64 <= limit).collect();
            let Some(most) = rows.iter().copied().max() else { continue };
            outcomes.extend(verify(&case, &rows)?);
            same_as_first(&case, first.entry((case.width, case.experts)).or_default(), most)?;
        }
    }
    Ok(outcomes)
}

/// What the launch is told of input row `row`: that it is padding, or any slot.
fn slot(row: usize) -> i32 {
    if row == PADDED_ROW { -1 } else { i32::try_from(row).unwrap_or(i32::MAX) }
}

/// For each edge the `top_k` experts before it and two behind it, which tie: all of them would be chosen next, so the lowest are.
/// Without those edges that have too few experts on a side.
fn tie(weight: &mut [bf16], bias: &mut [f32], x: &mut [bf16], top_k: usize) -> Vec<Range<usize>> {
    let (experts, width) = (bias.len(), weight.len() / bias.len());
    let mut ties: Vec<Range<usize>> = Vec::new();
    for edge in EDGES {
        let before = ties.last().map_or(0, |tied| tied.end);
        if edge < before + top_k || edge + 2 > experts {
            continue;
        }
        let tied = edge - top_k..edge + 2;
        let first = tied.start * width..(tied.start + 1) * width;
        tied.clone().for_each(|e| weight.copy_within(first.clone(), e * width));
        bias[tied.clone()].fill(0.0);
        // As an input their weights have a logit of some 16 / 3 with themselves, and hardly any with others.
        if let Some(row) = x.chunks_exact_mut(width).nth(TIED_ROWS + ties.len()) {
            row.copy_from_slice(&weight[first]);
        }
        ties.push(tied);
    }
    ties
}

struct Case {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: Kernel,
    width: usize,
    experts: usize,
    x: Vec<bf16>,
    weight: CudaSlice<bf16>,
    bias: CudaSlice<f32>,
    cpu: Router,
    /// The experts that each row from [`TIED_ROWS`] on ties.
    ties: Vec<Range<usize>>,
    /// The CPU's result on all input rows.
    expected: Routing,
}

enum Kernel {
    Any(router::Router),
    Groups(router_wgmma::RouterWgmma),
}

impl Kernel {
    fn load(kernels: &Kernels, family: &str, dims: router::Dims) -> Result<Self, KernelError> {
        let router::Dims { h, e, t } = dims;
        Ok(match family {
            "router_wgmma" => {
                Self::Groups(router_wgmma::RouterWgmma::load(kernels, router_wgmma::Dims { h, e, t })?)
            }
            _ => Self::Any(router::Router::load(kernels, dims)?),
        })
    }

    /// The largest launch of a variant.
    fn most_rows(&self, kernels: &Kernels, variant: &str) -> i64 {
        let Self::Groups(groups) = self else { return i64::MAX };
        let unit = groups.units().iter().find(|unit| unit.variant() == variant);
        unit.map_or(0, |unit| RouterProduct::most_rows(kernels, unit))
    }
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    slots: CudaSlice<i32>,
    arrived: Output<i32>,
    scores: Output<f32>,
    ids: Output<i32>,
    weights: Output<f32>,
}

impl Case {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        groups: usize,
        rows: usize,
        seed: u64,
    ) -> Result<Self, Failure> {
        let ((h, width), (e, experts), (t, top_k)) = (row.dim("H")?, row.dim("E")?, row.dim("T")?);
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows, what };
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let mut weight = random.values(experts * width, 4.0 / (width as f32).sqrt());
        let mut bias: Vec<f32> = (0..experts).map(|_| 0.2 * random.unit()).collect();
        let mut x = random.values(rows * width, 1.0);
        if rows > NAN_ROW {
            x[NAN_ROW * width + width / 2] = bf16::NAN;
        }
        let ties = tie(&mut weight, &mut bias, &mut x, top_k);
        let values = x.iter().map(|value| value.to_f32()).collect();
        let matrix = Matrix::from_vec(rows, width, values).map_err(|error| failed(error.to_string()))?;
        let cpu = Router {
            weight: Bf16Matrix::new(experts, width, weight.clone())
                .map_err(|error| failed(error.to_string()))?,
            bias: bias.clone(),
            // As K2.6 has it, and with groups as DeepSeek-V3 has them.
            config: RouterConfig {
                top_k,
                groups,
                top_groups: groups.div_ceil(2),
                normalize: true,
                scaling: 2.827,
            },
        };
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: Kernel::load(kernels, &row.family, router::Dims { h, e, t })?,
            width,
            experts,
            weight: upload(&stream, &weight)?,
            bias: upload(&stream, &bias)?,
            expected: cpu.route(&Pool::single(), matrix.view()),
            cpu,
            ties,
            x,
            stream,
        })
    }

    /// Compares one row; whether its choice could be compared, and the largest error of a score.
    fn judge_row(
        &self,
        input: usize,
        ids: &[i32],
        weights: &[f32],
        scores: &[f32],
    ) -> Result<(bool, f32), String> {
        let expected = self.expected.scores.row(input);
        let top_k = self.expected.top_k;
        let wanted: Vec<i32> =
            self.expected.ids[input * top_k..(input + 1) * top_k].iter().map(|id| id.cast_signed()).collect();
        if expected.iter().any(|score| score.is_nan()) {
            let right = ids == wanted && weights.iter().all(|weight| weight.is_nan());
            return if right {
                Ok((true, 0.0))
            } else {
                Err(format!("a NaN row chose {ids:?} with {weights:?}"))
            };
        }
        let mut worst = 0.0f32;
        for (e, (found, expected)) in scores.iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            if error.is_nan() || error > SCORE {
                return Err(format!("score {found} of expert {e}, not {expected}"));
            }
            worst = worst.max(error);
        }
        let chosen: Vec<f32> =
            ids.iter().filter_map(|id| scores.get(usize::try_from(*id).ok()?)).copied().collect();
        if chosen.len() != top_k || !ids.is_sorted_by(|a, b| a < b) {
            return Err(format!("{ids:?} are not {top_k} experts in ascending order"));
        }
        let divisor = chosen.iter().sum::<f32>() + 1e-20;
        for (weight, score) in weights.iter().zip(&chosen) {
            let expected = score / divisor * self.cpu.config.scaling;
            let error = (weight - expected).abs();
            if error.is_nan() || error > WEIGHT * expected {
                return Err(format!("weight {weight}, not {expected}"));
            }
        }
        let margin = self.cpu.margin(expected);
        // Equal weights have equal sums, so ties are clear: the lowest ids.
        let tied = input.checked_sub(TIED_ROWS).and_then(|i| self.ties.get(i));
        if let Some(tied) = tied
            && (margin != 0.0 || !wanted.iter().all(|id| tied.contains(&(id.cast_unsigned() as usize))))
        {
            return Err(format!("the CPU chose {wanted:?} by {margin}, so no choice ends among {tied:?}"));
        }
        let clear = tied.is_some() || margin > LEAD;
        if clear && ids != wanted {
            return Err(format!("chose {ids:?}, not {wanted:?}"));
        }
        Ok((clear, worst))
    }
}

impl Subject for Case {
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
            x: upload(stream, &gather(&self.x, self.width, order))?,
            slots: upload(stream, &order.iter().map(|row| slot(*row)).collect::<Vec<_>>())?,
            arrived: Output::holding(stream, &vec![0; rows * self.experts], rows, self.experts)?,
            scores: Output::poisoned(stream, rows, self.experts)?,
            ids: Output::poisoned(stream, rows, self.expected.top_k)?,
            weights: Output::poisoned(stream, rows, self.expected.top_k)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, width, experts) = (&self.stream, memory.rows, self.width, self.experts);
        let config = self.cpu.config;
        let args = router::Args {
            x: TensorRef::new(stream, memory.x.as_view(), [rows, width])?,
            w: TensorRef::new(stream, self.weight.as_view(), [experts, width])?,
            bias: TensorRef::new(stream, self.bias.as_view(), [experts])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            groups: config.groups as i32,
            top_groups: config.top_groups as i32,
            normalize: i32::from(config.normalize),
            scaling: config.scaling,
            arrived: memory.arrived.tensor(stream, [rows, experts])?,
            scores: memory.scores.tensor(stream, [rows, experts])?,
            ids: memory.ids.tensor(stream, [rows, config.top_k])?,
            weights: memory.weights.tensor(stream, [rows, config.top_k])?,
        };
        let choice = Choice::Forced(self.variant.as_str());
        match &self.kernel {
            Kernel::Any(kernel) => kernel.launch(stream, choice, args),
            Kernel::Groups(kernel) => kernel.launch(stream, choice, RouterProduct::wide(args)),
        }
        .map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![
            memory.ids.written(&self.stream, "ids")?,
            memory.weights.written(&self.stream, "weights")?,
            memory.scores.written(&self.stream, "scores")?,
            memory.arrived.written(&self.stream, "arrived")?,
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [ids, weights, scores, arrived] = written else { return Err("outputs are missing".to_owned()) };
        if (0..order.len()).any(|row| arrived.values::<i32>(row).iter().any(|word| *word != 0)) {
            return Err("`arrived` was not left zero".to_owned());
        }
        let (mut compared, mut worst) = (0, 0.0f32);
        for (i, &input) in order.iter().enumerate() {
            if input == PADDED_ROW {
                let chosen = ids.values::<i32>(i).iter().any(|id| *id != -1);
                if chosen || weights.values::<f32>(i).iter().any(|weight| *weight != 0.0) {
                    return Err(format!("row {i} is padding and chose something"));
                }
                compared += 1;
                continue;
            }
            let result = self.judge_row(input, &ids.values(i), &weights.values(i), &scores.values(i));
            let (clear, error) = result.map_err(|what| format!("row {i}: {what}"))?;
            compared += usize::from(clear);
            worst = worst.max(error);
        }
        // One unclear choice is no fault, a launch of them is.
        if 2 * compared + 1 < order.len() {
            return Err(format!("only {compared} of {} choices could be compared", order.len()));
        }
        Ok(f64::from(worst / SCORE))
    }

    /// Rows that a model has: one of NaN takes longer to choose for, padding chooses nothing, and experts do not tie.
    fn timed(&self, rows: usize) -> Vec<usize> {
        let tied = TIED_ROWS..TIED_ROWS + self.ties.len();
        let ordinary = |row: &usize| ![NAN_ROW, PADDED_ROW].contains(row) && !tied.contains(row);
        let all = self.x.len() / self.width;
        (0..all).filter(ordinary).cycle().take(rows).collect()
    }

    fn bytes(&self, rows: usize) -> usize {
        (self.experts + rows) * self.width * size_of::<bf16>()
            + rows * (self.experts * size_of::<f32>() + self.expected.top_k * 8)
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use kd_kernels::selftest::Random;
    use kd_tensor::{Bf16Matrix, Matrix, Pool};

    use super::{TIED_ROWS, tie};
    use crate::{Router, RouterConfig};

    /// What the check asks of a device: the lowest of equal experts, on both sides of the edge.
    #[test]
    fn a_tied_row_chooses_the_experts_before_its_edge() {
        for (experts, top_k, width, edges) in
            [(384, 8, 7168, vec![16, 32, 64, 128, 256]), (24, 4, 256, vec![16])]
        {
            let (mut random, rows) = (Random::new(1), TIED_ROWS + edges.len());
            let mut weight = random.values(experts * width, 4.0 / (width as f32).sqrt());
            let mut bias: Vec<f32> = (0..experts).map(|_| 0.2 * random.unit()).collect();
            let mut x = random.values(rows * width, 1.0);
            let ties = tie(&mut weight, &mut bias, &mut x, top_k);
            assert_eq!(ties.len(), edges.len());
            let x = Matrix::from_vec(rows, width, x.into_iter().map(bf16::to_f32).collect()).expect("rows");
            for groups in [1, 8] {
                let router = Router {
                    weight: Bf16Matrix::new(experts, width, weight.clone()).expect("weights"),
                    bias: bias.clone(),
                    config: RouterConfig {
                        top_k,
                        groups,
                        top_groups: groups.div_ceil(2),
                        normalize: true,
                        scaling: 2.827,
                    },
                };
                let routing = router.route(&Pool::single(), x.view());
                for (row, &edge) in (TIED_ROWS..).zip(&edges) {
                    let ids = &routing.ids[row * top_k..(row + 1) * top_k];
                    assert!(ids.iter().copied().eq((edge - top_k as u32)..edge), "{groups} groups: {ids:?}");
                    assert_eq!(router.margin(routing.scores.row(row)), 0.0);
                }
            }
        }
    }
}
