//! `dense`, `dense_mid`, `dense_many` and `dense_wgmma` against `kd_tensor::linear`, and against each other bit by bit.

use std::collections::BTreeMap;

use cudarc::driver::CudaSlice;
use half::bf16;
use kd_tensor::{Bf16Matrix, Matrix, Pool, linear};

use super::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, first_difference, gather, units, upload,
    verify,
};
use crate::bundle::Row;
use crate::families::{dense, dense_many, dense_mid, dense_wgmma};
use crate::{Choice, DenseScratch, Device, KernelError, Kernels, Stream, TensorRef};

/// Output features by K: projections of K2.6 at eight ranks and at one. Others take [`NARROW`].
const WIDTHS: [(usize, usize); 5] = [(7168, 2112), (1536, 1536), (1024, 7168), (2304, 7168), (8192, 7168)];
/// A width that is no whole number of tiles.
const NARROW: usize = 328;
/// Columns compared with the CPU. All columns must be written, and the same in every launch.
const COMPARED: usize = 96;
/// Launches go through copies of the weights until these are this many bytes, so that timings are past any L2.
const WORKING_SET: usize = 256 << 20;

/// Families with the same bits.
const FAMILIES: [&str; 4] = ["dense", "dense_mid", "dense_many", "dense_wgmma"];

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    // What the first variant of each K wrote.
    let mut first: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for row in FAMILIES.iter().flat_map(|family| units(kernels, family)) {
        let subject = Dense::new(device, kernels, row, most, seed)?;
        outcomes.extend(verify(&subject, rows)?);
        let mut memory = subject.memory(&(0..most).collect::<Vec<_>>())?;
        subject.launch(&mut memory)?;
        let written = memory.y.written(&subject.stream, "y")?.bytes;
        let wanted = first.entry(subject.k).or_insert_with(|| written.clone());
        if let Some(byte) = first_difference(wanted, &written) {
            let what = format!("byte {byte} of `y` is another than in the first variant of this K");
            return Err(Failure::Wrong { unit: subject.unit, rows: most, what });
        }
        if !memory.scratch.settled(&subject.stream)? {
            let what = "`arrived` is not zero again".to_owned();
            return Err(Failure::Wrong { unit: subject.unit, rows: most, what });
        }
    }
    Ok(outcomes)
}

struct Dense {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: Kernel,
    k: usize,
    n: usize,
    x: Vec<bf16>,
    weights: Vec<CudaSlice<bf16>>,
    /// Some columns of the result, ascending, and their values for all input rows.
    columns: Vec<usize>,
    expected: Matrix,
}

enum Kernel {
    Few(dense::Dense),
    Mid(dense_mid::DenseMid),
    Many(dense_many::DenseMany),
    Groups(dense_wgmma::DenseWgmma),
}

impl Kernel {
    fn load(kernels: &Kernels, family: &str, k: i64) -> Result<Self, KernelError> {
        Ok(match family {
            "dense_mid" => Self::Mid(dense_mid::DenseMid::load(kernels, dense_mid::Dims { k })?),
            "dense_many" => Self::Many(dense_many::DenseMany::load(kernels, dense_many::Dims { k })?),
            "dense_wgmma" => Self::Groups(dense_wgmma::DenseWgmma::load(kernels, dense_wgmma::Dims { k })?),
            _ => Self::Few(dense::Dense::load(kernels, dense::Dims { k })?),
        })
    }
}

struct Memory {
    scratch: DenseScratch,
    rows: usize,
    x: CudaSlice<bf16>,
    y: Output<bf16>,
    /// The copy of the weights that the next launch takes.
    copy: usize,
}

