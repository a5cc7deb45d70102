//! What the launches of a round use, and the launches themselves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kd_attn::Segment;
use kd_kernels::ranks::OneRank;
use kd_kernels::{Graph, KernelError, Stream};
use kd_model::cuda::{Bucket, CudaError, CudaTarget, Move, PassState, PrefillState};

use super::drafting::{Drafting, Moved};
use super::sampling::Sampling;

/// Models and the memory of their passes. Launches keep the addresses, so nothing in here is ever replaced.
#[derive(Debug)]
pub(super) struct Passes {
    pub(super) target: CudaTarget,
    pub(super) state: PassState,
    /// `None` where prompts take the passes of rounds.
    pub(super) chunks: Option<PrefillState>,
    pub(super) sampling: Sampling,
    pub(super) drafting: Option<Drafting>,
}

/// Passes as graphs share them. One thread runs them all; the lock is what makes that plain.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Passes>>);

impl Shared {
    pub(super) fn new(passes: Passes) -> Self {
        Self(Arc::new(Mutex::new(passes)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Passes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Captures the launches of `record` for one size.
    pub(super) fn capture<S: Copy>(
        &self,
        stream: &Stream,
        size: S,
        record: fn(&mut Passes, &Stream, S) -> Result<(), CudaError>,
    ) -> Result<Captured<S>, CudaError> {
        // One eager run first: what the driver loads at a first launch cannot be loaded while capturing.
        record(&mut self.lock(), stream, size)?;
        let resources = Recording { shared: self.clone(), size, record };
        Ok(stream.capture(resources, |stream, recording| {
            let Recording { shared, size, record } = recording;
            record(&mut shared.lock(), stream, *size).map_err(as_kernel_error)
        })?)
    }
}

/// The launches of one size.
pub(super) type Captured<S> = Graph<Recording<S>>;

/// What a captured graph owns.
pub(super) struct Recording<S> {
    shared: Shared,
    size: S,
    record: fn(&mut Passes, &Stream, S) -> Result<(), CudaError>,
}

impl Passes {
    /// Forward, head and draws of all rows.
    pub(super) fn verify(&mut self, stream: &Stream, bucket: Bucket) -> Result<(), CudaError> {
        self.draws(stream, bucket)?;
        Ok(self.sampling.sent(stream)?)
    }

    /// As [`verify`](Self::verify), of a round without trees: what is committed is known before.
    pub(super) fn plain(&mut self, stream: &Stream, bucket: Bucket) -> Result<(), CudaError> {
        self.draws(stream, bucket)?;
        self.target.commit_roots(stream, &mut self.state, bucket.streams)?;
        Ok(self.sampling.sent(stream)?)
    }

    /// As [`verify`](Self::verify), and all that follows up to the drafts of the next round.
    pub(super) fn rotated(&mut self, stream: &Stream, bucket: Bucket) -> Result<(), CudaError> {
        self.draws(stream, bucket)?;
        let Self { target, state, sampling, drafting, .. } = self;
        if let Some(drafting) = drafting {
            drafting.follow(stream, target, state, bucket, sampling.tokens(bucket.rows)?)?;
        }
        Ok(sampling.sent(stream)?)
    }

    /// Forward, head and draws; the copy of the tokens goes on beside what follows.
    fn draws(&mut self, stream: &Stream, bucket: Bucket) -> Result<(), CudaError> {
        self.target.forward(stream, &mut self.state, bucket, &OneRank)?;
        self.target.logits(stream, &mut self.state, bucket.rows)?;
        let logits = self.state.device_logits(bucket.rows)?;
        self.sampling.launch(stream, logits, bucket.rows)?;
        Ok(self.sampling.send(stream, bucket.rows)?)
    }

    /// A prompt chunk: forward and commit of all rows; the drafter reads those of `moved`, if it is to read any.
    pub(super) fn prompt(
        &mut self,
        stream: &Stream,
        tokens: &[u32],
        segments: &[Segment<'_>],
        moved: Option<&[Moved<'_>]>,
    ) -> Result<(), CudaError> {
        let Self { target, state, chunks, drafting, .. } = self;
        let taps = match chunks {
            Some(chunks) => {
                target.prefill(stream, state, chunks, tokens, segments, &OneRank)?;
                chunks.kept_taps(tokens.len())?
            }
            None => {
                state.inputs.write(stream, tokens, segments)?;
                state.inputs.write_moves(stream, &Move::all(segments)?)?;
                let longest = segments.iter().map(|segment| segment.committed).max();
                let pages = state.limits().pages_for(longest.unwrap_or_default());
                let bucket = Bucket { rows: tokens.len(), streams: segments.len(), pages };
                target.forward(stream, state, bucket, &OneRank)?;
                target.commit(stream, state, tokens.len())?;
                state.kept_taps(tokens.len())?
            }
        };
        match (drafting, moved) {
            (Some(drafting), Some(moved)) => drafting.read_prompts(stream, taps, moved),
            _ => Ok(()),
        }
    }

    /// Head and draws of the rows `ends` of the last prompt chunk.
    pub(super) fn last(&mut self, stream: &Stream, ends: &[usize]) -> Result<(), CudaError> {
        let (Self { target, state, chunks, sampling, .. }, count) = (self, ends.len());
        match chunks {
            Some(chunks) => {
                chunks.inputs.choose(stream, ends)?;
                target.prefill_logits(stream, state, chunks, count)?;
            }
            None => {
                state.inputs.choose(stream, ends)?;
                target.chosen_logits(stream, state, count)?;
            }
        }
        sampling.launch(stream, state.device_logits(count)?, count)?;
        sampling.send(stream, count)?;
        Ok(sampling.sent(stream)?)
    }

    /// The commit of up to `count` rows, without the drafter.
    pub(super) fn commit(&mut self, stream: &Stream, count: usize) -> Result<(), CudaError> {
        self.target.commit(stream, &mut self.state, count)
    }

    /// As [`commit`](Self::commit), and the drafter reads them.
    pub(super) fn commit_and_read(&mut self, stream: &Stream, count: usize) -> Result<(), CudaError> {
        self.commit(stream, count)?;
        let Self { state, drafting, .. } = self;
        let Some(drafting) = drafting else { return Ok(()) };
        drafting.read(stream, state.kept_taps(count)?, count)
    }

    /// Keeps the taps of the last commit, the tokens of `moved`, until a stream drafts.
    pub(super) fn keep(&mut self, stream: &Stream, moved: &[Moved<'_>]) -> Result<(), CudaError> {
        let Self { state, drafting, .. } = self;
        let Some(drafting) = drafting else { return Ok(()) };
        let count = moved.iter().map(|(_, _, count)| count).sum();
        drafting.keep(stream, state.kept_taps(count)?, moved)
    }

    /// A draft of up to `streams` blocks.
    pub(super) fn draft(&mut self, stream: &Stream, streams: usize) -> Result<(), CudaError> {
        let Self { target, drafting, .. } = self;
        drafting.as_mut().map_or(Ok(()), |drafting| drafting.draft(stream, target, streams))
    }
}

/// What goes wrong while a graph is captured is what goes wrong with its launches.
fn as_kernel_error(error: CudaError) -> KernelError {
    match error {
        CudaError::Kernel(error) => error,
        other => KernelError::Driver { what: "capturing a pass".to_owned(), code: other.to_string() },
    }
}
