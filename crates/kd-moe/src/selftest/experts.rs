//! The experts' kernels against [`Experts::forward`](crate::Experts::forward), in every form.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::selftest::{
    Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};
use kd_tensor::{Int4Matrix, Matrix, Pool};

use crate::gpu::{
    Batch, DeviceExperts, ExpertKernels, Form, GpuError, MOST_ROWS, Packer, Plan, Scratch, Shape, layout,
};
use crate::{Expert, Experts, Routing};

/// Root mean square of the error over that of the result: one rounding to bf16 of what is between the products and one of the
/// result make 2.3e-3.
const BOUND: f64 = 2.8e-3;
/// Different experts; the others of a layer are their copies.
const DISTINCT: usize = 8;
/// Input rows that are compared with the CPU, besides the last.
const COMPARED: [usize; 8] = [0, 1, 2, 4, NAN_ROW, 6, PADDED_ROW, 31];
/// The input row that holds a NaN.
const NAN_ROW: usize = 5;
/// The input row that goes to no expert.
const PADDED_ROW: usize = 3;
/// Elements behind each array of the scratch that must stay as they are.
const GUARD: usize = 512;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "moe_gate_up") {
        let layer = Layer::new(device, kernels, row, seed)?;
        let Some(form) = form_of(&layer, row) else { continue };
        let most = rows.iter().copied().max().unwrap_or_default();
        let mut random = Random::new(seed ^ 1);
        let ids = spread(&mut random, &layer.kernels.shape(), most);
        let case = Case::new(layer, form, random, ids)?;
        outcomes.extend(verify(&case, rows)?);
    }
    Ok(outcomes)
}

/// Loads beyond [`check`]: whatever the routing puts on one expert, and row counts around the edges of slabs.
pub(super) fn check_routings(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "moe_gate_up") {
        for (name, pattern) in PATTERNS {
            let layer = Layer::new(device, kernels, row, seed)?;
            let Some(form) = form_of(&layer, row) else { continue };
            let mut random = Random::new(seed ^ 2);
            let ids = pattern(&mut random, &layer.kernels.shape());
            let most = ids.len() / layer.kernels.shape().top_k;
            let case = Case::new(layer, form, random, ids)?;
            let named = |failure: Failure| match failure {
                Failure::Wrong { unit, rows, what } => {
                    Failure::Wrong { unit, rows, what: format!("{name}: {what}") }
                }
                other => other,
            };
            let rows: Vec<usize> = [1, 3, 8, 40, most].into_iter().filter(|rows| *rows <= most).collect();
            outcomes.extend(verify(&case, &rows).map_err(named)?);
        }
    }
    Ok(outcomes)
}

/// The form whose first product is `row`, where the second has it too.
fn form_of(layer: &Layer, row: &Row) -> Option<Form> {
    Form::ALL.into_iter().find(|form| form.name() == row.variant && layer.kernels.has(*form))
}

type Pattern = fn(&mut Random, &Shape) -> Vec<i32>;

const PATTERNS: [(&str, Pattern); 4] = [
    ("all rows on the same experts", |_, shape| (0..300).flat_map(|_| 0..shape.top_k as i32).collect()),
    ("one expert with every row", |random, shape| {
        let others = |random: &mut Random| random.distinct(shape.top_k - 1, shape.experts - 1);
        (0..264)
            .flat_map(|_| sorted([vec![0], others(random).iter().map(|e| e + 1).collect()].concat()))
            .collect()
    }),
    ("every expert one row", |_, shape| {
        (0..shape.experts / shape.top_k * shape.top_k).map(|e| e as i32).collect()
    }),
    ("experts with 0 to 130 rows", |_, shape| ladder(shape)),
];

/// Different experts for each row.
fn spread(random: &mut Random, shape: &Shape, rows: usize) -> Vec<i32> {
    (0..rows).flat_map(|_| sorted(random.distinct(shape.top_k, shape.experts))).collect()
}

fn sorted(mut ids: Vec<usize>) -> Vec<i32> {
    ids.sort_unstable();
    ids.into_iter().map(|id| id as i32).collect()
}

/// Rows such that expert `e` has `131 e / experts` of them or a little more: one expert for each number where there are enough
/// experts. Each row takes the experts that lack most.
fn ladder(shape: &Shape) -> Vec<i32> {
    let mut lacking: Vec<usize> = (0..shape.experts).map(|e| 131 * e / shape.experts).collect();
    let mut ids = Vec::new();
    while lacking.iter().any(|count| *count > 0) && ids.len() < MOST_ROWS * shape.top_k {
        let mut order: Vec<usize> = (0..shape.experts).collect();
        order.sort_by_key(|e| std::cmp::Reverse(lacking[*e]));
        let mut row: Vec<i32> =
            order[..shape.top_k].iter().map(|e| if lacking[*e] > 0 { *e as i32 } else { -1 }).collect();
        row.sort_unstable();
        row.iter().filter(|id| **id >= 0).for_each(|id| lacking[*id as usize] -= 1);
        ids.extend(row);
    }
    ids
}