impl Dense {
    fn new(device: &Device, kernels: &Kernels, row: &Row, rows: usize, seed: u64) -> Result<Self, Failure> {
        let failed = |what: String| Failure::Wrong { unit: row.unit.clone(), rows, what };
        let (dim, k) = row.dim("K")?;
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let n = WIDTHS.iter().find(|(depth, _)| *depth == k).map_or(NARROW, |(_, width)| *width);
        let x = random.values(rows * k, 1.0);
        let weight = random.values(n * k, 4.0 / (k as f32).sqrt());
        let mut columns = random.distinct(COMPARED, n);
        (columns[0], columns[1]) = (0, n - 1);
        columns.sort_unstable();
        columns.dedup();
        let compared = Bf16Matrix::new(columns.len(), k, gather(&weight, k, &columns));
        let compared = compared.map_err(|error| failed(error.to_string()))?;
        let matrix = Matrix::from_vec(rows, k, x.iter().map(|value| value.to_f32()).collect());
        let matrix = matrix.map_err(|error| failed(error.to_string()))?;
        let copies = WORKING_SET.div_ceil(n * k * size_of::<bf16>()).clamp(1, 16);
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: Kernel::load(kernels, &row.family, dim)?,
            k,
            n,
            weights: (0..copies).map(|_| upload(&stream, &weight)).collect::<Result<_, _>>()?,
            expected: linear(&Pool::single(), matrix.view(), &compared),
            columns,
            x,
            stream,
        })
    }

    /// What f32 sums in another order may differ by: a few units in the last place of the sum of magnitudes, which is
    /// about the square root of K for these inputs.
    fn slack(&self) -> f32 {
        (self.k as f32).sqrt() / (1 << 20) as f32
    }
}

impl Subject for Dense {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows) = (&self.stream, order.len());
        let x = upload(stream, &gather(&self.x, self.k, order))?;
        let many = matches!(self.kernel, Kernel::Many(_));
        let scratch = DenseScratch::sized(stream, rows, self.n, many)?;
        Ok(Memory { scratch, rows, x, y: Output::poisoned(stream, rows, self.n)?, copy: 0 })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, shape) = (&self.stream, [memory.rows, self.n]);
        let x = TensorRef::new(stream, memory.x.as_view(), [memory.rows, self.k])?;
        let weights = &self.weights[memory.copy % self.weights.len()];
        let w = TensorRef::new(stream, weights.as_view(), [self.n, self.k])?;
        memory.copy += 1;
        let (choice, y) = (Choice::Forced(self.variant.as_str()), memory.y.tensor(stream, shape)?);
        let scratch = &mut memory.scratch;
        match &self.kernel {
            Kernel::Few(kernel) => {
                let (parts, arrived) = scratch.parts(stream, self.n)?;
                kernel.launch(stream, choice, dense::Args { x, w, y, parts, arrived }).map(drop)
            }
            Kernel::Mid(kernel) => {
                let (parts, arrived) = scratch.parts(stream, self.n)?;
                kernel.launch(stream, choice, dense_mid::Args { x, w, y, parts, arrived }).map(drop)
            }
            Kernel::Groups(kernel) => kernel.launch(stream, choice, dense_wgmma::Args { x, w, y }).map(drop),
            Kernel::Many(kernel) => {
                let none =
                    || KernelError::NotEligible { family: "dense_many", variant: "no scratch".to_owned() };
                let (partial, arrived) = scratch.runs(stream)?.ok_or_else(none)?;
                kernel.launch(stream, choice, dense_many::Args { x, w, partial, arrived, y }).map(drop)
            }
        }
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let (mut bound, slack) = (Bound::default(), self.slack());
        for (i, &input) in order.iter().enumerate() {
            let values: Vec<bf16> = y.values(i);
            if let Some(column) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!("element {column} of row {i} was not written"));
            }
            let compared: Vec<bf16> = self.columns.iter().map(|column| values[*column]).collect();
            bound.row(i, &compared, self.expected.row(input), |_| slack)?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        (rows + self.n) * self.k * size_of::<bf16>() + rows * self.n * size_of::<bf16>()
    }
}
