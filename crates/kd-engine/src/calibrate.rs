//! Timing rounds of every size before anything is drafted by the automatic budget.
//!
//! What rounds cost is a property of machine and models: it can be measured once, on tokens that nobody asked for, so that in
//! service only what drafts are worth is left to be learnt. The rounds are those of any request with a tree of its own.

use std::time::{Duration, Instant};

use kd_attn::PAGE_TOKENS;
use kd_ddtree::budget::SIZES;

use crate::backend::DeviceError;
use crate::engine::{Engine, Step};
use crate::stream::Stream;
use crate::{Request, RequestId, Speculation};

/// Tokens of a prompt.
const PROMPT: usize = 4;
/// Rounds of one number of streams at most: trees that drafts do not fill cannot be timed for ever.
const ROUNDS: usize = 4 * SIZES;
/// How long one step times rounds: then requests may come and go.
const SLICE: Duration = Duration::from_millis(100);
/// A number of streams that is timed ÷ the one before it. Those between are taken to cost what their neighbours do.
const APART: usize = 4;

/// How far the rounds are timed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Calibration {
    /// Streams of the next round, 0 before the first one.
    streams: usize,
    /// Rounds of so many streams so far.
    rounds: usize,
}

impl Engine {
    /// Times some of the rounds that the automatic budget lacks, if it started without costs and all requests that there are wait
    /// for it. Nobody is kept waiting who has no use for it: streams that run go on, without drafts where these are a matter of the
    /// budget. Whether this step went into that; the next one goes on with it.
    pub(crate) fn calibrate(&mut self) -> Result<bool, DeviceError> {
        let has_use = |stream: &Stream| stream.request.speculation == Speculation::Auto;
        let most = self.most_streams();
        let begins = self.calibration.streams == 0;
        if !self.running.is_empty()
            || self.waiting.is_empty()
            || !self.waiting.iter().all(has_use)
            || self.calibration.streams > most
            || (begins && (most == 0 || self.budget.is_calibrated()))
        {
            return Ok(false);
        }
        self.calibration.streams = self.calibration.streams.max(1);
        let waiting = std::mem::take(&mut self.waiting);
        let timed = self.time_rounds(most);
        match timed {
            Ok(()) => self.leave(),
            // Nothing runs on a device that has failed.
            Err(_) => self.running.clear(),
        }
        self.waiting = waiting;
        timed.map(|()| true)
    }

    /// Streams that can run together where streams draft: each has a page.
    fn most_streams(&self) -> usize {
        if self.depths() == 0 { 0 } else { self.options.slots().min(self.allocator.total()) }
    }

    /// Times rounds of the present number of streams for a while, and then goes on to the next one, of which `most` is the last.
    fn time_rounds(&mut self, most: usize) -> Result<(), DeviceError> {
        let (begin, Calibration { streams, rounds }) = (Instant::now(), self.calibration);
        let (depths, cap) = (self.depths(), self.limits().cap);
        for rounds in rounds..ROUNDS {
            let Some(nodes) = self.budget.untimed(streams, depths, cap) else { break };
            if begin.elapsed() >= SLICE {
                return Ok(());
            }
            if self.running.len() < streams {
                self.join(streams)?;
            }
            for stream in &mut self.running {
                stream.request.speculation = Speculation::Tree { nodes };
            }
            self.round(&mut Step::default())?;
            self.calibration.rounds = rounds + 1;
        }
        let next = if streams == most { most + 1 } else { (APART * streams).min(most) };
        self.calibration = Calibration { streams: next, rounds: 0 };
        Ok(())
    }

    /// `streams` streams of this process's own, and none but them.
    fn join(&mut self, streams: usize) -> Result<(), DeviceError> {
        self.leave();
        let config = self.models.target.config();
        let (vocab, longest) = (config.vocab_size, config.max_position_embeddings.min(PAGE_TOKENS));
        for at in 0..streams {
            // Streams differ, as those of callers do.
            let prompt = (0..PROMPT).map(|i| ((PROMPT * at + i) * 31 % vocab) as u32).collect();
            let request = Request {
                speculation: Speculation::Tree { nodes: 1 },
                ..Request::new(prompt, longest.saturating_sub(PROMPT).max(1))
            };
            // No caller has ever got such a number.
            let id = RequestId(u64::MAX - at as u64);
            self.waiting.extend(Stream::new(id, request, None));
        }
        self.admit()?;
        while self.running.iter().any(|stream| stream.bonus.is_none()) {
            self.prefill(&mut Step::default())?;
        }
        Ok(())
    }

    /// All of them end, as far as they have not.
    fn leave(&mut self) {
        self.waiting.clear();
        (0..self.running.len()).rev().for_each(|at| self.release(at));
    }
}
