//! Taps of committed tokens that the drafter has not read, on the device.

use half::bf16;
use kd_kernels::{CudaSlice, CudaView, KernelError, Stream};
use kd_model::cuda::Committed;

/// Tokens of rounds in which no stream drafted. They cost the drafter nothing until one does: then it reads all streams' in one
/// pass. A context row depends on its own taps and position alone, so it does not matter when it is read.
#[derive(Debug)]
pub(in crate::cuda) struct Unread {
    /// `[limit, width]`
    taps: CudaSlice<bf16>,
    width: usize,
    rows: Rows,
}

/// Whose they are, in the order of the taps.
#[derive(Debug)]
struct Rows {
    limit: usize,
    /// `None` where nothing is to be read.
    tokens: Vec<Option<(usize, Committed)>>,
}

impl Unread {
    /// Room for `limit` tokens with taps of `width` values.
    pub(super) fn new(stream: &Stream, width: usize, limit: usize) -> Result<Self, KernelError> {
        let taps = stream.cuda().alloc_zeros(width * limit);
        let taps = taps.map_err(|error| KernelError::driver("allocating taps", error))?;
        Ok(Self { taps, width, rows: Rows { limit, tokens: Vec::new() } })
    }

    /// Bytes on the device of [`Unread::new`].
    pub(in crate::cuda) fn bytes(width: usize, limit: usize) -> usize {
        width.saturating_mul(limit).saturating_mul(size_of::<bf16>())
    }

    /// Whether `count` more tokens fit.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.rows.tokens.len() + count <= self.rows.limit
    }

    /// Appends tokens, each with the slot of its stream, and enqueues a copy of their taps, the first of `taps`.
    pub(super) fn push(
        &mut self,
        stream: &Stream,
        taps: &CudaView<'_, bf16>,
        tokens: impl Iterator<Item = (usize, Option<Committed>)>,
    ) -> Result<(), KernelError> {
        let first = self.rows.tokens.len();
        self.rows.tokens.extend(tokens.map(|(slot, token)| Some((slot, token?))));
        let (from, to) = (first * self.width, self.rows.tokens.len() * self.width);
        let planned = |shape: usize| KernelError::BadTensor {
            shape: vec![shape],
            what: "more taps of unread tokens than were planned".to_owned(),
        };
        let source = taps.try_slice(..to - from).ok_or_else(|| planned(to - from))?;
        let mut own = self.taps.try_slice_mut(from..to).ok_or_else(|| planned(to))?;
        let copied = stream.cuda().memcpy_dtod(&source, &mut own);
        copied.map_err(|error| KernelError::driver("keeping taps", error))
    }

    /// The tokens, as the drafter's inputs take them.
    pub(super) fn tokens(&self) -> Vec<Option<Committed>> {
        self.rows.tokens.iter().map(|token| token.map(|(_, token)| token)).collect()
    }

    /// The taps of the first `count` tokens.
    pub(super) fn taps(&self, count: usize) -> Result<CudaView<'_, bf16>, KernelError> {
        self.taps.try_slice(..count * self.width).ok_or_else(|| KernelError::BadTensor {
            shape: vec![count, self.width],
            what: format!("taps of unread tokens were planned for {}", self.rows.limit),
        })
    }

    pub(super) fn clear(&mut self) {
        self.rows.tokens.clear();
    }

    /// Leaves out the tokens of the stream `slot`.
    pub(super) fn forget(&mut self, slot: usize) {
        self.rows.forget(slot);
    }
}

impl Rows {
    fn forget(&mut self, slot: usize) {
        for token in &mut self.tokens {
            token.take_if(|(own, _)| *own == slot);
        }
        if self.tokens.iter().all(Option::is_none) {
            self.tokens.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use kd_attn::PageId;

    use super::*;

    #[test]
    fn a_stream_that_leaves_takes_its_tokens_and_no_others() {
        let token = |slot, position| Some((slot, Committed { position, page: PageId(0) }));
        let mut rows = Rows { limit: 8, tokens: vec![token(0, 7), token(1, 3), None, token(0, 8)] };
        rows.forget(0);
        assert_eq!(rows.tokens, [None, token(1, 3), None, None], "the taps of others stay where they are");
        rows.forget(1);
        assert!(rows.tokens.is_empty(), "room is given back");
    }
}
