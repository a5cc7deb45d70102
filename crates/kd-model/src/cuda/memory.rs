//! Device arrays of planned size, and the heads of them as operands.

use kd_kernels::{CudaSlice, KernelError, Stream, TensorMut, TensorRef};
use kd_tensor::Matrix;

use half::bf16;

/// An allocation of `len` zeros.
macro_rules! zeros {
    ($stream:expr, $len:expr) => {
        $stream
            .cuda()
            .alloc_zeros($len)
            .map_err(|error| kd_kernels::KernelError::driver("allocating device memory", error))
    };
}
pub(crate) use zeros;

/// The first elements of `memory` as an operand of `shape`.
pub(crate) fn head<'a, T, const RANK: usize>(
    stream: &Stream,
    memory: &'a CudaSlice<T>,
    shape: [usize; RANK],
) -> Result<TensorRef<'a, T, RANK>, KernelError> {
    part(stream, memory, 0, shape)
}

/// The elements of `memory` from `start` on as an operand of `shape`.
pub(crate) fn part<'a, T, const RANK: usize>(
    stream: &Stream,
    memory: &'a CudaSlice<T>,
    start: usize,
    shape: [usize; RANK],
) -> Result<TensorRef<'a, T, RANK>, KernelError> {
    let end = end(start, &shape, memory.len())?;
    TensorRef::new(stream, memory.slice(start..end), shape)
}

/// As [`head`], to be written.
pub(crate) fn head_mut<'a, T, const RANK: usize>(
    stream: &Stream,
    memory: &'a mut CudaSlice<T>,
    shape: [usize; RANK],
) -> Result<TensorMut<'a, T, RANK>, KernelError> {
    part_mut(stream, memory, 0, shape)
}

/// As [`part`], to be written.
pub(crate) fn part_mut<'a, T, const RANK: usize>(
    stream: &Stream,
    memory: &'a mut CudaSlice<T>,
    start: usize,
    shape: [usize; RANK],
) -> Result<TensorMut<'a, T, RANK>, KernelError> {
    let end = end(start, &shape, memory.len())?;
    TensorMut::new(stream, memory.slice_mut(start..end), shape)
}

fn end(start: usize, shape: &[usize], length: usize) -> Result<usize, KernelError> {
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    let end = count.and_then(|count| count.checked_add(start)).filter(|end| *end <= length);
    end.ok_or_else(|| KernelError::BadTensor {
        shape: shape.to_vec(),
        what: format!("planned memory of {length} elements has no room for it at {start}"),
    })
}

/// `rows` rows of `width` bf16 values on the host, widened, once everything on `stream` has finished.
pub(crate) fn download(
    stream: &Stream,
    memory: &CudaSlice<bf16>,
    start: usize,
    [rows, width]: [usize; 2],
) -> Result<Matrix, KernelError> {
    let end = end(start, &[rows, width], memory.len())?;
    let values = stream.cuda().clone_dtoh(&memory.slice(start..end)).map_err(copying)?;
    stream.synchronize()?;
    matrix(rows, width, values.iter().map(|value| value.to_f32()).collect())
}

/// As [`download`], of f32 values.
pub(crate) fn download_f32(
    stream: &Stream,
    memory: &CudaSlice<f32>,
    [rows, width]: [usize; 2],
) -> Result<Matrix, KernelError> {
    let end = end(0, &[rows, width], memory.len())?;
    let values = stream.cuda().clone_dtoh(&memory.slice(..end)).map_err(copying)?;
    stream.synchronize()?;
    matrix(rows, width, values)
}

fn matrix(rows: usize, width: usize, values: Vec<f32>) -> Result<Matrix, KernelError> {
    let wrong = |error: kd_tensor::ShapeError| KernelError::BadTensor {
        shape: vec![rows, width],
        what: error.to_string(),
    };
    Matrix::from_vec(rows, width, values).map_err(wrong)
}

fn copying(error: kd_kernels::DriverError) -> KernelError {
    KernelError::driver("copying from the device", error)
}
