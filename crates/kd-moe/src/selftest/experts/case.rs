//! One form of a layer with inputs, and what its result must be.

use half::bf16;
use kd_kernels::selftest::{Failure, Output, Random, Subject, Written, gather, upload};
use kd_kernels::{CudaSlice, KernelError, Stream, TensorRef};
use kd_tensor::{Matrix, Pool};

use super::layer::Layer;
use super::noise::bound;
use crate::Routing;
use crate::gpu::{Batch, Form, GpuError, Ones, Plan, Scratch, Shape, upload_ids};

/// Input rows that are compared with the CPU, besides the last.
const COMPARED: [usize; 8] = [0, 1, 2, 4, NAN_ROW, 6, PADDED_ROW, 31];
/// The input row that holds a NaN.
const NAN_ROW: usize = 5;
/// The input row that goes to no expert.
const PADDED_ROW: usize = 3;
/// Elements behind each array of the scratch that must stay as they are.
const GUARD: usize = 512;

/// One form of one layer with inputs.
pub(super) struct Case {
    layer: Layer,
    form: Form,
    /// The rank's first expert; choices of others go nowhere.
    first_expert: usize,
    x: Vec<bf16>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    /// The input rows that were computed on the CPU, and their results.
    compared: Vec<usize>,
    expected: Matrix,
}

pub(super) struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    ids: CudaSlice<i32>,
    weights: CudaSlice<f32>,
    scratch: Scratch,
    y: Output<bf16>,
}

impl Case {
    /// Rows that go to the experts `ids`, of which this rank has those from `first_expert` on.
    pub(super) fn new(
        layer: Layer,
        form: Form,
        first_expert: usize,
        mut random: Random,
        mut ids: Vec<i32>,
    ) -> Result<Self, Failure> {
        let Shape { hidden, top_k, experts, .. } = layer.kernels.shape();
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
        let own = |id: &i32| usize::try_from(*id).ok()?.checked_sub(first_expert).filter(|id| *id < experts);
        let own_ids: Vec<Option<usize>> = gather(&ids, top_k, &compared).iter().map(own).collect();
        let own_weights = gather(&weights, top_k, &compared);
        let routing = Routing {
            top_k,
            ids: own_ids.iter().map(|id| (id.unwrap_or(0) % distinct) as u32).collect(),
            weights: own_ids.iter().zip(&own_weights).map(|(id, w)| id.map_or(0.0, |_| *w)).collect(),
            scores: Matrix::zeros(compared.len(), distinct),
        };
        let pool = Pool::available().unwrap_or_else(|_| Pool::single());
        let expected = layer.experts.forward(&pool, chosen.view(), &routing);
        Ok(Self { form, first_expert, x, ids, weights, compared, expected, layer })
    }
}

impl Case {
    /// How many rows.
    pub(super) fn rows(&self) -> usize {
        self.ids.len() / self.layer.kernels.shape().top_k
    }

    /// The same in another form.
    pub(super) fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// A launch that finds nothing of those before it in the scratch.
    pub(super) fn launch_afresh(&self, ones: &Ones, memory: &mut Memory) -> Result<(), KernelError> {
        memory.scratch.spoil(self.stream(), ones).map_err(kernel_error)?;
        self.launch(memory)
    }

    /// What the spoiled scratch of a launch is copied from.
    pub(super) fn ones(&self) -> Result<Ones, KernelError> {
        Ones::new(self.stream()).map_err(kernel_error)
    }

    /// What a launch wrote.
    pub(super) fn results(&self, memory: &Memory) -> Result<Vec<Written>, KernelError> {
        let stream = self.stream();
        if !memory.scratch.guards_intact(stream, GUARD).map_err(kernel_error)? {
            let what = "the layer's scratch".to_owned();
            return Err(KernelError::Driver { what, code: "written behind its end".to_owned() });
        }
        if !memory.scratch.at_rest(stream).map_err(kernel_error)? {
            let what = "the layer's scratch".to_owned();
            return Err(KernelError::Driver { what, code: "left with counts of arrivals".to_owned() });
        }
        Ok(vec![memory.y.written(stream, "y")?])
    }

    /// How many experts of this rank an input row has.
    fn own_choices(&self, row: usize) -> usize {
        let Shape { top_k, experts, .. } = self.layer.kernels.shape();
        let first = self.first_expert as i64;
        let own = first..first + experts as i64;
        self.ids[row * top_k..(row + 1) * top_k].iter().filter(|id| own.contains(&i64::from(**id))).count()
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
            ids: upload_ids(stream, &gather(&self.ids, shape.top_k, order), shape.top_k)
                .map_err(kernel_error)?,
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
        let first = self.first_expert as i32;
        kernels.run(stream, self.form, packed, first, &mut memory.scratch, batch).map_err(kernel_error)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        self.results(memory)
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let (mut error, mut norm, mut rounded) = (0.0f64, 0.0f64, 0);
        for (place, input) in order.iter().enumerate() {
            let values: Vec<bf16> = y.values(place);
            let at = self.compared.iter().position(|row| row == input);
            if *input == NAN_ROW && self.own_choices(*input) > 0 {
                if !values.iter().all(|value| value.is_nan()) {
                    return Err(format!("row {place} holds a NaN, but its result is not all NaN"));
                }
                continue;
            }
            if let Some(column) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!("element {column} of row {place} is {}", values[column]));
            }
            let Some(at) = at else { continue };
            rounded += self.own_choices(*input) * self.layer.kernels.shape().width;
            for (value, expected) in values.iter().zip(self.expected.row(at)) {
                let (value, expected) = (f64::from(value.to_f32()), f64::from(*expected));
                error += (value - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        let relative = if norm > 0.0 { (error / norm).sqrt() } else { 0.0 };
        if norm == 0.0 && error > 0.0 {
            return Err("a row that has no expert here is not 0".to_owned());
        }
        let bound = bound(rounded);
        if relative > bound || relative.is_nan() {
            return Err(format!("relative error {relative:.2e}, over {bound:.2e}"));
        }
        Ok(relative / bound)
    }

    fn bytes(&self, rows: usize) -> usize {
        let Shape { hidden, experts, top_k, .. } = self.layer.kernels.shape();
        let mut seen = vec![false; experts];
        let ids = &self.ids[..rows * top_k];
        let own = ids.iter().filter_map(|id| usize::try_from(*id).ok()?.checked_sub(self.first_expert));
        own.filter(|id| *id < experts).for_each(|id| seen[id] = true);
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