/// The packed layer, and what it was packed from.
struct Layer {
    stream: Stream,
    unit: String,
    kernels: ExpertKernels,
    packed: DeviceExperts,
    experts: Experts,
}

impl Layer {
    fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, Failure> {
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows: 0, what };
        let gpu = |error: GpuError| failed(error.to_string());
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let group = units(kernels, "moe_group").next().ok_or_else(|| failed("no moe_group".to_owned()))?;
        let shape = Shape {
            hidden: row.dim("H")?.1,
            width: row.dim("I")?.1,
            experts: group.dim("E")?.1,
            top_k: group.dim("T")?.1,
        };
        let distinct = DISTINCT.min(shape.experts);
        let experts = (0..distinct).map(|_| expert(&mut random, &shape)).collect::<Result<Vec<_>, _>>();
        let experts = experts.map_err(|error| failed(error.to_string()))?;
        let mut packed = DeviceExperts::new(&stream, shape).map_err(gpu)?;
        let mut packer = Packer::new(&stream, kernels, shape).map_err(gpu)?;
        for (index, expert) in experts.iter().enumerate() {
            packer.pack(&stream, &mut packed, index, expert).map_err(gpu)?;
            let found = packed.read(&stream, index).map_err(gpu)?;
            let pair = layout::pack_gate_up(&expert.gate, &expert.up).map_err(|e| failed(e.to_string()))?;
            let down = layout::pack_down(&expert.down).map_err(|e| failed(e.to_string()))?;
            if found != [pair, down] {
                return Err(failed(format!("expert {index} was packed differently on the device")));
            }
        }
        for index in distinct..shape.experts {
            packed.copy(&stream, index % distinct, index).map_err(gpu)?;
        }
        Ok(Self {
            unit: row.unit.clone(),
            kernels: ExpertKernels::load(kernels, shape).map_err(gpu)?,
            packed,
            experts: Experts(experts),
            stream,
        })
    }
}

/// An expert whose products neither vanish nor grow.
fn expert(random: &mut Random, shape: &Shape) -> Result<Expert, kd_tensor::ShapeError> {
    let mut matrix = |rows: usize, cols: usize| {
        let words: Vec<i32> = (0..rows * cols / 8).map(|_| random.bits() as i32).collect();
        let scale = 0.25 / (cols as f32).sqrt();
        let scales: Vec<bf16> =
            (0..rows * cols / 32).map(|_| bf16::from_f32(scale * (1.0 + 0.5 * random.unit()))).collect();
        Int4Matrix::new(rows, cols, words, scales)
    };
    let (hidden, width) = (shape.hidden, shape.width);
    Ok(Expert { gate: matrix(width, hidden)?, up: matrix(width, hidden)?, down: matrix(hidden, width)? })
}

/// One form of one layer with inputs.
struct Case {
    layer: Layer,
    form: Form,
    x: Vec<bf16>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    /// The input rows that were computed on the CPU, and their results.
    compared: Vec<usize>,
    expected: Matrix,
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    ids: CudaSlice<i32>,
    weights: CudaSlice<f32>,
    scratch: Scratch,
    y: Output<bf16>,
}

impl Case {
    fn new(layer: Layer, form: Form, mut random: Random, mut ids: Vec<i32>) -> Result<Self, Failure> {
        let Shape { hidden, top_k, .. } = layer.kernels.shape();
        let rows = ids.len() / top_k;
        let failed = |what: String| Failure::Wrong { unit: layer.unit.clone(), rows, what };
        let mut x = random.values(rows * hidden, 1.0);
        let weights: Vec<f32> = (0..ids.len()).map(|_| 0.35 * (1.0 + 0.5 * random.unit())).collect();
        if rows > NAN_ROW {
            x[NAN_ROW * hidden + hidden / 2] = bf16::NAN;
        }
        if rows > PADDED_ROW {
            ids[PADDED_ROW * top_k..(PADDED_ROW + 1) * top_k].fill(-1);
        }
        let mut compared: Vec<usize> = COMPARED.into_iter().filter(|row| *row < rows).collect();
        compared.push(rows - 1);
        compared.dedup();
        let chosen = gather(&x, hidden, &compared).iter().map(|value| value.to_f32()).collect();
        let chosen =
            Matrix::from_vec(compared.len(), hidden, chosen).map_err(|error| failed(error.to_string()))?;
        // A choice that goes nowhere is one of weight 0.
        let distinct = layer.experts.0.len();
        let own_ids = gather(&ids, top_k, &compared);
        let own_weights = gather(&weights, top_k, &compared);
        let routing = Routing {
            top_k,
            ids: own_ids
                .iter()
                .map(|id| usize::try_from(*id).unwrap_or(0) as u32 % distinct as u32)
                .collect(),
            weights: own_ids.iter().zip(&own_weights).map(|(id, w)| if *id < 0 { 0.0 } else { *w }).collect(),
            scores: Matrix::zeros(compared.len(), distinct),
        };
        let pool = Pool::available().unwrap_or_else(|_| Pool::single());
        let expected = layer.experts.forward(&pool, chosen.view(), &routing);
        Ok(Self { form, x, ids, weights, compared, expected, layer })
    }
}

