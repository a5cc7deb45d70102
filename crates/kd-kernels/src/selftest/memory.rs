//! Device memory of self-tests: inputs by row, outputs poisoned and guarded.

use bytemuck::Pod;
use cudarc::driver::{CudaSlice, DeviceRepr};

use super::driver;
use crate::{KernelError, Stream, TensorMut};

/// Fills outputs before a launch. All ones is a NaN in every float type and no size or index: what a kernel leaves
/// unwritten shows.
pub(super) const POISON: u8 = 0xff;

/// An output as it was found after a launch.
#[derive(Clone, Debug)]
pub struct Written {
    /// Operand.
    pub name: &'static str,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// All rows, then whatever must still be poison.
    pub bytes: Vec<u8>,
}

impl Written {
    /// The bits of row `row`; nothing if it is missing.
    pub fn row(&self, row: usize) -> &[u8] {
        self.bytes.get(row * self.row_bytes..(row + 1) * self.row_bytes).unwrap_or_default()
    }

    /// Row `row` as values.
    pub fn values<T: Pod>(&self, row: usize) -> Vec<T> {
        self.row(row).chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

impl Written {
    /// The rows `slots`, in that order, then all others, which must still be poison. A negative slot is a row that was not to
    /// be written: poison stands for it.
    pub fn scattered(&self, slots: &[i32]) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes.len());
        let mut named = vec![false; self.bytes.len() / self.row_bytes.max(1)];
        for slot in slots {
            match usize::try_from(*slot) {
                Ok(slot) => {
                    bytes.extend_from_slice(self.row(slot));
                    named.iter_mut().skip(slot).take(1).for_each(|named| *named = true);
                }
                Err(_) => bytes.extend(std::iter::repeat_n(POISON, self.row_bytes)),
            }
        }
        let others = (0..named.len()).filter(|row| !named[*row]);
        others.for_each(|row| bytes.extend_from_slice(self.row(row)));
        Self { bytes, ..*self }
    }
}

/// A poisoned output of `rows` rows and one guard row behind them.
#[derive(Debug)]
pub struct Output<T> {
    slice: CudaSlice<T>,
    rows: usize,
    width: usize,
}

impl<T: Pod + DeviceRepr> Output<T> {
    /// `rows` rows of `width` elements, poisoned.
    ///
    /// # Errors
    /// A failed allocation or copy.
    pub fn poisoned(stream: &Stream, rows: usize, width: usize) -> Result<Self, KernelError> {
        Self::holding(stream, &[], rows, width)
    }

    /// As [`Output::poisoned`], but the first elements are `values`: an operand that is read and written.
    ///
    /// # Errors
    /// A failed allocation or copy.
    pub fn holding(stream: &Stream, values: &[T], rows: usize, width: usize) -> Result<Self, KernelError> {
        let mut filled = vec![T::zeroed(); (rows + 1) * width];
        bytemuck::cast_slice_mut(&mut filled).fill(POISON);
        filled.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        Ok(Self { slice: upload(stream, &filled)?, rows, width })
    }

    /// The rows without the guard, as an operand of `shape`.
    ///
    /// # Errors
    /// A shape of another size.
    pub fn tensor<const RANK: usize>(
        &mut self,
        stream: &Stream,
        shape: [usize; RANK],
    ) -> Result<TensorMut<'_, T, RANK>, KernelError> {
        self.first(stream, self.rows, shape)
    }

    /// The first `rows` of them, as an operand of `shape`.
    ///
    /// # Errors
    /// More rows than there are, a shape of another size.
    pub fn first<const RANK: usize>(
        &mut self,
        stream: &Stream,
        rows: usize,
        shape: [usize; RANK],
    ) -> Result<TensorMut<'_, T, RANK>, KernelError> {
        TensorMut::new(stream, self.slice.slice_mut(..rows.min(self.rows) * self.width), shape)
    }

    /// The memory, guard row included.
    pub fn slice(&self) -> &CudaSlice<T> {
        &self.slice
    }

    /// Everything, row by row, the guard row last.
    ///
    /// # Errors
    /// A failed copy, or the failure of a launch before it.
    pub fn written(&self, stream: &Stream, name: &'static str) -> Result<Written, KernelError> {
        let values = stream.cuda().clone_dtoh(&self.slice).map_err(driver)?;
        stream.synchronize()?;
        let bytes = bytemuck::cast_slice(&values).to_vec();
        Ok(Written { name, row_bytes: self.width * size_of::<T>(), bytes })
    }
}

/// `values` in device memory.
///
/// # Errors
/// A failed allocation or copy.
pub fn upload<T: DeviceRepr>(stream: &Stream, values: &[T]) -> Result<CudaSlice<T>, KernelError> {
    stream.cuda().clone_htod(values).map_err(driver)
}

/// The rows `order` of `values`, each `width` elements.
pub fn gather<T: Copy>(values: &[T], width: usize, order: &[usize]) -> Vec<T> {
    order.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_rows_come_first_and_the_untouched_rest_after_them() {
        let cache = Written { name: "cache", row_bytes: 2, bytes: vec![1, 1, 2, 2, 3, 3, POISON, POISON] };
        assert_eq!(cache.scattered(&[2, -1, 0]).bytes, [3, 3, POISON, POISON, 1, 1, 2, 2, POISON, POISON]);
        assert_eq!(cache.scattered(&[0, 1, 2]).row(1), [2, 2]);
    }
}
