//! The measurements.

use std::time::Duration;

use half::bf16;
use kd_kernels::bench::{Rates, median};
use kd_kernels::families::expert_read;
use kd_kernels::selftest::{Random, units, upload};
use kd_kernels::{Choice, CudaSlice, Device, Graph, KernelError, Kernels, Stream, TensorMut, TensorRef};
use kd_tensor::Int4Matrix;

use super::routing::active;
use super::{Options, ROUTINGS, Report, Row};
use crate::Expert;
use crate::gpu::{
    Batch, DeviceExperts, ExpertKernels, Form, GpuError, Packer, Plan, Scratch, Shape, upload_ids,
};

/// Different experts; the others are their copies.
const DISTINCT: usize = 4;
/// How long the device rests before the first replay of each number of rows.
const REST: Duration = Duration::from_millis(300);
/// Replays of each graph before those that count.
const WARM_UP: usize = 5;

/// The layer whose kernels `kernels` has.
///
/// # Errors
/// A bundle without them.
pub fn shape(kernels: &Kernels) -> Result<Shape, GpuError> {
    let size = |family: &str, name: &str| {
        let missing = || KernelError::NoDimension { unit: family.to_owned(), name: name.to_owned() };
        units(kernels, family).next().ok_or_else(missing)?.dim(name).map(|(_, size)| size)
    };
    Ok(Shape {
        hidden: size("moe_gate_up", "H")?,
        width: size("moe_gate_up", "I")?,
        experts: size("moe_group", "E")?,
        top_k: size("moe_group", "T")?,
    })
}

/// Measures a layer of `shape`, of which `options` may take a slice.
///
/// # Errors
/// Kernels that the bundle lacks, a failed allocation or launch, more rows than a run takes.
pub fn run(device: &Device, kernels: &Kernels, shape: Shape, options: &Options) -> Result<Report, GpuError> {
    let profile_experts = shape.experts;
    let shape = Shape { experts: options.experts.unwrap_or(shape.experts).min(shape.experts), ..shape };
    if shape.experts < shape.top_k {
        return Err(GpuError::Limit {
            what: "the experts that a row chooses",
            found: shape.top_k,
            limit: shape.experts,
        });
    }
    let bench = Bench::new(device, kernels, Shape { experts: profile_experts, ..shape }, shape, options)?;
    let read_rate = bench.read_rate()?;
    let matrix_rate = Rates::measure(device, kernels)?.operations;
    let rows = options.rows.iter().map(|rows| bench.row(*rows, options, read_rate, matrix_rate));
    Ok(Report {
        device: device.name().to_owned(),
        shape,
        profile_experts,
        routing: options.routing.name(),
        read_rate,
        matrix_rate,
        rows: rows.collect::<Result<_, _>>()?,
    })
}

struct Bench {
    stream: Stream,
    kernels: ExpertKernels,
    read: expert_read::ExpertRead,
    experts: DeviceExperts,
    shape: Shape,
    x: CudaSlice<bf16>,
    weights: CudaSlice<f32>,
    seed: u64,
}

/// What the graphs of one number of rows use.
struct Load<'a> {
    bench: &'a Bench,
    form: Form,
    rows: usize,
    ids: Vec<CudaSlice<i32>>,
    /// One scratch for each routing, so that the read graph finds all groupings.
    scratch: Vec<Scratch>,
    y: CudaSlice<bf16>,
    found: CudaSlice<u32>,
}

impl Bench {
    /// `kernel_shape` is that of the kernels, `shape` that of the weights.
    fn new(
        device: &Device,
        kernels: &Kernels,
        kernel_shape: Shape,
        shape: Shape,
        options: &Options,
    ) -> Result<Self, GpuError> {
        let (stream, mut random) = (device.stream()?, Random::new(options.seed));
        let mut experts = DeviceExperts::new(&stream, shape)?;
        let mut packer = Packer::new(&stream, kernels, shape)?;
        let distinct = DISTINCT.min(shape.experts);
        for index in 0..distinct {
            packer.pack(&stream, &mut experts, index, &expert(&mut random, &shape)?)?;
        }
        for index in distinct..shape.experts {
            experts.copy(&stream, index % distinct, index)?;
        }
        let most = options.rows.iter().copied().max().unwrap_or_default();
        let h = i64::try_from(shape.hidden).unwrap_or(i64::MAX);
        Ok(Self {
            kernels: ExpertKernels::load(kernels, kernel_shape)?,
            read: expert_read::ExpertRead::load(kernels, expert_read::Dims { h })?,
            experts,
            shape,
            x: upload(&stream, &random.values(most * shape.hidden, 1.0))?,
            weights: upload(&stream, &vec![1.0 / shape.top_k as f32; most * shape.top_k])?,
            seed: options.seed,
            stream,
        })
    }