impl Subject for Case {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.layer.unit
    }

    fn stream(&self) -> &Stream {
        &self.layer.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, shape) = (self.stream(), order.len(), self.layer.kernels.shape());
        let plan = Plan::new(shape, rows).map_err(kernel_error)?;
        Ok(Memory {
            rows,
            x: upload(stream, &gather(&self.x, shape.hidden, order))?,
            ids: upload(stream, &gather(&self.ids, shape.top_k, order))?,
            weights: upload(stream, &gather(&self.weights, shape.top_k, order))?,
            scratch: Scratch::with_guard(stream, plan, GUARD).map_err(kernel_error)?,
            y: Output::poisoned(stream, rows, shape.hidden)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, shape) = (self.stream(), memory.rows, self.layer.kernels.shape());
        let batch = Batch {
            rows,
            x: TensorRef::new(stream, memory.x.as_view(), [rows, shape.hidden])?,
            ids: TensorRef::new(stream, memory.ids.as_view(), [rows, shape.top_k])?,
            weights: TensorRef::new(stream, memory.weights.as_view(), [rows, shape.top_k])?,
            y: memory.y.tensor(stream, [rows, shape.hidden])?,
        };
        let (kernels, packed) = (&self.layer.kernels, &self.layer.packed);
        kernels.run(stream, self.form, packed, 0, &mut memory.scratch, batch).map_err(kernel_error)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let stream = self.stream();
        if !memory.scratch.guards_intact(stream, GUARD).map_err(kernel_error)? {
            let what = "the layer's scratch".to_owned();
            return Err(KernelError::Driver { what, code: "written behind its end".to_owned() });
        }
        Ok(vec![memory.y.written(stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let (mut error, mut norm) = (0.0f64, 0.0f64);
        for (place, input) in order.iter().enumerate() {
            let values: Vec<bf16> = y.values(place);
            let at = self.compared.iter().position(|row| row == input);
            if *input == NAN_ROW {
                if !values.iter().all(|value| value.is_nan()) {
                    return Err(format!("row {place} holds a NaN, but its result is not all NaN"));
                }
                continue;
            }
            if let Some(column) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!("element {column} of row {place} is {}", values[column]));
            }
            let Some(at) = at else { continue };
            for (value, expected) in values.iter().zip(self.expected.row(at)) {
                let (value, expected) = (f64::from(value.to_f32()), f64::from(*expected));
                error += (value - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        let relative = if norm > 0.0 { (error / norm).sqrt() } else { 0.0 };
        if relative > BOUND || relative.is_nan() {
            return Err(format!("relative error {relative:.2e}, over {BOUND:.1e}"));
        }
        Ok(relative / BOUND)
    }

    fn bytes(&self, rows: usize) -> usize {
        let Shape { hidden, experts, top_k, .. } = self.layer.kernels.shape();
        let mut seen = vec![false; experts];
        let ids = &self.ids[..rows * top_k];
        ids.iter().filter_map(|id| usize::try_from(*id).ok()).for_each(|id| seen[id] = true);
        let active = seen.iter().filter(|seen| **seen).count();
        self.layer.kernels.shape().weight_bytes().unwrap_or_default() / experts * active + rows * hidden * 4
    }
}

fn kernel_error(error: GpuError) -> KernelError {
    match error {
        GpuError::Kernel(error) => error,
        other => KernelError::Driver { what: "the layer".to_owned(), code: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_gives_every_number_of_rows() {
        let shape = Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 };
        let mut counts = vec![0usize; shape.experts];
        ladder(&shape).iter().filter(|id| **id >= 0).for_each(|id| counts[*id as usize] += 1);
        counts.sort_unstable();
        counts.dedup();
        assert_eq!(counts, (0..=130).collect::<Vec<_>>());
    }
}
