//! The drafter's part of a round.

mod unread;

use half::bf16;
use kd_attn::{BlockSegment, PAGE_TOKENS};
use kd_ddtree::DraftRow;
use kd_kernels::ranks::OneRank;
use kd_kernels::{CudaView, KernelError, Kernels, Landing, Stream, TensorRef};
use kd_model::Drafter;
use kd_model::cuda::{
    BestTokens, Bucket, Committed, CudaDrafter, CudaError, CudaTarget, DeviceLent, DraftInputs, DraftLimits,
    Limits, PassState, SentTokens, Walks,
};

use crate::backend::{Head, Sequence};
pub(super) use unread::Unread;

/// What drafts need beside passes within `limits`, if up to `tokens` tokens are read at once.
pub(super) fn draft_limits(limits: Limits, tokens: usize) -> DraftLimits {
    let Limits { streams, pages, stream_pages, .. } = limits;
    DraftLimits { streams, tokens, pages, stream_pages }
}

/// A drafter on the device and what its launches read.
#[derive(Debug)]
pub(super) struct Drafting {
    model: CudaDrafter,
    /// Of rounds, and of prompt chunks, which are far larger.
    inputs: DraftInputs,
    prompts: DraftInputs,
    /// Of rounds in which no stream drafted.
    unread: Unread,
    /// What the device walks by itself; `None` where there are no trees.
    walks: Option<Walks>,
    tap_width: usize,
}

/// Tokens that a sequence has committed: from a position on, so many.
pub(super) type Moved<'a> = (&'a Sequence, usize, usize);

impl Drafting {
    /// Brings the drafter to the device, for the streams and pages of `limits`; it reads up to `tokens` tokens of prompts at once.
    pub(super) fn load(
        stream: &Stream,
        kernels: &Kernels,
        drafter: &Drafter,
        limits: Limits,
        tokens: usize,
    ) -> Result<Self, CudaError> {
        let own = draft_limits(limits, tokens);
        let model = CudaDrafter::load(stream, kernels, drafter, 0, own)?;
        let inputs =
            |tokens| DraftInputs::new(stream, draft_limits(limits, tokens), drafter.config().vocab_size);
        let tap_width = model.dims().tap_width;
        Ok(Self {
            inputs: inputs(limits.rows)?,
            prompts: inputs(tokens)?,
            unread: Unread::new(stream, tap_width, limits.rows)?,
            walks: (limits.nodes > 1)
                .then(|| Walks::new(stream, kernels, limits, model.dims().block))
                .transpose()?,
            model,
            tap_width,
        })
    }

    /// Rows of a block that predict a token: the depth of the deepest tree.
    pub(super) fn depths(&self) -> usize {
        self.model.dims().drafted()
    }

