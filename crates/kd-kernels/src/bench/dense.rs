//! `dense` at the shapes of a model.

use cudarc::driver::CudaSlice;
use half::bf16;

use super::cublas::Cublas;
use super::head::Head;
use super::{Rates, median, samples};
use crate::selftest::{Random, upload};
use crate::{DenseProduct, DenseScratch, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};

/// Weights of this many bytes in all are read in turn, so that none is left in L2 when its turn comes again.
pub(super) const WORKING_SET: usize = 256 << 20;
/// Replays of each graph, after one to warm up.
pub(super) const REPLAYS: usize = 5;
/// Launches of a graph: enough to take this long by the floor, and within these limits.
const MICROS: f64 = 4_000.0;
const LAUNCHES: (usize, usize) = (8, 100);

/// Columns that there is room for sums of segments for, as in the engine: the hidden width of K2.6.
const HIDDEN: usize = 7168;

/// A weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseShape {
    /// Input features.
    pub k: usize,
    /// Output features.
    pub n: usize,
}

const fn shape(k: usize, n: usize) -> DenseShape {
    DenseShape { k, n }
}

/// K2.6 on one of eight ranks: queries and latents, query expansion, output, vocabulary.
pub const K26_TP8: [DenseShape; 4] =
    [shape(7168, 2112), shape(1536, 1536), shape(1024, 7168), shape(7168, 20_480)];
/// K2.6 on one rank.
pub const K26_TP1: [DenseShape; 4] =
    [shape(7168, 1536), shape(8192, 7168), shape(1536, 12_288), shape(7168, 163_840)];
/// Widths that are a vocabulary.
const VOCABULARIES: [usize; 2] = [20_480, 163_840];

/// One shape at one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseLine {
    /// The weights.
    pub shape: DenseShape,
    /// Rows.
    pub rows: usize,
    /// The variant that was launched.
    pub variant: &'static str,
    /// Microseconds of a launch, a value for each replay of a graph of many.
    pub samples: Vec<f64>,
    /// The same of the same product by cuBLASLt, where the library is.
    pub cublas: Option<Vec<f64>>,
    /// Of a vocabulary, the same of `lm_head` and `lm_head_top_k` together.
    pub head: Option<Vec<f64>>,
}

impl DenseLine {
    /// Median microseconds of a launch.
    pub fn micros(&self) -> f64 {
        median(&self.samples)
    }

    /// Bytes that the product must move: weights, rows and results once.
    pub fn bytes(&self) -> f64 {
        let (m, n, k) = (self.rows as f64, self.shape.n as f64, self.shape.k as f64);
        2.0 * (n * k + m * (n + k))
    }

    /// Operations of the product.
    pub fn operations(&self) -> f64 {
        2.0 * self.rows as f64 * self.shape.n as f64 * self.shape.k as f64
    }

    /// The least time that the product can take, in microseconds, and what sets it.
    pub fn floor_micros(&self, rates: &Rates) -> (f64, &'static str) {
        rates.floor_micros(self.bytes(), self.operations())
    }
}

struct Operands {
    shape: DenseShape,
    rows: usize,
    launches: usize,
    kernel: DenseProduct,
    scratch: DenseScratch,
    cublas: Option<Cublas>,
    head: Option<Head>,
    x: CudaSlice<bf16>,
    weights: Vec<CudaSlice<bf16>>,
    y: CudaSlice<bf16>,
    /// The variant of the last launch.
    variant: &'static str,
}

/// Measures every shape at every number of rows.
///
/// # Errors
/// A shape without a kernel, memory that does not suffice, a launch that fails.
pub fn dense(
    device: &Device,
    kernels: &Kernels,
    shapes: &[DenseShape],
    rows: &[usize],
    rates: &Rates,
) -> Result<Vec<DenseLine>, KernelError> {
    let (stream, most) = (device.stream()?, rows.iter().copied().max().unwrap_or_default());
    let mut lines = Vec::new();
    for &shape in shapes {
        let mut operands = Operands::new(&stream, kernels, shape, most)?;
        for &rows in rows {
            operands.rows = rows;
            lines.push(operands.measure(&stream, rates)?);
        }
    }
    Ok(lines)
}

