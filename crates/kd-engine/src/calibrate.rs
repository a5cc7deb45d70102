//! Timing rounds of every size before anything is drafted by the automatic budget.
//!
//! What rounds cost is a property of machine and models: it can be measured once, on tokens that nobody asked for, so that in
//! service only what drafts are worth is left to be learnt. The rounds are those of any request with a tree of its own.

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

impl Engine {
    /// Times rounds for the automatic budget if it knows no costs, a stream that waits would use them, and none runs that would
    /// have to wait.
    pub(crate) fn calibrate(&mut self) -> Result<(), DeviceError> {
        let is_needed = |stream: &Stream| stream.request.speculation == Speculation::Auto;
        if self.budget.is_calibrated() || !self.running.is_empty() || !self.waiting.iter().any(is_needed) {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let timed = self.time_rounds();
        self.running.clear();
        self.waiting = waiting;
        timed
    }

    /// Powers of two of streams up to the most that can run.
    fn time_rounds(&mut self) -> Result<(), DeviceError> {
        let depths = self.depths();
        // Each stream has a page.
        let most = if depths == 0 { 0 } else { self.options.slots().min(self.allocator.total()) };
        let powers = (0..).map(|exponent| 1 << exponent).take_while(|&streams| streams < most);
        for streams in powers.chain((most > 0).then_some(most)) {
            for _ in 0..ROUNDS {
                let Some(nodes) = self.budget.untimed(streams, depths, self.limits().cap) else { break };
                if self.running.len() < streams {
                    self.join(streams)?;
                }
                for stream in &mut self.running {
                    stream.request.speculation = Speculation::Tree { nodes };
                }
                self.round(&mut Step::default())?;
            }
            self.leave();
        }
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
