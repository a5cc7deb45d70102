//! From mapped host weights to device memory, through one staging buffer.

use half::bf16;
use kd_kernels::{CudaSlice, KernelError, Staging, Stream, TensorRef};
use kd_tensor::Bf16Matrix;

use super::memory::{head, zeros};

/// Bytes of the staging buffer: two halves of 8 MiB.
const STAGING_BYTES: usize = 16 << 20;

/// A bf16 matrix in device memory, row-major.
#[derive(Debug)]
pub struct DeviceMatrix {
    pub(crate) data: CudaSlice<bf16>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Copies weights to a device.
#[derive(Debug)]
pub struct Uploader<'s> {
    stream: &'s Stream,
    staging: Staging,
}

impl DeviceMatrix {
    /// Room for `rows` × `cols` values, all zero.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn zeros(stream: &Stream, rows: usize, cols: usize) -> Result<Self, KernelError> {
        Ok(Self { data: zeros!(stream, rows * cols)?, rows, cols })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// The matrix as an operand.
    ///
    /// # Errors
    /// Memory of another device than the stream's.
    pub fn tensor(&self, stream: &Stream) -> Result<TensorRef<'_, bf16, 2>, KernelError> {
        head(stream, &self.data, self.shape())
    }
}

impl<'s> Uploader<'s> {
    /// An uploader with its staging buffer.
    ///
    /// # Errors
    /// A system that cannot lock as much memory.
    pub fn new(stream: &'s Stream) -> Result<Self, KernelError> {
        Ok(Self { stream, staging: Staging::new(stream, STAGING_BYTES)? })
    }

    /// `parts`, one below the other, as one matrix; they have the same number of columns.
    ///
    /// # Errors
    /// Other numbers of columns, a failed allocation or copy.
    pub fn stack(&mut self, parts: &[&Bf16Matrix]) -> Result<DeviceMatrix, KernelError> {
        let rows = parts.iter().map(|part| part.rows()).sum();
        let cols = parts.first().map_or(0, |part| part.cols());
        let mut matrix = DeviceMatrix::zeros(self.stream, rows, cols)?;
        let all = parts.iter().flat_map(|part| (0..part.rows()).map(|row| part.row(row)));
        self.staging.copy(self.stream, all, matrix.data.slice_mut(..))?;
        Ok(matrix)
    }

    /// One matrix.
    ///
    /// # Errors
    /// As [`Uploader::stack`].
    pub fn matrix(&mut self, matrix: &Bf16Matrix) -> Result<DeviceMatrix, KernelError> {
        self.stack(&[matrix])
    }

    /// Each of `parts` transposed, one below the other: `[parts · cols, rows]`.
    ///
    /// # Errors
    /// As [`Uploader::stack`].
    pub fn transposed(&mut self, parts: &[Bf16Matrix]) -> Result<DeviceMatrix, KernelError> {
        let (rows, cols) = parts.first().map_or((0, 0), |part| (part.rows(), part.cols()));
        let mut matrix = DeviceMatrix::zeros(self.stream, parts.len() * cols, rows)?;
        let column = |part: &Bf16Matrix, c: usize| (0..part.rows()).map(|row| part.row(row)[c]).collect();
        let columns: Vec<Vec<bf16>> =
            parts.iter().flat_map(|part| (0..cols).map(|c| column(part, c))).collect();
        self.staging.copy(self.stream, columns.iter().map(Vec::as_slice), matrix.data.slice_mut(..))?;
        Ok(matrix)
    }

    /// Norm gains, which checkpoints have in bf16.
    ///
    /// # Errors
    /// A failed allocation or copy.
    pub fn gains(&mut self, gains: &[f32]) -> Result<CudaSlice<bf16>, KernelError> {
        let values: Vec<bf16> = gains.iter().map(|gain| bf16::from_f32(*gain)).collect();
        let mut to = zeros!(self.stream, values.len())?;
        self.staging.copy(self.stream, [values.as_slice()], to.slice_mut(..))?;
        Ok(to)
    }

    /// f32 values as they are.
    ///
    /// # Errors
    /// A failed allocation or copy.
    pub fn values(&mut self, values: &[f32]) -> Result<CudaSlice<f32>, KernelError> {
        let mut to = zeros!(self.stream, values.len())?;
        self.staging.copy(self.stream, [values], to.slice_mut(..))?;
        Ok(to)
    }

    /// The stream that copies are on.
    pub fn stream(&self) -> &'s Stream {
        self.stream
    }
}
