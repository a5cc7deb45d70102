//! One rank's models with random weights, and the launches of a round as graphs share them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kd_attn::{PAGE_TOKENS, PageId};
use kd_kernels::families::sample;
use kd_kernels::ranks::OneRank;
use kd_kernels::selftest::upload;
use kd_kernels::{
    Buffer, Choice, CudaSlice, Graph, KernelError, Kernels, Landing, Sent, Stream, TensorMut, TensorRef,
};
use kd_model::cuda::{
    Bucket, Committed, CudaDrafter, CudaError, CudaTarget, DeviceLent, DraftInputs, DraftLimits, Limits,
    Move, PassState, SentTokens, Walks,
};
use kd_moe::Routing;

/// Entries that one block of `sample` scans.
const CHUNK: usize = 4096;

/// Sizes of a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) bucket: Bucket,
    /// Rows that are committed at most.
    pub(super) kept: usize,
}

/// Target, drafter, and the memory of their passes. Launches keep the addresses, so nothing in here is replaced.
pub(super) struct Rank {
    pub(super) target: CudaTarget,
    pub(super) state: PassState,
    pub(super) drafter: CudaDrafter,
    pub(super) drafts: DraftInputs,
    walks: Walks,
    draws: Draws,
    /// What the rows of a pass chose: layer, experts and weights, `[rows, top_k]`.
    chosen: Vec<(usize, CudaSlice<i32>, CudaSlice<f32>)>,
}

/// Draws at temperature 1, each row with noise of its own.
struct Draws {
    kernel: sample::Sample,
    vocab: usize,
    temperature: CudaSlice<f64>,
    numbers: CudaSlice<u64>,
    choice: CudaSlice<u32>,
    cut: CudaSlice<u64>,
    found: CudaSlice<f64>,
    arrived: CudaSlice<i32>,
    tokens: Buffer<i32>,
    value: CudaSlice<f64>,
}

impl Rank {
    /// Memory for rounds within `limits`. `taps` are as many layers as the drafter wants.
    pub(super) fn new(
        stream: &Stream,
        kernels: &Kernels,
        target: CudaTarget,
        drafter: impl FnOnce(DraftLimits) -> Result<CudaDrafter, CudaError>,
        limits: Limits,
        taps: &[usize],
    ) -> Result<Self, CudaError> {
        let state = target.state(stream, limits, taps, 1)?;
        let Limits { rows, streams, pages, stream_pages, .. } = limits;
        let draft_limits = DraftLimits { streams, tokens: rows, pages, stream_pages };
        let (vocab, drafter) = (target.dims().vocab, drafter(draft_limits)?);
        Ok(Self {
            state,
            walks: Walks::new(stream, kernels, limits, drafter.dims().block)?,
            drafter,
            drafts: DraftInputs::new(stream, draft_limits, vocab)?,
            draws: Draws::new(stream, kernels, rows, vocab)?,
            chosen: Vec::new(),
            target,
        })
    }

    /// Enqueues the verify pass: forward, head, draws.
    pub(super) fn verify(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        self.target.forward(stream, &mut self.state, size.bucket, &OneRank)?;
        self.target.logits(stream, &mut self.state, size.bucket.rows)?;
        Ok(self.draws.launch(stream, &self.state, size.bucket.rows)?)
    }

    /// Keeps `choices`, by layer, for [`Rank::experts`]. No graph of that may be left.
    pub(super) fn choose(&mut self, stream: &Stream, choices: &[(usize, Routing)]) -> Result<(), CudaError> {
        let chosen = choices.iter().map(|(layer, routing)| {
            let ids: Vec<i32> = routing.ids.iter().map(|id| id.cast_signed()).collect();
            Ok((*layer, upload(stream, &ids)?, upload(stream, &routing.weights)?))
        });
        self.chosen = chosen.collect::<Result<_, KernelError>>()?;
        Ok(())
    }

    /// Enqueues the routed experts alone, those of each layer that [`Rank::choose`] was given.
    pub(super) fn experts(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        let Self { target, state, chosen, .. } = self;
        let shape = [size.bucket.rows, target.dims().router.top_k];
        chosen.iter().try_for_each(|(layer, ids, weights)| {
            let ids = TensorRef::new(stream, ids.as_view(), shape)?;
            let weights = TensorRef::new(stream, weights.as_view(), shape)?;
            target.experts_alone(stream, state, *layer, (ids, weights))
        })
    }

    /// Enqueues the commit alone.
    pub(super) fn commit(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        self.target.commit(stream, &mut self.state, size.kept)
    }

    /// Enqueues the rest of a round: commit, context of what was committed, draft.
    pub(super) fn commit_and_draft(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        self.commit(stream, size)?;
        self.draft(stream, size)
    }

    /// Enqueues a whole round as the engine runs it: the device walks by itself.
    pub(super) fn round(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        self.verify(stream, size)?;
        let (Bucket { rows, streams, .. }, width) = (size.bucket, self.drafter.dims().tap_width);
        let Self { target, state, drafter, walks, draws, .. } = self;
        walks.launch(stream, &state.inputs, size.bucket, draws.tokens.view_as(0, rows)?)?;
        target.commit_walked(stream, state, walks, streams)?;
        let kept = walks.kept(streams);
        let taps = TensorRef::new(stream, state.kept_taps(kept)?, [kept, width])?;
        drafter.context(stream, &OneRank, walks.context(streams, taps)?)?;
        let blocks = walks.blocks(&state.inputs, streams)?;
        drafter.draft(stream, &OneRank, DeviceLent::from(&*target), &blocks)
    }

