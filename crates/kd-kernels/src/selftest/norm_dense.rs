//! `norm_dense` against `add_rms_norm` and `dense`, bit by bit; each of them has a check of its own.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::norm::only_tapped;
use super::{
    Failure, Outcome, Output, Random, Subject, Written, cases, gather, same_bits, units, upload, verify,
};
use crate::bundle::Row;
use crate::families::{add_rms_norm, norm_dense};
use crate::{Choice, DenseProduct, DenseScratch, Device, KernelError, Kernels, Stream, TensorRef};

const EPS: f32 = 1e-5;
/// Parts of the residual stream: of a dense layer, of a layer with experts, and of more ranks.
const PARTS: [usize; 3] = [1, 2, 5];
/// Rows of weights: no multiple of a CTA's.
const COLUMNS: usize = 2092;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "norm_dense") {
        for parts in cases(PARTS) {
            let norm_dense = NormDense::new(device, kernels, row, parts, most, seed)?;
            outcomes.extend(verify(&norm_dense, rows)?);
            rows.iter().try_for_each(|rows| norm_dense.taps_of_fewer_rows(*rows))?;
        }
    }
    Ok(outcomes)
}

struct NormDense {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: norm_dense::NormDense,
    norm: add_rms_norm::AddRmsNorm,
    product: DenseProduct,
    hidden: usize,
    h: Vec<bf16>,
    parts: Vec<Vec<bf16>>,
    gain: CudaSlice<bf16>,
    weights: CudaSlice<bf16>,
}

struct Memory {
    rows: usize,
    h: CudaSlice<bf16>,
    parts: CudaSlice<bf16>,
    normed: Output<bf16>,
    scratch: DenseScratch,
    /// Of this form and of the other.
    sum: [Output<bf16>; 2],
    tap: [Output<bf16>; 2],
    y: [Output<bf16>; 2],
}

impl NormDense {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        parts: usize,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((h, hidden), stream, mut random) = (row.dim("H")?, device.stream()?, Random::new(seed));
        Ok(Self {
            unit: format!("{}, {parts} parts", row.unit),
            variant: row.variant.clone(),
            kernel: norm_dense::NormDense::load(kernels, norm_dense::Dims { h })?,
            norm: add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h })?,
            product: DenseProduct::few(kernels, hidden)?,
            hidden,
            h: random.values(rows * hidden, 2.0),
            parts: (0..parts).map(|_| random.values(rows * hidden, 2.0)).collect(),
            gain: upload(&stream, &random.values(hidden, 2.0))?,
            weights: upload(&stream, &random.values(COLUMNS * hidden, 8.0 / (hidden as f32).sqrt()))?,
            stream,
        })
    }

    /// One launch whose first `tapped` rows are tapped.
    fn launch_tapped(&self, memory: &mut Memory, tapped: usize) -> Result<(), KernelError> {
        let (stream, rows, width) = (&self.stream, memory.rows, self.hidden);
        let args = norm_dense::Args {
            h: TensorRef::new(stream, memory.h.as_view(), [rows, width])?,
            parts: TensorRef::new(stream, memory.parts.as_view(), [self.parts.len(), rows, width])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [width])?,
            eps: EPS,
            w: TensorRef::new(stream, self.weights.as_view(), [COLUMNS, width])?,
            sum: memory.sum[0].tensor(stream, [rows, width])?,
            tap: memory.tap[0].first(stream, tapped, [tapped, width])?,
            y: memory.y[0].tensor(stream, [rows, COLUMNS])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    /// A tap of half the rows holds these and no more.
    fn taps_of_fewer_rows(&self, rows: usize) -> Result<(), Failure> {
        let mut memory = self.memory(&(0..rows).collect::<Vec<_>>())?;
        let tapped = rows.div_ceil(2);
        self.launch_tapped(&mut memory, tapped)?;
        let [sum, tap] = [(&memory.sum[0], "sum"), (&memory.tap[0], "tap")]
            .map(|(of, name)| of.written(&self.stream, name));
        only_tapped(&sum?, &tap?, rows, tapped).map_err(|what| Failure::Wrong {
            unit: self.unit.clone(),
            rows,
            what,
        })
    }
}

impl Subject for NormDense {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, width) = (&self.stream, order.len(), self.hidden);
        let parts: Vec<bf16> = self.parts.iter().flat_map(|part| gather(part, width, order)).collect();
        let h = gather(&self.h, width, order);
        let output = |columns| Output::poisoned(stream, rows, columns);
        Ok(Memory {
            rows,
            h: upload(stream, &h)?,
            parts: upload(stream, &parts)?,
            normed: output(width)?,
            scratch: DenseScratch::few(stream, rows, COLUMNS)?,
            sum: [output(width)?, Output::holding(stream, &h, rows, width)?],
            tap: [output(width)?, output(width)?],
            y: [output(COLUMNS)?, output(COLUMNS)?],
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        self.launch_tapped(memory, memory.rows)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let (stream, rows, width) = (&self.stream, memory.rows, self.hidden);
        let args = add_rms_norm::Args {
            h: memory.sum[1].tensor(stream, [rows, width])?,
            parts: TensorRef::new(stream, memory.parts.as_view(), [self.parts.len(), rows, width])?,
            gain: TensorRef::new(stream, self.gain.as_view(), [width])?,
            eps: EPS,
            early: 0,
            tap: memory.tap[1].tensor(stream, [rows, width])?,
            y: memory.normed.tensor(stream, [rows, width])?,
        };
        self.norm.launch(stream, Choice::Auto, args)?;
        let x = TensorRef::new(stream, memory.normed.slice().slice(..rows * width), [rows, width])?;
        let w = TensorRef::new(stream, self.weights.as_view(), [COLUMNS, width])?;
        let y = memory.y[1].tensor(stream, [rows, COLUMNS])?;
        self.product.launch(stream, &mut memory.scratch, x, w, y)?;
        let [own, other] = [0, 1].map(|form| {
            let [sum, tap, y] = [&memory.sum, &memory.tap, &memory.y].map(|outputs| &outputs[form]);
            Ok([sum.written(stream, "sum")?, tap.written(stream, "tap")?, y.written(stream, "y")?])
        });
        Ok([own?, other?].concat())
    }

    fn judge(&self, _: &[usize], written: &[Written]) -> Result<f64, String> {
        same_bits(written)
    }

    fn bytes(&self, rows: usize) -> usize {
        // The residual is read, and written to `sum` and the tap.
        let row = (3 + self.parts.len()) * self.hidden + COLUMNS;
        (COLUMNS * self.hidden + rows * row) * size_of::<bf16>()
    }
}
