//! The drafter's part of a round.

use half::bf16;
use kd_attn::{BlockSegment, PAGE_TOKENS};
use kd_ddtree::DraftRow;
use kd_kernels::ranks::OneRank;
use kd_kernels::{CudaView, Kernels, Stream, TensorRef};
use kd_model::Drafter;
use kd_model::cuda::{
    Committed, CudaDrafter, CudaError, CudaTarget, DeviceLent, DraftInputs, DraftLimits, Limits,
};

use crate::backend::{Head, Sequence};

/// What drafts need beside passes within `limits`, if up to `tokens` tokens are read at once.
pub(super) fn draft_limits(limits: Limits, tokens: usize) -> DraftLimits {
    let Limits { streams, pages, stream_pages, .. } = limits;
    DraftLimits { streams, tokens, pages, stream_pages }
}

/// A drafter on the device and what its launches read.
#[derive(Debug)]
pub(super) struct Drafting {
    model: CudaDrafter,
    inputs: DraftInputs,
    tap_width: usize,
}

impl Drafting {
    /// Brings the drafter to the device, for the streams and pages of `limits`; it reads up to `tokens` tokens at once.
    pub(super) fn load(
        stream: &Stream,
        kernels: &Kernels,
        drafter: &Drafter,
        limits: Limits,
        tokens: usize,
    ) -> Result<Self, CudaError> {
        let own = draft_limits(limits, tokens);
        let model = CudaDrafter::load(stream, kernels, drafter, 0, own)?;
        let inputs = DraftInputs::new(stream, own, drafter.config().vocab_size)?;
        let tap_width = model.dims().tap_width;
        Ok(Self { model, inputs, tap_width })
    }

    /// Rows of a block that predict a token: the depth of the deepest tree.
    pub(super) fn depths(&self) -> usize {
        self.model.dims().drafted()
    }

    /// Writes whose context the next commit reads: the tokens of each sequence, in the order of the commit's moves. Those of
    /// a stream that never drafts are left out.
    pub(super) fn write_context(
        &self,
        stream: &Stream,
        moved: &[(&Sequence, usize, usize)],
    ) -> Result<(), CudaError> {
        let mut tokens = Vec::new();
        for &(sequence, committed, count) in moved {
            let at = |position: usize| {
                let page = *sequence.pages.get(position / PAGE_TOKENS)?;
                sequence.drafts.then_some(Committed { position, page })
            };
            tokens.extend((committed..committed + count).map(at));
        }
        self.inputs.write_context(stream, &tokens)
    }

    /// Enqueues the context of `count` tokens that have these taps. Safe to capture in a graph.
    pub(super) fn read(
        &mut self,
        stream: &Stream,
        taps: CudaView<'_, bf16>,
        count: usize,
    ) -> Result<(), CudaError> {
        let taps = TensorRef::new(stream, taps, [count, self.tap_width])?;
        self.model.context(stream, &OneRank, self.inputs.context(taps)?)
    }

    /// Writes the streams of the next draft.
    pub(super) fn write_blocks(&self, stream: &Stream, heads: &[Head<'_>]) -> Result<(), CudaError> {
        let bonus: Vec<u32> = heads.iter().map(|head| head.bonus).collect();
        let segments: Vec<BlockSegment<'_>> = heads
            .iter()
            .map(|head| BlockSegment { pages: &head.sequence.pages, start: head.sequence.committed })
            .collect();
        self.inputs.write_blocks(stream, &bonus, &segments)
    }

    /// Enqueues a draft of up to `streams` blocks. Safe to capture in a graph.
    pub(super) fn draft(
        &mut self,
        stream: &Stream,
        target: &CudaTarget,
        streams: usize,
    ) -> Result<(), CudaError> {
        let blocks = self.inputs.blocks(streams)?;
        self.model.draft(stream, &OneRank, DeviceLent::from(target), &blocks)
    }

    /// The rows of the draft that was enqueued last.
    pub(super) fn rows(&self, stream: &Stream, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, CudaError> {
        let found = [self.model.best(stream, heads.len())?];
        let rows = |(index, head): (usize, &Head<'_>)| self.model.rows(&found, index, head.best);
        Ok(heads.iter().enumerate().map(rows).collect())
    }
}