    fn load(&self, form: Form, rows: usize, ids: &[Vec<i32>]) -> Result<Load<'_>, GpuError> {
        let plan = Plan::new(self.kernels.shape(), rows)?;
        Ok(Load {
            bench: self,
            form,
            rows,
            ids: ids
                .iter()
                .map(|ids| upload_ids(&self.stream, ids, self.shape.top_k))
                .collect::<Result<_, _>>()?,
            scratch: ids.iter().map(|_| Scratch::new(&self.stream, plan)).collect::<Result<_, _>>()?,
            y: upload(&self.stream, &vec![bf16::ZERO; rows * self.shape.hidden])?,
            found: upload(&self.stream, &[0])?,
        })
    }

    /// Bytes a second of reading every expert of the layer.
    fn read_rate(&self) -> Result<f64, GpuError> {
        let Shape { experts, top_k, .. } = self.shape;
        let rows = experts.div_ceil(top_k);
        let ids: Vec<i32> = (0..rows * top_k).map(|id| (id % experts) as i32).collect();
        let mut load = self.load(Form::Narrow, rows, &[ids])?;
        load.layer(0)?;
        let graph = self.stream.capture(load, record_read)?;
        let times = (0..20).map(|_| graph.time_one()).collect::<Result<Vec<_>, _>>()?;
        let best = times.into_iter().fold(f64::INFINITY, f64::min);
        Ok(self.shape.weight_bytes()? as f64 / best * 1e6)
    }

    fn row(&self, rows: usize, options: &Options, read_rate: f64, matrix_rate: f64) -> Result<Row, GpuError> {
        let Shape { hidden, width, experts, top_k } = self.shape;
        let mut random = Random::new(self.seed ^ rows as u64);
        let ids: Vec<Vec<i32>> =
            (0..ROUTINGS).map(|_| options.routing.ids(&mut random, rows, top_k, experts)).collect();
        let active = ids.iter().map(|ids| active(ids, experts) as f64).sum::<f64>() / ROUTINGS as f64;
        let bytes = self.shape.weight_bytes()? as f64 / experts as f64 * active;
        // The read needs the grouping on the device.
        let mut grouped = self.load(Form::Narrow, rows, &ids)?;
        (0..ROUTINGS).try_for_each(|routing| grouped.layer(routing))?;
        let form = self.kernels.form(rows);
        let read = self.stream.capture(grouped, record_read)?;
        let layer = self.stream.capture(self.load(form, rows, &ids)?, record_layers)?;
        let each = |graph: &Graph<Load<'_>>| Ok::<_, KernelError>(graph.time_one()? / ROUTINGS as f64);
        each(&layer)?;
        std::thread::sleep(REST);
        let first = each(&layer)?;
        (0..WARM_UP).try_for_each(|_| each(&layer).and_then(|_| each(&read)).map(drop))?;
        let (mut layers, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..options.replays {
            layers.push(each(&layer)?);
            reads.push(each(&read)?);
        }
        let operations = 2.0 * 3.0 * (rows * top_k * hidden) as f64 * width as f64;
        Ok(Row {
            rows,
            active,
            bytes,
            byte_floor: bytes / read_rate * 1e6,
            matrix_floor: operations / matrix_rate * 1e6,
            read: median(&reads),
            first,
            layer: layers,
            form: form.name(),
        })
    }
}

impl Load<'_> {
    fn layer(&mut self, routing: usize) -> Result<(), KernelError> {
        let Bench { stream, kernels, experts, x, weights, .. } = self.bench;
        let (rows, Shape { hidden, top_k, .. }) = (self.rows, self.bench.shape);
        let batch = Batch {
            rows,
            x: TensorRef::new(stream, x.slice(..rows * hidden), [rows, hidden])?,
            ids: TensorRef::new(stream, self.ids[routing].as_view(), [rows, top_k])?,
            weights: TensorRef::new(stream, weights.slice(..rows * top_k), [rows, top_k])?,
            y: TensorMut::new(stream, self.y.as_view_mut(), [rows, hidden])?,
        };
        kernels.run(stream, self.form, experts, 0, &mut self.scratch[routing], batch).map_err(|error| {
            match error {
                GpuError::Kernel(error) => error,
                other => KernelError::Driver { what: "a layer".to_owned(), code: other.to_string() },
            }
        })
    }

    fn read(&mut self, routing: usize) -> Result<(), KernelError> {
        let Bench { stream, read, experts, .. } = self.bench;
        let [totals, entries] = self.scratch[routing].grouping();
        let Shape { experts: count, hidden, .. } = self.bench.shape;
        for words in experts.arrays() {
            let args = expert_read::Args {
                w: TensorRef::new(stream, words.as_view(), [words.len() / hidden, hidden])?,
                plan: TensorRef::new(stream, totals.slice(..2), [2])?,
                entries: TensorRef::new(stream, entries.slice(..count * 4), [count, 4])?,
                found: TensorMut::new(stream, self.found.as_view_mut(), [1])?,
            };
            read.launch(stream, Choice::Auto, args)?;
        }
        Ok(())
    }
}

fn record_layers(_: &Stream, load: &mut Load<'_>) -> Result<(), KernelError> {
    (0..load.ids.len()).try_for_each(|routing| load.layer(routing))
}

fn record_read(_: &Stream, load: &mut Load<'_>) -> Result<(), KernelError> {
    (0..load.ids.len()).try_for_each(|routing| load.read(routing))
}

/// An expert of random codes, whose products neither vanish nor grow.
///
/// # Errors
/// A shape that is not whole INT4 groups.
pub fn expert(random: &mut Random, shape: &Shape) -> Result<Expert, GpuError> {
    let mut matrix = |rows: usize, cols: usize| {
        let words: Vec<i32> = (0..rows * cols / 8).map(|_| random.bits() as i32).collect();
        let scale = 0.25 / (cols as f32).sqrt();
        let scales: Vec<bf16> =
            (0..rows * cols / 32).map(|_| bf16::from_f32(scale * (1.0 + 0.5 * random.unit()))).collect();
        Int4Matrix::new(rows, cols, words, scales).map_err(|error| GpuError::Layout(error.into()))
    };
    let (hidden, width) = (shape.hidden, shape.width);
    Ok(Expert { gate: matrix(width, hidden)?, up: matrix(width, hidden)?, down: matrix(hidden, width)? })
}
