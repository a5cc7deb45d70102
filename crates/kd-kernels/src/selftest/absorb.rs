//! `absorb_query` and `absorb_value` against `kd_tensor::linear`, one product a head.

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::{Bf16Matrix, Matrix, Pool, linear};

use super::{Bound, Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::{absorb_query, absorb_value};
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

/// Columns of a head that are compared with the CPU. All must be written, and the same in every launch.
const COMPARED: usize = 24;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "absorb_query").chain(units(kernels, "absorb_value")) {
        outcomes.extend(verify(&Absorb::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

enum Kernel {
    Query(absorb_query::AbsorbQuery),
    Value(absorb_value::AbsorbValue),
}

struct Absorb {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: Kernel,
    heads: usize,
    k: usize,
    n: usize,
    /// Values of a head of a row, and of a head of the result: the product's, then those beside it.
    x_width: usize,
    y_width: usize,
    x: Vec<bf16>,
    weights: CudaSlice<bf16>,
    /// Some columns of a head's result, and for each head their values for all input rows.
    columns: Vec<usize>,
    expected: Vec<Matrix>,
}

struct Memory {
    rows: usize,
    x: CudaSlice<bf16>,
    y: Output<bf16>,
}

impl Absorb {
    fn new(device: &Device, kernels: &Kernels, row: &Row, rows: usize, seed: u64) -> Result<Self, Failure> {
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows, what };
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let ((heads_dim, heads), (k_dim, k), (n_dim, n)) = (row.dim("HEADS")?, row.dim("K")?, row.dim("N")?);
        let (kernel, beside) = if row.family == "absorb_query" {
            let (rope, beside) = row.dim("ROPE")?;
            let dims = absorb_query::Dims { heads: heads_dim, k: k_dim, n: n_dim, rope };
            (Kernel::Query(absorb_query::AbsorbQuery::load(kernels, dims)?), beside)
        } else {
            let dims = absorb_value::Dims { heads: heads_dim, k: k_dim, n: n_dim };
            (Kernel::Value(absorb_value::AbsorbValue::load(kernels, dims)?), 0)
        };
        let (x_width, y_width) = (k + beside, n + beside);
        let x = random.values(rows * heads * x_width, 1.0);
        let weights = random.values(heads * n * k, 4.0 / (k as f32).sqrt());
        let mut columns = random.distinct(COMPARED.min(n), n);
        columns.sort_unstable();
        let head = |head: usize| {
            let part = |row: usize| {
                let at = (row * heads + head) * x_width;
                x[at..at + k].iter().map(|value| value.to_f32())
            };
            let input = Matrix::from_vec(rows, k, (0..rows).flat_map(part).collect());
            let own = gather(&weights[head * n * k..(head + 1) * n * k], k, &columns);
            let own = Bf16Matrix::new(columns.len(), k, own).map_err(|error| failed(error.to_string()))?;
            let input = input.map_err(|error| failed(error.to_string()))?;
            Ok::<_, Failure>(linear(&Pool::single(), input.view(), &own))
        };
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel,
            heads,
            k,
            n,
            x_width,
            y_width,
            expected: (0..heads).map(head).collect::<Result<_, _>>()?,
            weights: upload(&stream, &weights)?,
            columns,
            x,
            stream,
        })
    }
}

impl Subject for Absorb {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows) = (&self.stream, order.len());
        let x = upload(stream, &gather(&self.x, self.heads * self.x_width, order))?;
        Ok(Memory { rows, x, y: Output::poisoned(stream, rows, self.heads * self.y_width)? })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, choice) = (&self.stream, memory.rows, Choice::Forced(&self.variant));
        let x = TensorRef::new(stream, memory.x.as_view(), [rows, self.heads, self.x_width])?;
        let w = TensorRef::new(stream, self.weights.as_view(), [self.heads, self.n, self.k])?;
        let y = memory.y.tensor(stream, [rows, self.heads, self.y_width])?;
        match &self.kernel {
            Kernel::Query(kernel) => kernel.launch(stream, choice, absorb_query::Args { q: x, w, y }),
            Kernel::Value(kernel) => kernel.launch(stream, choice, absorb_value::Args { o: x, w, y }),
        }
        .map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let slack = (self.k as f32).sqrt() / (1 << 20) as f32;
        let mut bound = Bound::default();
        for (i, &input) in order.iter().enumerate() {
            let bits: Vec<u16> = y.values(i);
            for (head, bits) in bits.chunks_exact(self.y_width).enumerate() {
                let (own, beside) = bits.split_at(self.n);
                if let Some(at) = own.iter().position(|bits| !bf16::from_bits(*bits).is_finite()) {
                    return Err(format!("row {i}, head {head}: value {at} was not written"));
                }
                if beside.iter().any(|bits| *bits != u16::MAX) {
                    return Err(format!("row {i}, head {head}: values beside the product were written"));
                }
                let compared: Vec<bf16> =
                    self.columns.iter().map(|column| bf16::from_bits(own[*column])).collect();
                bound
                    .row(i, &compared, self.expected[head].row(input), |_| slack)
                    .map_err(|what| format!("head {head}: {what}"))?;
            }
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        self.heads * (self.n * self.k + rows * (self.k + self.n)) * size_of::<bf16>()
    }
}