    /// Writes whose context the next commit reads: the tokens of each sequence, in the order of the commit's moves. Those of
    /// a stream that never drafts are left out.
    pub(super) fn write_context(&self, stream: &Stream, moved: &[Moved<'_>]) -> Result<(), CudaError> {
        self.inputs.write_context(stream, &committed(moved))
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

    /// Enqueues the context of the tokens of prompt chunks that have these taps, `moved` in their order.
    pub(super) fn read_prompts(
        &mut self,
        stream: &Stream,
        taps: CudaView<'_, bf16>,
        moved: &[Moved<'_>],
    ) -> Result<(), CudaError> {
        let tokens = committed(moved);
        self.prompts.write_context(stream, &tokens)?;
        let taps = TensorRef::new(stream, taps, [tokens.len(), self.tap_width])?;
        self.model.context(stream, &OneRank, self.prompts.context(taps)?)
    }

    /// Keeps the taps of committed tokens, `moved` in their order, until a stream drafts.
    pub(super) fn keep(
        &mut self,
        stream: &Stream,
        taps: CudaView<'_, bf16>,
        moved: &[Moved<'_>],
    ) -> Result<(), CudaError> {
        let tokens = committed(moved);
        if !self.unread.has_room(tokens.len()) {
            self.catch_up(stream)?;
        }
        let slots = moved.iter().flat_map(|(sequence, _, count)| std::iter::repeat_n(sequence.slot, *count));
        Ok(self.unread.push(stream, &taps, slots.zip(tokens))?)
    }

    /// Enqueues the context of all tokens that were kept, and forgets them. False if there were none.
    pub(super) fn catch_up(&mut self, stream: &Stream) -> Result<bool, CudaError> {
        let Self { unread, inputs, model, tap_width, .. } = self;
        let tokens = unread.tokens();
        let any = tokens.iter().any(Option::is_some);
        if any {
            inputs.write_context(stream, &tokens)?;
            let taps = TensorRef::new(stream, unread.taps(tokens.len())?, [tokens.len(), *tap_width])?;
            model.context(stream, &OneRank, inputs.context(taps)?)?;
        }
        unread.clear();
        Ok(any)
    }

    /// Forgets the tokens of a stream that leaves.
    pub(super) fn forget(&mut self, slot: usize) {
        self.unread.forget(slot);
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

    /// Enqueues what follows the draws of a pass, `chosen`: walks, commit, the context of what was committed, and drafts of all
    /// its streams. Safe to capture in a graph.
    pub(super) fn follow(
        &mut self,
        stream: &Stream,
        target: &CudaTarget,
        state: &mut PassState,
        bucket: Bucket,
        chosen: CudaView<'_, i32>,
    ) -> Result<(), CudaError> {
        let Self { model, walks, tap_width, .. } = self;
        let walks = walks.as_mut().ok_or_else(no_walks)?;
        let streams = bucket.streams;
        walks.launch(stream, &state.inputs, bucket, chosen)?;
        target.commit_walked(stream, state, walks, streams)?;
        let kept = walks.kept(streams);
        let taps = TensorRef::new(stream, state.kept_taps(kept)?, [kept, *tap_width])?;
        model.context(stream, &OneRank, walks.context(streams, taps)?)?;
        let blocks = walks.blocks(&state.inputs, streams)?;
        model.draft(stream, &OneRank, DeviceLent::from(target), &blocks)
    }

    /// The rows that the walks of the last pass visited in each of `streams` streams.
    pub(super) fn walked(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        self.walks.as_ref().ok_or_else(no_walks)?.counts(streams)
    }

    /// Enqueues the copies of what the last draft found for `streams` streams.
    pub(super) fn send(&self, landing: &mut Landing, streams: usize) -> Result<SentTokens, CudaError> {
        self.model.send_best(landing, streams)
    }

    /// The rows of stream `index` of a draft, each cut to its `best` tokens.
    pub(super) fn rows(&self, found: &BestTokens, index: usize, best: usize) -> Vec<DraftRow> {
        self.model.rows(std::slice::from_ref(found), index, best)
    }
}

/// Rounds without trees follow none.
fn no_walks() -> KernelError {
    KernelError::Driver { what: "walking".to_owned(), code: "planned without nodes".to_owned() }
}

/// Bytes of a [`Landing`] for drafts of `streams` streams and the numbers of visited rows.
pub(super) fn landing_bytes(drafter: &Drafter, streams: usize) -> usize {
    Landing::bytes::<i32>(streams) + SentTokens::bytes(streams * (drafter.config().block_size - 1))
}

/// Places of committed tokens; of a stream that never drafts none.
fn committed(moved: &[Moved<'_>]) -> Vec<Option<Committed>> {
    let mut tokens = Vec::new();
    for &(sequence, committed, count) in moved {
        let at = |position: usize| {
            let page = *sequence.pages.get(position / PAGE_TOKENS)?;
            sequence.drafts.then_some(Committed { position, page })
        };
        tokens.extend((committed..committed + count).map(at));
    }
    tokens
}