    /// Enqueues context and draft.
    pub(super) fn draft(&mut self, stream: &Stream, size: Size) -> Result<(), CudaError> {
        self.context(stream, size.kept)?;
        let blocks = self.drafts.blocks(size.bucket.streams)?;
        self.drafter.draft(stream, &OneRank, DeviceLent::from(&self.target), &blocks)
    }

    fn context(&mut self, stream: &Stream, count: usize) -> Result<(), CudaError> {
        let width = self.drafter.dims().tap_width;
        let taps = TensorRef::new(stream, self.state.kept_taps(count)?, [count, width])?;
        self.drafter.context(stream, &OneRank, self.drafts.context(taps)?)
    }

    /// Enqueues the copies of the tokens that the last verify pass drew for `rows` rows, and of the last draft of `streams` streams.
    pub(super) fn send(
        &self,
        landing: &mut Landing,
        Bucket { rows, streams, .. }: Bucket,
    ) -> Result<(Sent<i32>, SentTokens), CudaError> {
        Ok((landing.send(&self.draws.tokens.view_as(0, rows)?)?, self.drafter.send_best(landing, streams)?))
    }

    /// Writes the rows of the last pass into every row of every page, of target and drafter, so that what passes read as
    /// context is no block of zeros.
    pub(super) fn fill_pages(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let limits = self.state.limits();
        let places = limits.pages * PAGE_TOKENS;
        for first in (0..places).step_by(limits.rows) {
            let count = limits.rows.min(places - first);
            let page = |at: usize| PageId(u32::try_from(at / PAGE_TOKENS).unwrap_or(u32::MAX));
            let moves: Vec<Move> = (0..count)
                .map(|row| Move { row, page: page(first + row), place: (first + row) % PAGE_TOKENS })
                .collect();
            let committed: Vec<Option<Committed>> = (0..count)
                .map(|row| Some(Committed { position: (first + row) % PAGE_TOKENS, page: page(first + row) }))
                .collect();
            self.state.inputs.write_moves(stream, &moves)?;
            self.drafts.write_context(stream, &committed)?;
            self.target.commit(stream, &mut self.state, count)?;
            self.context(stream, count)?;
        }
        Ok(stream.synchronize()?)
    }
}

impl Draws {
    fn new(stream: &Stream, kernels: &Kernels, rows: usize, vocab: usize) -> Result<Self, KernelError> {
        let v = i64::try_from(vocab).unwrap_or(i64::MAX);
        let words = |values: Vec<u64>| upload(stream, &values);
        let zeros = |count: usize| upload(stream, &vec![0.0; count]);
        Ok(Self {
            kernel: sample::Sample::load(kernels, sample::Dims { v })?,
            vocab,
            temperature: upload(stream, &vec![1.0; rows])?,
            numbers: words((0..rows as u64).collect())?,
            choice: upload(stream, &vec![0; rows])?,
            cut: words(vec![0; rows])?,
            found: zeros(rows * vocab.div_ceil(CHUNK) * 2)?,
            arrived: upload(stream, &vec![0; rows])?,
            tokens: Buffer::new(stream, &vec![-1; rows])?,
            value: zeros(rows)?,
        })
    }

    fn launch(&mut self, stream: &Stream, state: &PassState, rows: usize) -> Result<(), KernelError> {
        let (chunks, mut drawn) = (self.vocab.div_ceil(CHUNK), self.tokens.view_mut());
        let numbers = || TensorRef::new(stream, self.numbers.slice(..rows), [rows]);
        let args = sample::Args {
            logits: TensorRef::new(stream, state.device_logits(rows)?, [rows, self.vocab])?,
            rank: 0,
            temperature: TensorRef::new(stream, self.temperature.slice(..rows), [rows])?,
            seed: numbers()?,
            position: numbers()?,
            choice: TensorRef::new(stream, self.choice.slice(..rows), [rows])?,
            cut: TensorRef::new(stream, self.cut.slice(..rows), [rows])?,
            found: TensorMut::new(stream, self.found.slice_mut(..rows * chunks * 2), [rows, chunks, 2])?,
            arrived: TensorMut::new(stream, self.arrived.slice_mut(..rows), [rows])?,
            tokens: TensorMut::new(stream, drawn.slice_mut(..rows), [rows])?,
            value: TensorMut::new(stream, self.value.slice_mut(..rows), [rows])?,
        };
        self.kernel.launch(stream, Choice::Auto, args).map(drop)
    }
}

/// What enqueues a part of a round.
pub(super) type Record = fn(&mut Rank, &Stream, Size) -> Result<(), CudaError>;

/// A rank as several graphs own it. One thread uses it.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Rank>>);

/// What a graph of a round owns.
pub(super) struct Recording {
    shared: Shared,
    size: Size,
    record: Record,
}

impl Shared {
    pub(super) fn new(rank: Rank) -> Self {
        Self(Arc::new(Mutex::new(rank)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Rank> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Captures `record` as `stream` admits it.
    pub(super) fn capture(
        &self,
        stream: &Stream,
        size: Size,
        record: Record,
    ) -> Result<Graph<Recording>, CudaError> {
        let recording = Recording { shared: self.clone(), size, record };
        Ok(stream.capture(recording, |stream, own| {
            let Recording { shared, size, record } = own;
            record(&mut shared.lock(), stream, *size).map_err(|error| match error {
                CudaError::Kernel(error) => error,
                other => {
                    KernelError::Driver { what: "capturing a round".to_owned(), code: other.to_string() }
                }
            })
        })?)
    }
}
