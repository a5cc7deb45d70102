//! INT4 weights as one operand: codes and scales in blocks of one array.

use cudarc::driver::CudaView;

use super::{KernelError, Stream, TensorRef};

/// Values that share a scale.
const GROUP: usize = 32;
/// Bits of a group: codes of 4 and a scale of 16.
const GROUP_BITS: usize = GROUP * 4 + 16;

/// Symmetric 4-bit integers of a logical shape of `RANK` axes with one bf16 scale for each group of 32 along the last axis, in
/// the order that the kernel's template reads them in.
#[derive(Debug)]
pub struct Int4Ref<'a, const RANK: usize> {
    blocks: TensorRef<'a, u32, 1>,
    shape: [usize; RANK],
}

impl<'a, const RANK: usize> Int4Ref<'a, RANK> {
    /// `blocks` as weights of `shape`, to be read by launches on `stream`.
    ///
    /// # Errors
    /// A shape that is not whole groups and words, memory of another size, and as [`TensorRef::new`].
    pub fn new(
        stream: &Stream,
        blocks: CudaView<'a, u32>,
        shape: [usize; RANK],
    ) -> Result<Self, KernelError> {
        let words = words(&shape)?;
        Ok(Self { blocks: TensorRef::new(stream, blocks, [words])?, shape })
    }

    /// The size of a logical axis; -1 if there is no such axis.
    pub fn dim(&self, axis: usize) -> i64 {
        super::tensor::dim(&self.shape, axis)
    }

    /// Codes and scales.
    pub fn blocks(&self) -> &TensorRef<'a, u32, 1> {
        &self.blocks
    }
}

/// Words of a logical shape.
fn words(shape: &[usize]) -> Result<usize, KernelError> {
    let bad = |what: &str| KernelError::BadTensor { shape: shape.to_vec(), what: what.to_owned() };
    let last = shape.last().copied().unwrap_or_default();
    if last == 0 || !last.is_multiple_of(GROUP) {
        return Err(bad("the last axis of INT4 weights must be whole groups of 32"));
    }
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    let bits = count.and_then(|count| (count / GROUP).checked_mul(GROUP_BITS));
    let bits = bits.ok_or_else(|| bad("the number of bits overflows"))?;
    if bits.is_multiple_of(32) { Ok(bits / 32) } else { Err(bad("INT4 weights must fill whole words")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_from_the_logical_shape() {
        assert_eq!(words(&[384, 4096, 7168]), Ok(384 * 4096 * (896 + 112)));
        for shape in [&[4, 33][..], &[4, 0], &[], &[1, 32], &[usize::MAX, 32]] {
            assert!(matches!(words(shape), Err(KernelError::BadTensor { .. })), "{shape:?}");
        }
    }
}