impl Operands {
    fn new(stream: &Stream, kernels: &Kernels, shape: DenseShape, rows: usize) -> Result<Self, KernelError> {
        let DenseShape { k, n } = shape;
        let mut random = Random::new(1);
        // A tenth of the matrix is random and the rest repeats it: what the values are does not matter to the time.
        let part = random.values(k * n.div_ceil(10), 1.0);
        let weight: Vec<bf16> = part.iter().copied().cycle().take(n * k).collect();
        let copies = (WORKING_SET / (n * k * size_of::<bf16>()) + 1).min(LAUNCHES.1);
        let head = VOCABULARIES.contains(&n).then(|| Head::new(stream, kernels, k, n, rows)).transpose()?;
        let zeros = stream.cuda().alloc_zeros(rows * n);
        Ok(Self {
            shape,
            rows,
            launches: 0,
            kernel: DenseProduct::load(kernels, k)?,
            scratch: DenseScratch::new(stream, rows, HIDDEN)?,
            cublas: Cublas::open(stream)?,
            head,
            x: upload(stream, &random.values(rows * k, 1.0))?,
            weights: (0..copies).map(|_| upload(stream, &weight)).collect::<Result<_, _>>()?,
            y: zeros.map_err(|error| KernelError::driver("allocating the result", error))?,
            variant: "",
        })
    }

    fn measure(&mut self, stream: &Stream, rates: &Rates) -> Result<DenseLine, KernelError> {
        let (shape, rows) = (self.shape, self.rows);
        let mut line = DenseLine { shape, rows, variant: "", samples: Vec::new(), cublas: None, head: None };
        let wanted = (MICROS / line.floor_micros(rates).0).max(self.weights.len() as f64);
        self.launches = (wanted as usize).clamp(LAUNCHES.0, LAUNCHES.1);
        line.samples = self.time(stream, |stream, own| own.ours(stream))?;
        line.variant = self.variant;
        if self.cublas.is_some() {
            line.cublas = Some(self.time(stream, |_, own| own.theirs())?);
        }
        if self.head.is_some() {
            line.head = Some(self.time(stream, |stream, own| own.best_tokens(stream))?);
        }
        Ok(line)
    }

    /// Microseconds of one of the launches that `record` makes.
    fn time(
        &mut self,
        stream: &Stream,
        record: fn(&Stream, &mut &mut Self) -> Result<(), KernelError>,
    ) -> Result<Vec<f64>, KernelError> {
        let launches = self.launches as f64;
        let times = samples(&stream.capture(self, record)?, REPLAYS)?;
        Ok(times.into_iter().map(|time| time / launches).collect())
    }

    fn ours(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let (rows, DenseShape { k, n }) = (self.rows, self.shape);
        for launch in 0..self.launches {
            let weights = &self.weights[launch % self.weights.len()];
            let x = TensorRef::new(stream, self.x.slice(..rows * k), [rows, k])?;
            let w = TensorRef::new(stream, weights.as_view(), [n, k])?;
            let y = TensorMut::new(stream, self.y.slice_mut(..rows * n), [rows, n])?;
            self.variant = self.kernel.launch(stream, &mut self.scratch, x, w, y)?.variant;
        }
        Ok(())
    }

    fn best_tokens(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let (rows, DenseShape { k, n }) = (self.rows, self.shape);
        let Some(head) = &mut self.head else { return Ok(()) };
        for launch in 0..self.launches {
            let weights = &self.weights[launch % self.weights.len()];
            let x = TensorRef::new(stream, self.x.slice(..rows * k), [rows, k])?;
            head.launch(stream, x, TensorRef::new(stream, weights.as_view(), [n, k])?)?;
        }
        Ok(())
    }

    fn theirs(&mut self) -> Result<(), KernelError> {
        let (rows, DenseShape { k, n }) = (self.rows, self.shape);
        let Some(cublas) = &self.cublas else { return Ok(()) };
        for launch in 0..self.launches {
            let weights = &self.weights[launch % self.weights.len()];
            cublas.product(&self.x, weights, &mut self.y, [rows, n, k])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_bytes_for_few_rows_and_operations_for_many() {
        let rates = Rates { bytes: 4.6e12, operations: 644e12, launch: 1.0 };
        let line = |rows| DenseLine {
            shape: shape(7168, 2112),
            rows,
            variant: "",
            samples: Vec::new(),
            cublas: None,
            head: None,
        };
        let ((few, bytes), (many, mma)) = (line(1).floor_micros(&rates), line(528).floor_micros(&rates));
        assert!((few - 6.586).abs() < 0.01 && bytes == "bytes", "{few} {bytes}");
        assert!((many - 24.82).abs() < 0.01 && mma == "mma", "{many} {mma}");
    }
}
