//! INT4 weights as one operand: packed words and their scales.

use cudarc::driver::CudaView;
use half::bf16;

use super::{KernelError, Stream, TensorRef};

/// Values that share a scale.
const GROUP: usize = 32;
/// Values in a word.
const PACKED: usize = 8;

/// Symmetric 4-bit integers of a logical shape of `RANK` axes, eight in a word, with one bf16 scale for each group of 32
/// along the last axis. Words and scales lie in the order that the kernel's template reads them in.
#[derive(Debug)]
pub struct Int4Ref<'a, const RANK: usize> {
    words: TensorRef<'a, u32, 1>,
    scales: TensorRef<'a, bf16, 1>,
    shape: [usize; RANK],
}

impl<'a, const RANK: usize> Int4Ref<'a, RANK> {
    /// `words` and `scales` as weights of `shape`, to be read by launches on `stream`.
    ///
    /// # Errors
    /// A last axis that is not whole groups, memory of another size, and as [`TensorRef::new`].
    pub fn new(
        stream: &Stream,
        words: CudaView<'a, u32>,
        scales: CudaView<'a, bf16>,
        shape: [usize; RANK],
    ) -> Result<Self, KernelError> {
        let [word_count, scale_count] = sizes(&shape)?;
        let words = TensorRef::new(stream, words, [word_count])?;
        Ok(Self { words, scales: TensorRef::new(stream, scales, [scale_count])?, shape })
    }

    /// The size of a logical axis; -1 if there is no such axis.
    pub fn dim(&self, axis: usize) -> i64 {
        super::tensor::dim(&self.shape, axis)
    }

    /// The packed values, eight a word.
    pub fn words(&self) -> &TensorRef<'a, u32, 1> {
        &self.words
    }

    /// One scale a group.
    pub fn scales(&self) -> &TensorRef<'a, bf16, 1> {
        &self.scales
    }
}

/// Words and scales of a logical shape.
fn sizes(shape: &[usize]) -> Result<[usize; 2], KernelError> {
    let bad = |what: &str| KernelError::BadTensor { shape: shape.to_vec(), what: what.to_owned() };
    let last = shape.last().copied().unwrap_or_default();
    if last == 0 || !last.is_multiple_of(GROUP) {
        return Err(bad("the last axis of INT4 weights must be whole groups of 32"));
    }
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    let count = count.ok_or_else(|| bad("the number of elements overflows"))?;
    Ok([count / PACKED, count / GROUP])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_scales_follow_from_the_logical_shape() {
        assert_eq!(sizes(&[384, 4096, 7168]), Ok([384 * 4096 * 896, 384 * 4096 * 224]));
        for shape in [&[4, 33][..], &[4, 0], &[], &[usize::MAX, 32]] {
            assert!(matches!(sizes(shape), Err(KernelError::BadTensor { .. })), "{shape:?}");
        }
    }
}
