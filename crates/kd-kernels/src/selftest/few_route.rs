//! `few_route` against `add_rms_norm`, `router`, `few_gate` and `dense`, bit by bit; each of them has a check of its own.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::{
    Failure, Outcome, Output, Random, Subject, Written, cases, gather, same_bits, units, upload, verify,
};
use crate::bundle::Row;
use crate::families::{add_rms_norm, few_gate, few_route, router};
use crate::{Choice, DenseProduct, DenseScratch, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};

const EPS: f32 = 1e-5;
const SCALING: f32 = 2.827;
/// Groups of experts, and parts of the residual stream: as K2.6 has them on one rank, and more of both.
const CASES: [(i32, usize); 2] = [(1, 1), (8, 3)];
/// A launch has one row: several that a model has, one that holds a NaN, and one that is padding.
const ROWS: [Kind; 7] = [Kind::Any, Kind::Any, Kind::Any, Kind::Any, Kind::Any, Kind::WithNan, Kind::Padding];

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "few_route") {
        let all = CASES.iter().flat_map(|case| ROWS.iter().zip(seed..).map(move |of| (case, of)));
        for (case, (kind, seed)) in cases(all) {
            outcomes.extend(verify(&FewRoute::new(device, kernels, row, *case, *kind, seed)?, &[1])?);
        }
    }
    Ok(outcomes)
}

/// What the row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Any,
    WithNan,
    Padding,
}

/// The sizes of a unit.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    experts: usize,
    top_k: usize,
    width: usize,
}

struct FewRoute {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: few_route::FewRoute,
    norm: add_rms_norm::AddRmsNorm,
    router: router::Router,
    gate: few_gate::FewGate,
    down: DenseProduct,
    sizes: Sizes,
    groups: i32,
    kind: Kind,
    h: Vec<bf16>,
    parts: Vec<Vec<bf16>>,
    gain: CudaSlice<bf16>,
    weights: CudaSlice<bf16>,
    bias: CudaSlice<f32>,
    gate_up: CudaSlice<bf16>,
    down_weights: CudaSlice<bf16>,
}

struct Memory {
    rows: usize,
    h: CudaSlice<bf16>,
    parts: CudaSlice<bf16>,
    slots: CudaSlice<i32>,
    met: Output<i32>,
    scratch: DenseScratch,
    /// Of this form and of the others.
    forms: [Results; 2],
}

/// What both forms write.
struct Results {
    arrived: Output<i32>,
    sum: Output<bf16>,
    normed: Output<bf16>,
    scores: Output<f32>,
    ids: Output<i32>,
    weights: Output<f32>,
    gated: Output<bf16>,
    shared: Output<bf16>,
}

impl Results {
    fn new(stream: &Stream, rows: usize, sizes: Sizes, sum: Output<bf16>) -> Result<Self, KernelError> {
        Ok(Self {
            arrived: Output::holding(stream, &vec![0; rows * sizes.experts], rows, sizes.experts)?,
            sum,
            normed: Output::poisoned(stream, rows, sizes.hidden)?,
            scores: Output::poisoned(stream, rows, sizes.experts)?,
            ids: Output::poisoned(stream, rows, sizes.top_k)?,
            weights: Output::poisoned(stream, rows, sizes.top_k)?,
            gated: Output::poisoned(stream, rows, sizes.width)?,
            shared: Output::poisoned(stream, rows, sizes.hidden)?,
        })
    }

    fn written(&self, stream: &Stream) -> Result<[Written; 8], KernelError> {
        Ok([
            self.arrived.written(stream, "arrived")?,
            self.sum.written(stream, "sum")?,
            self.normed.written(stream, "y")?,
            self.scores.written(stream, "scores")?,
            self.ids.written(stream, "ids")?,
            self.weights.written(stream, "weights")?,
            self.gated.written(stream, "gated")?,
            self.shared.written(stream, "shared")?,
        ])
    }
}

impl FewRoute {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        (groups, parts): (i32, usize),
        kind: Kind,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((h, hidden), (e, experts)) = (row.dim("H")?, row.dim("E")?);
        let ((t, top_k), (i, width)) = (row.dim("T")?, row.dim("I")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let scale = (hidden as f32).sqrt();
        let bias: Vec<f32> = (0..experts).map(|_| 0.2 * random.unit()).collect();
        let mut values = random.values(hidden, 2.0);
        if kind == Kind::WithNan {
            values[hidden / 2] = bf16::NAN;
        }
        Ok(Self {
            unit: format!("{}, {groups} groups, {parts} parts, {kind:?}", row.unit),
            variant: row.variant.clone(),
            kernel: few_route::FewRoute::load(kernels, few_route::Dims { h, e, t, i })?,
            norm: add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h })?,
            router: router::Router::load(kernels, router::Dims { h, e, t })?,
            gate: few_gate::FewGate::load(kernels, few_gate::Dims { k: h, i })?,
            down: DenseProduct::few(kernels, width)?,
            sizes: Sizes { hidden, experts, top_k, width },
            groups,
            kind,
            h: values,
            parts: (0..parts).map(|_| random.values(hidden, 2.0)).collect(),
            gain: upload(&stream, &random.values(hidden, 2.0))?,
            weights: upload(&stream, &random.values(experts * hidden, 4.0 / scale))?,
            bias: upload(&stream, &bias)?,
            gate_up: upload(&stream, &random.values(2 * width * hidden, 8.0 / scale))?,
            down_weights: upload(&stream, &random.values(hidden * width, 4.0 / (width as f32).sqrt()))?,
            stream,
        })
    }

    fn top_groups(&self) -> i32 {
        (self.groups + 1) / 2
    }
}

