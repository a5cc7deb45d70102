//! `router` and `router_wgmma` against [`Router::route`](crate::Router::route), and against each other bit by bit.

use std::collections::BTreeMap;

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{router, router_wgmma};
use kd_kernels::selftest::{
    Failure, Outcome, Output, Random, Subject, Written, gather, same_as_first, units, upload, verify,
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
    for groups in [1, 8] {
        // What the first variant of each size wrote.
        let mut first = BTreeMap::new();
        for row in ["router", "router_wgmma"].iter().flat_map(|family| units(kernels, family)) {
            let case = Case::new(device, kernels, row, groups, most, seed)?;
            outcomes.extend(verify(&case, rows)?);
            same_as_first(&case, first.entry((case.width, case.experts)).or_default(), most)?;
        }
    }
    Ok(outcomes)
}

/// What the launch is told of input row `row`: that it is padding, or any slot.
fn slot(row: usize) -> i32 {
    if row == PADDED_ROW { -1 } else { i32::try_from(row).unwrap_or(i32::MAX) }
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
        let weight = random.values(experts * width, 4.0 / (width as f32).sqrt());
        let bias: Vec<f32> = (0..experts).map(|_| 0.2 * random.unit()).collect();
        let mut x = random.values(rows * width, 1.0);
        if rows > NAN_ROW {
            x[NAN_ROW * width + width / 2] = bf16::NAN;
        }
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
        let clear = self.cpu.margin(expected) > LEAD;
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
            arrived: Output::holding(stream, &vec![0; rows], rows, 1)?,
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
            arrived: memory.arrived.tensor(stream, [rows])?,
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
        if (0..order.len()).any(|row| arrived.values::<i32>(row) != [0]) {
            return Err("a counter was not left zero".to_owned());
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

    /// Rows that a model has: one of NaN takes longer to choose for, and padding chooses nothing.
    fn timed(&self, rows: usize) -> Vec<usize> {
        let ordinary = |row: &usize| ![NAN_ROW, PADDED_ROW].contains(row);
        let all = self.x.len() / self.width;
        (0..all).filter(ordinary).cycle().take(rows).collect()
    }

    fn bytes(&self, rows: usize) -> usize {
        (self.experts + rows) * self.width * size_of::<bf16>()
            + rows * (self.experts * size_of::<f32>() + self.expected.top_k * 8)
    }
}
