//! The seam in front of a residual add: how the partial sums of tensor-parallel ranks meet.
//!
//! Each rank's projection gives a part `[M, H]` of a sum over ranks. An [`Exchange`] brings the parts together, and
//! `add_rms_norm` takes what it gives: all parts, which it adds in rank order, or one that was added on the way. Adding in
//! rank order gives every rank the same bits, and the same at every run; a library that adds on the way promises neither.

mod in_process;
mod nccl;

use cudarc::driver::{CudaSlice, CudaView};
use half::bf16;

pub use in_process::{InProcess, InProcessRanks};
pub use nccl::{Nccl, NcclId, Order};

use crate::{KernelError, Stream};

/// Brings partial sums of ranks together on a stream.
pub trait Exchange {
    /// Parts that [`meet`](Exchange::meet) gives: the `R` of `add_rms_norm`.
    fn parts(&self) -> usize;

    /// Enqueues the exchange of the first `elements` of `part` and gives the operand of `add_rms_norm`: `parts()` times as
    /// many, in rank order. Every rank calls this in the same order with the same number of elements.
    ///
    /// `room` is for the parts of other ranks, at least `parts()` times `elements`; a single part needs none.
    ///
    /// # Errors
    /// Too little room, ranks that disagree, a failed copy.
    fn meet<'a>(
        &self,
        stream: &Stream,
        part: &'a mut CudaSlice<bf16>,
        elements: usize,
        room: &'a mut CudaSlice<bf16>,
    ) -> Result<CudaView<'a, bf16>, KernelError>;
}

/// One rank: its part is the sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneRank;

impl Exchange for OneRank {
    fn parts(&self) -> usize {
        1
    }

    fn meet<'a>(
        &self,
        _: &Stream,
        part: &'a mut CudaSlice<bf16>,
        elements: usize,
        _: &'a mut CudaSlice<bf16>,
    ) -> Result<CudaView<'a, bf16>, KernelError> {
        present(part, elements)
    }
}

/// The first `elements` of a part.
fn present(part: &CudaSlice<bf16>, elements: usize) -> Result<CudaView<'_, bf16>, KernelError> {
    part.try_slice(..elements).ok_or_else(|| KernelError::Exchange {
        what: format!("a part of {} elements, of which {elements} are to be exchanged", part.len()),
    })
}

/// Elements of all parts, if `room` has as many.
fn needed(ranks: usize, part: usize, room: usize) -> Result<usize, KernelError> {
    let short = |needed: String| KernelError::Exchange {
        what: format!(
            "{ranks} parts of {part} elements need room for {needed}, but there is room for {room}"
        ),
    };
    let needed = ranks.checked_mul(part).ok_or_else(|| short("more than memory has".to_owned()))?;
    if needed <= room { Ok(needed) } else { Err(short(needed.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_checked_before_anything_is_copied() {
        assert_eq!(needed(4, 3, 12), Ok(12));
        let message = |result: Result<usize, KernelError>| result.expect_err("too small").to_string();
        assert!(message(needed(4, 3, 11)).contains("need room for 12, but there is room for 11"));
        assert!(message(needed(usize::MAX, 3, 11)).contains("more than memory has"));
    }
}
