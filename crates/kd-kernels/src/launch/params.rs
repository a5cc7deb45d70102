//! Kernel parameters, laid out for the driver.

use std::ffi::c_void;

use half::bf16;

use super::{KernelError, LoadedUnit, TensorMut, TensorRef, boxes};

/// A value that can be a kernel parameter of at most 8 bytes.
pub(crate) trait Param {
    /// The value in the first bytes of a little-endian cell, where the driver copies it from.
    fn cell(&self) -> u64;
}

impl<T, const RANK: usize> Param for TensorRef<'_, T, RANK> {
    fn cell(&self) -> u64 {
        self.address
    }
}

impl<T, const RANK: usize> Param for TensorMut<'_, T, RANK> {
    fn cell(&self) -> u64 {
        self.address
    }
}

impl Param for f32 {
    fn cell(&self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Param for i32 {
    fn cell(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.to_le_bytes()))
    }
}

impl Param for u32 {
    fn cell(&self) -> u64 {
        u64::from(*self)
    }
}

impl Param for u64 {
    fn cell(&self) -> u64 {
        *self
    }
}

/// The parameters of one launch, in the order of the declaration.
#[derive(Debug, Default)]
pub(crate) struct Params {
    cells: Vec<u64>,
    /// The first cell of each parameter.
    starts: Vec<usize>,
}

impl Params {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn push(&mut self, value: &impl Param) {
        self.starts.push(self.cells.len());
        self.cells.push(value.cell());
    }

    /// A matrix that the kernel copies in boxes; `constants` of the unit are a box's rows and columns.
    pub(crate) fn boxes(
        &mut self,
        unit: &LoadedUnit,
        matrix: &TensorRef<'_, bf16, 2>,
        constants: [&str; 2],
    ) -> Result<(), KernelError> {
        let map = boxes::tensor_map(matrix, constants.map(|name| unit.constant(name).unwrap_or(0)))?;
        self.starts.push(self.cells.len());
        self.cells.extend(map);
        Ok(())
    }

    /// A run-time symbol, which kernels take as `int`.
    pub(crate) fn int(&mut self, value: i64) -> Result<(), KernelError> {
        let limit = i64::from(i32::MAX);
        let fits = i32::try_from(value).ok().filter(|value| *value >= 0);
        let error =
            || KernelError::Limit { unit: "launch".to_owned(), what: "a run-time size", value, limit };
        self.push(&fits.ok_or_else(error)?);
        Ok(())
    }

    /// Pointers to the cells, valid while `self` is. The driver copies as many bytes from each as the kernel's parameter
    /// has.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        // A narrower value must lie at the start of its cell.
        const { assert!(cfg!(target_endian = "little")) }
        let first = |start: &usize| std::ptr::from_ref(&self.cells[*start]).cast_mut().cast();
        self.starts.iter().map(first).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_sizes_must_fit_an_int() {
        let mut params = Params::new();
        assert!(params.int(i64::from(i32::MAX)).is_ok());
        assert!(params.int(i64::from(i32::MAX) + 1).is_err());
        assert!(params.int(-1).is_err());
        assert_eq!(params.pointers().len(), 1);
    }
}
