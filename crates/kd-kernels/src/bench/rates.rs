//! What a device can do at most.

use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use half::bf16;

use super::samples;
use crate::families::{mma_rate, read_rate};
use crate::selftest::{Random, units, upload};
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};

/// What the device can do at most, all of it measured: reads far past L2, `mma.sync` on registers alone, and launches that do
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes a second that are read from memory.
    pub bytes: f64,
    /// Operations a second of bf16 products with f32 sums; a product and its sum are two.
    pub operations: f64,
    /// Microseconds of a launch in a graph of many that wait for each other, each of one block that does nothing.
    pub launch: f64,
}

/// Bytes of one pass of reads: several times any L2.
const READ: usize = 512 << 20;
/// Steps of the products: long enough that the launch does not count.
const STEPS: i32 = 4096;
/// Launches of the graph that times them.
const LAUNCHES: usize = 1000;
/// Different values of an operand, which repeat: zeros would draw less power, and some devices are limited by it.
const DISTINCT: usize = 1 << 20;
/// Replays of each graph, of which the fastest counts.
const REPLAYS: usize = 5;

struct Operands<K, T> {
    kernel: K,
    /// `[rows, width]`.
    x: CudaSlice<bf16>,
    /// `[rows]`.
    y: CudaSlice<T>,
    rows: usize,
    width: usize,
}

impl Rates {
    /// Measures them.
    ///
    /// # Errors
    /// A bundle without the kernels that do nothing else, no memory, a failed launch.
    pub fn measure(device: &Device, kernels: &Kernels) -> Result<Self, KernelError> {
        let stream = device.stream()?;
        let width = |family: &str| {
            let missing = || KernelError::NoDimension { unit: family.to_owned(), name: "H".to_owned() };
            units(kernels, family).next().ok_or_else(missing)?.dim("H")
        };
        let (h, width_of_reads) = width("read_rate")?;
        let kernel = read_rate::ReadRate::load(kernels, read_rate::Dims { h })?;
        let read = Operands::new(&stream, kernel, READ / width_of_reads / size_of::<bf16>(), width_of_reads)?;
        let bytes = read.rows * read.width * size_of::<bf16>();
        let read = stream.capture(read, |stream, own: &mut Operands<read_rate::ReadRate, u32>| {
            let x = TensorRef::new(stream, own.x.as_view(), [own.rows, own.width])?;
            let y = TensorMut::new(stream, own.y.as_view_mut(), [own.rows])?;
            own.kernel.launch(stream, Choice::Auto, read_rate::Args { x, y }).map(drop)
        })?;
        let (h, width) = width("mma_rate")?;
        let products = |rows| {
            let kernel = mma_rate::MmaRate::load(kernels, mma_rate::Dims { h })?;
            Operands::<_, f32>::new(&stream, kernel, rows, width)
        };
        let full = products(2 * device.sms() as usize)?;
        // Eight warps a block, eight products of 16 x 8 x 16 a step.
        let operations = full.rows as f64 * 8.0 * f64::from(STEPS) * 8.0 * 4096.0;
        let full = stream.capture(full, |stream, own| multiply(stream, own, STEPS))?;
        let empty = stream
            .capture(products(1)?, |stream, own| (0..LAUNCHES).try_for_each(|_| multiply(stream, own, 0)))?;
        let best = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min) * 1e-6;
        Ok(Self {
            bytes: bytes as f64 / best(samples(&read, REPLAYS)?),
            operations: operations / best(samples(&full, REPLAYS)?),
            launch: best(samples(&empty, REPLAYS)?) * 1e6 / LAUNCHES as f64,
        })
    }

    /// The least microseconds for so many bytes and operations, and which of the two sets them.
    pub fn floor_micros(&self, bytes: f64, operations: f64) -> (f64, &'static str) {
        let (read, mma) = (bytes / self.bytes * 1e6, operations / self.operations * 1e6);
        if read > mma { (read, "bytes") } else { (mma, "mma") }
    }
}

/// `mma_rate` of so many steps.
fn multiply(
    stream: &Stream,
    own: &mut Operands<mma_rate::MmaRate, f32>,
    steps: i32,
) -> Result<(), KernelError> {
    let x = TensorRef::new(stream, own.x.as_view(), [own.rows, own.width])?;
    let y = TensorMut::new(stream, own.y.as_view_mut(), [own.rows])?;
    own.kernel.launch(stream, Choice::Auto, mma_rate::Args { x, steps, y }).map(drop)
}

impl<K, T: DeviceRepr + ValidAsZeroBits> Operands<K, T> {
    fn new(stream: &Stream, kernel: K, rows: usize, width: usize) -> Result<Self, KernelError> {
        let failed = |error| KernelError::driver("memory of a rate", error);
        let mut x = stream.cuda().alloc_zeros(rows * width).map_err(failed)?;
        let values = upload(stream, &Random::new(1).values(DISTINCT.min(rows * width), 1.0))?;
        for start in (0..rows * width).step_by(values.len()) {
            let count = values.len().min(rows * width - start);
            let mut part = x.slice_mut(start..start + count);
            stream.cuda().memcpy_dtod(&values.slice(..count), &mut part).map_err(failed)?;
        }
        Ok(Self { kernel, x, y: stream.cuda().alloc_zeros(rows).map_err(failed)?, rows, width })
    }
}

#[cfg(test)]
mod tests {
    use super::Rates;

    #[test]
    fn the_larger_of_both_times_is_the_floor() {
        let rates = Rates { bytes: 4e12, operations: 600e12, launch: 1.0 };
        assert_eq!(rates.floor_micros(4e6, 1.0), (1.0, "bytes"));
        assert_eq!(rates.floor_micros(4e6, 1.2e9), (2.0, "mma"));
    }
}
