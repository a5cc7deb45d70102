//! The boundary between streams and what runs the models for them.
//!
//! The engine knows requests, budgets, trees, sampling and delivery; a [`Backend`] holds weights and caches and runs the
//! passes of both models. A round asks it in this order: [`catch_up`](Backend::catch_up), [`draft`](Backend::draft),
//! [`verify`](Backend::verify), [`commit`](Backend::commit). A backend that captures *verify → walk → commit → draft* in
//! one launch runs all of it in `verify`, since each [`Member`] says how its tokens are drawn and whether it drafts next:
//! `commit` then names rows that it has already committed, `catch_up` has nothing left to read, and `draft` hands out what is
//! there. Only where a member wants logits does the walk need the host between the two halves.

mod rows;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kd_attn::PageId;
use kd_ddtree::{DraftRow, Tree};
use kd_model::OpCounter;
use kd_tensor::Matrix;
use thiserror::Error;

pub(crate) use rows::{PromptRows, TreeRows};

/// A device that failed. What was on it is lost, so every request that it served has failed with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the device failed: {0}; what it was computing is lost, start again")]
pub struct DeviceError(pub String);

/// What a backend is told of a running stream.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Names what the backend keeps for it: below `EngineOptions::max_streams`, another for each running stream.
    pub(crate) slot: usize,
    /// Its pages in the target's and the drafter's caches, for all that it may ever commit.
    pub(crate) pages: Vec<PageId>,
    /// Committed tokens.
    pub(crate) committed: usize,
    /// Whether the drafter must be able to read it.
    pub(crate) drafts: bool,
}

/// The draw that gives the token after a row, where nothing but temperature and noise stands between logits and token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    /// Divides the logits; 0 takes the largest.
    pub(crate) temperature: f64,
    /// Key of the noise.
    pub(crate) seed: u64,
    /// Which of several parallel answers.
    pub(crate) choice: u32,
}

/// Prompt rows of one stream, to be read and committed.
#[derive(Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) sequence: &'a Sequence,
    /// Tokens at positions `committed ..`.
    pub(crate) tokens: &'a [u32],
    /// Whether the token after the last of them is wanted.
    pub(crate) complete: bool,
    /// How it is drawn; `None` if the engine needs the logits.
    pub(crate) draw: Option<Draw>,
}

/// One stream of a verify pass: `1 + tree.len()` rows.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    pub(crate) sequence: &'a Sequence,
    /// The root's token, at position `committed`.
    pub(crate) bonus: u32,
    pub(crate) tree: &'a Tree,
    /// How tokens are drawn; `None` if the engine needs the logits.
    pub(crate) draw: Option<Draw>,
    /// Whether it will draft in the next round, as far as that can be known. A backend may draft for it in this pass.
    pub(crate) ahead: bool,
}

/// Rows of the last verify pass that the target agreed with.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    /// As in that pass: nothing has been committed since.
    pub(crate) sequence: &'a Sequence,
    /// Which member of that pass it was.
    pub(crate) member: usize,
    /// The member's rows, the root first; the token of each takes the position after the one before.
    pub(crate) rows: &'a [usize],
}

/// One stream that drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) sequence: &'a Sequence,
    /// Its newest token, at position `committed`.
    pub(crate) bonus: u32,
    /// Tokens of each draft position that are of use. A backend may give fewer.
    pub(crate) best: usize,
}

/// What the target says after one row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer<'a> {
    /// Its logits, `[vocab]`.
    Logits(&'a [f32]),
    /// The token that was drawn; `None` where the row allows none (NaN, +inf, nothing finite).
    Token(Option<u32>),
    /// Its logits lie with the backend: [`Backend::logits`].
    Held,
}

/// What the target says after the rows of a pass. Logits may come where a draw was asked for, never the other way round.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<Row>);

/// As [`Answer`]; rows of one pass share the memory of its logits.
#[derive(Debug, Clone)]
pub(crate) enum Row {
    Logits(Arc<Matrix>, usize),
    Token(Option<u32>),
    Held,
}

impl Answers {
    /// An answer a row.
    pub(crate) fn new(rows: Vec<Row>) -> Self {
        Self(rows)
    }

    /// Logits `[rows, vocab]` of every row.
    pub(crate) fn of_logits(logits: Matrix) -> Self {
        let logits = Arc::new(logits);
        Self((0..logits.rows()).map(|row| Row::Logits(logits.clone(), row)).collect())
    }

    /// The answer after row `row` of the pass.
    pub(crate) fn row(&self, row: usize) -> Answer<'_> {
        match &self.0[row] {
            Row::Logits(logits, at) => Answer::Logits(logits.row(*at)),
            Row::Token(token) => Answer::Token(*token),
            Row::Held => Answer::Held,
        }
    }
}

/// Runs the models. Calls may fail for good only: after a [`DeviceError`] nothing else is asked.
pub(crate) trait Backend: Debug + Send {
    /// A stream joins; nothing of it is committed.
    fn open(&mut self, sequence: &Sequence) -> Result<(), DeviceError>;

    /// A stream leaves. Its pages may be given to another.
    fn close(&mut self, sequence: &Sequence);

    /// Reads prompt rows in one pass and commits them; one answer for each complete chunk, in order.
    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Answers, DeviceError>;

    /// Runs all rows of all trees through the target in one pass; one answer a row, the rows of the first member first. It may
    /// commit what each member's draws lead to, since the rows behind the end of a stream go with its pages.
    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError>;

    /// The logits `[vocab]` of a row that the last pass answered with [`Answer::Held`]: `row` is that of the answer. A walk asks for
    /// few of the rows of a tree, so those of the others are never copied.
    fn logits(&mut self, row: usize) -> Result<Vec<f32>, DeviceError>;

    /// Commits rows of the last verify pass: latents into pages, taps for the drafter where the stream drafts.
    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError>;

    /// Committed tokens of a slot that the drafter has to read before the slot drafts, as far as that can be saved.
    fn unread(&self, slot: usize) -> usize;

    /// Lets the drafter read what these streams have committed since it last did; the number of those that [`unread`](Self::unread)
    /// counts.
    fn catch_up(&mut self, sequences: &[&Sequence]) -> Result<usize, DeviceError>;

    /// Drafts one block for each of these streams, which the drafter has read whole: the rows of positions
    /// `committed + 1 ..` in the target's ids, up to the first one without a finite maximum.
    fn draft(&mut self, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, DeviceError>;

    /// Waits for what the last verify pass has begun for the present round, needed or not, so that nothing else is charged with it.
    /// Whether the draft of this round was at work while a prompt was waited for: its time says nothing of its cost then.
    fn settle(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// What the target's passes have done so far.
    fn ops(&self) -> OpCounter;

    /// Graphs of rounds that a device has been given so far.
    fn graphs(&self) -> u64 {
        0
    }

    /// Begins or ends timing passes on a device; a backend without one has nothing to time.
    fn time_device(&mut self, on: bool) {
        let _ = on;
    }

    /// Time that the device has spent in passes of rounds since it was last asked, once they are over; `None` if it is not timed.
    fn device_time(&mut self) -> Result<Option<Duration>, DeviceError> {
        Ok(None)
    }
}