impl Subject for FewRoute {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, width) = (&self.stream, order.len(), self.sizes.hidden);
        let parts: Vec<bf16> = self.parts.iter().flat_map(|part| gather(part, width, order)).collect();
        let h = gather(&self.h, width, order);
        let slots = vec![if self.kind == Kind::Padding { -1 } else { 0 }; rows];
        let own = Output::poisoned(stream, rows, width)?;
        let other = Output::holding(stream, &h, rows, width)?;
        Ok(Memory {
            rows,
            h: upload(stream, &h)?,
            parts: upload(stream, &parts)?,
            slots: upload(stream, &slots)?,
            met: Output::holding(stream, &[0; 2], 1, 2)?,
            scratch: DenseScratch::few(stream, rows, self.sizes.hidden)?,
            forms: [
                Results::new(stream, rows, self.sizes, own)?,
                Results::new(stream, rows, self.sizes, other)?,
            ],
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let Sizes { hidden, experts, top_k, width } = self.sizes;
        let (stream, rows, [own, _]) = (&self.stream, memory.rows, &mut memory.forms);
        let args = few_route::Args {
            h: TensorRef::new(stream, memory.h.as_view(), [rows, hidden])?,
            parts: TensorRef::new(stream, memory.parts.as_view(), [self.parts.len(), rows, hidden])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [hidden])?,
            eps: EPS,
            w: TensorRef::new(stream, self.weights.as_view(), [experts, hidden])?,
            bias: TensorRef::new(stream, self.bias.as_view(), [experts])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            groups: self.groups,
            top_groups: self.top_groups(),
            normalize: 1,
            scaling: SCALING,
            gate_up: TensorRef::new(stream, self.gate_up.as_view(), [2 * width, hidden])?,
            down: TensorRef::new(stream, self.down_weights.as_view(), [hidden, width])?,
            arrived: own.arrived.tensor(stream, [rows, experts])?,
            met: memory.met.tensor(stream, [2])?,
            sum: own.sum.tensor(stream, [rows, hidden])?,
            y: own.normed.tensor(stream, [rows, hidden])?,
            scores: own.scores.tensor(stream, [rows, experts])?,
            ids: own.ids.tensor(stream, [rows, top_k])?,
            weights: own.weights.tensor(stream, [rows, top_k])?,
            gated: own.gated.tensor(stream, [rows, width])?,
            shared: own.shared.tensor(stream, [rows, hidden])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let Sizes { hidden, experts, top_k, width } = self.sizes;
        let (stream, rows, [own, other]) = (&self.stream, memory.rows, &mut memory.forms);
        let args = add_rms_norm::Args {
            h: other.sum.tensor(stream, [rows, hidden])?,
            parts: TensorRef::new(stream, memory.parts.as_view(), [self.parts.len(), rows, hidden])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [hidden])?,
            eps: EPS,
            early: 0,
            tap: TensorMut::none([0, hidden]),
            y: other.normed.tensor(stream, [rows, hidden])?,
        };
        self.norm.launch(stream, Choice::Auto, args)?;
        let x = || TensorRef::new(stream, other.normed.slice().slice(..rows * hidden), [rows, hidden]);
        let args = router::Args {
            x: x()?,
            w: TensorRef::new(stream, self.weights.as_view(), [experts, hidden])?,
            bias: TensorRef::new(stream, self.bias.as_view(), [experts])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            groups: self.groups,
            top_groups: self.top_groups(),
            normalize: 1,
            scaling: SCALING,
            arrived: other.arrived.tensor(stream, [rows, experts])?,
            scores: other.scores.tensor(stream, [rows, experts])?,
            ids: other.ids.tensor(stream, [rows, top_k])?,
            weights: other.weights.tensor(stream, [rows, top_k])?,
        };
        self.router.launch(stream, Choice::Auto, args)?;
        let args = few_gate::Args {
            x: x()?,
            w: TensorRef::new(stream, self.gate_up.as_view(), [2 * width, hidden])?,
            y: other.gated.tensor(stream, [rows, width])?,
        };
        self.gate.launch(stream, Choice::Auto, args)?;
        let x = TensorRef::new(stream, other.gated.slice().slice(..rows * width), [rows, width])?;
        let w = TensorRef::new(stream, self.down_weights.as_view(), [hidden, width])?;
        let y = other.shared.tensor(stream, [rows, hidden])?;
        self.down.launch(stream, &mut memory.scratch, x, w, y)?;
        if memory.met.written(stream, "met")?.values::<i32>(0) != [0, 0] {
            let what = "`met` was not left zero".to_owned();
            return Err(KernelError::BadTensor { shape: vec![2], what });
        }
        Ok([own.written(stream)?, other.written(stream)?].concat())
    }

    fn judge(&self, _: &[usize], written: &[Written]) -> Result<f64, String> {
        same_bits(written)
    }

    fn bytes(&self, rows: usize) -> usize {
        let Sizes { hidden, experts, width, .. } = self.sizes;
        ((experts + 3 * width) * hidden + rows * ((4 + self.parts.len()) * hidden + width))
            * size_of::<bf16>()
    }
}
