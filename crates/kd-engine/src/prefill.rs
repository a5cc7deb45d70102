//! Reading prompts, chunk by chunk.

use kd_attn::{Mask, Segment};
use kd_sample::Choice;

use crate::engine::{Engine, Step};
use crate::{StreamError, stream::Stream};

impl Engine {
    /// One pass over prompt rows of the streams that are still reading, oldest first, up to the chunk size.
    pub(crate) fn prefill(&mut self, step: &mut Step) {
        let mut room = self.options.prefill_chunk.max(1);
        let mut chunks: Vec<(usize, usize)> = Vec::new();
        for (at, stream) in self.running.iter().enumerate().filter(|(_, s)| s.bonus.is_none()) {
            let rows = room.min(stream.request.prompt.len() - stream.committed);
            if rows == 0 {
                break;
            }
            chunks.push((at, rows));
            room -= rows;
        }
        if chunks.is_empty() {
            return;
        }
        let rest = |s: &Stream, rows: usize| s.request.prompt[s.committed..][..rows].to_vec();
        let tokens: Vec<u32> = chunks.iter().flat_map(|&(at, rows)| rest(&self.running[at], rows)).collect();
        let segments: Vec<Segment<'_>> = chunks
            .iter()
            .map(|&(at, rows)| {
                let stream = &self.running[at];
                Segment { pages: &stream.pages, committed: stream.committed, rows, mask: Mask::Causal }
            })
            .collect();
        let pass = self
            .models
            .target
            .forward(&self.pool, &tokens, &segments, &self.latents, self.models.taps(), &mut self.ops)
            .expect("prompt tokens were checked when the request was taken");

        let mut first = 0;
        let mut complete = Vec::new();
        for &(at, rows) in &chunks {
            let kept: Vec<usize> = (first..first + rows).collect();
            self.commit(at, &pass, &kept);
            if self.running[at].committed == self.running[at].request.prompt.len() {
                complete.push((at, first + rows - 1));
            }
            first += rows;
        }
        let last = pass.hidden.gather(complete.iter().map(|&(_, row)| row));
        let logits = self.models.target.logits(&self.pool, &last);
        let mut ended = Vec::new();
        for (&(at, _), row) in complete.iter().zip(logits.iter_rows()) {
            self.running[at].end_prefill();
            let (choices, failure) = match self.choose(at, row) {
                Ok(choice) => (vec![choice], None),
                Err(error) => (Vec::new(), Some(error)),
            };
            if let Some(end) = self.deliver(at, choices, failure, step).end {
                ended.push((at, end));
            }
        }
        self.end(ended, step);
    }

    /// Chooses the next token of the running stream `at` from its row of logits.
    pub(crate) fn choose(&mut self, at: usize, row: &[f32]) -> Result<Choice, StreamError> {
        let stream = &self.running[at];
        let position = stream.next_position();
        let request = &stream.request;
        self.sampler
            .choose(row, &stream.history, &request.params, position as u64, request.choice)
            .map_err(|reason| StreamError::Sample { position, reason })
    }
}
