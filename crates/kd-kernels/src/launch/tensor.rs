//! Device arrays with a shape: the operands of launchers.

use std::marker::PhantomData;

use cudarc::driver::{CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice};

use super::{KernelError, Stream};

/// Templates may read 16 bytes at a time from the start of any operand.
const ALIGN: u64 = 16;

/// A read operand: elements of type `T` in device memory, row-major, `RANK` axes.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a, T, const RANK: usize> {
    pub(super) address: u64,
    shape: [usize; RANK],
    view: PhantomData<&'a T>,
}

/// A written operand. It borrows its memory alone, so a launch cannot write what it also reads.
#[derive(Debug)]
pub struct TensorMut<'a, T, const RANK: usize> {
    pub(super) address: u64,
    shape: [usize; RANK],
    view: PhantomData<&'a mut T>,
}

impl<'a, T, const RANK: usize> TensorRef<'a, T, RANK> {
    /// `view` as a tensor of `shape`, to be read by launches on `stream`.
    ///
    /// # Errors
    /// A shape that does not have `view.len()` elements, memory of another device, an address that is not a multiple of
    /// 16.
    pub fn new(stream: &Stream, view: CudaView<'a, T>, shape: [usize; RANK]) -> Result<Self, KernelError> {
        let same_context = view.stream().context() == stream.cuda().context();
        // Nothing is recorded: event tracking is off in every context that this crate opens.
        let (address, _) = view.device_ptr(stream.cuda());
        check(&shape, view.len(), same_context, address)?;
        Ok(Self { address, shape, view: PhantomData })
    }

    /// The size of each axis, outermost first.
    pub fn shape(&self) -> [usize; RANK] {
        self.shape
    }

    /// The size of an axis.
    pub(crate) fn dim(&self, axis: usize) -> i64 {
        dim(&self.shape, axis)
    }
}

impl<'a, T> TensorRef<'a, T, 3> {
    /// The same memory as a matrix whose rows are all that an index of the outermost axis has.
    pub fn as_matrix(self) -> TensorRef<'a, T, 2> {
        let [rows, middle, inner] = self.shape;
        TensorRef { address: self.address, shape: [rows, middle * inner], view: PhantomData }
    }
}

impl<'a, T, const RANK: usize> TensorMut<'a, T, RANK> {
    /// `view` as a tensor of `shape`, to be written by launches on `stream`.
    ///
    /// # Errors
    /// As [`TensorRef::new`].
    pub fn new(
        stream: &Stream,
        mut view: CudaViewMut<'a, T>,
        shape: [usize; RANK],
    ) -> Result<Self, KernelError> {
        let same_context = view.stream().context() == stream.cuda().context();
        let length = view.len();
        let (address, _) = view.device_ptr_mut(stream.cuda());
        check(&shape, length, same_context, address)?;
        Ok(Self { address, shape, view: PhantomData })
    }

    /// No memory, for an operand that a launch may do without: the first axis of `shape` becomes 0.
    pub fn none(mut shape: [usize; RANK]) -> Self {
        if let Some(first) = shape.first_mut() {
            *first = 0;
        }
        Self { address: 0, shape, view: PhantomData }
    }

    /// The same operand for one of several launches.
    pub fn reborrow(&mut self) -> TensorMut<'_, T, RANK> {
        TensorMut { address: self.address, shape: self.shape, view: PhantomData }
    }

    /// The size of an axis.
    pub(crate) fn dim(&self, axis: usize) -> i64 {
        dim(&self.shape, axis)
    }
}

pub(super) fn dim(shape: &[usize], axis: usize) -> i64 {
    shape.get(axis).and_then(|size| i64::try_from(*size).ok()).unwrap_or(-1)
}

fn check(shape: &[usize], length: usize, same_context: bool, address: u64) -> Result<(), KernelError> {
    let bad = |what: String| Err(KernelError::BadTensor { shape: shape.to_vec(), what });
    match shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size)) {
        Some(count) if count == length => {}
        Some(count) => return bad(format!("{count} elements, but the memory holds {length}")),
        None => return bad("the number of elements overflows".to_owned()),
    }
    if !same_context {
        return bad("its memory belongs to another device than the stream".to_owned());
    }
    if !address.is_multiple_of(ALIGN) {
        return bad(format!("address {address:#x} is not a multiple of {ALIGN}; slice at whole rows"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_devices_and_alignment_are_checked() {
        assert_eq!(check(&[3, 4], 12, true, 0x100), Ok(()));
        assert_eq!(check(&[0, 4], 0, true, 0), Ok(()));
        let message = |result: Result<(), KernelError>| result.expect_err("bad").to_string();
        assert!(message(check(&[3, 4], 13, true, 0)).contains("12 elements, but the memory holds 13"));
        assert!(message(check(&[usize::MAX, 2], 2, true, 0)).contains("overflows"));
        assert!(message(check(&[4], 4, false, 0)).contains("another device"));
        assert!(message(check(&[4], 4, true, 0x108)).contains("0x108"));
    }
}
