//! Reading prompts, chunk by chunk.

use kd_sample::{Choice, SampleError};

use crate::StreamError;
use crate::backend::{Answer, Chunk, DeviceError};
use crate::engine::{Engine, Step};

impl Engine {
    /// One pass over prompt rows of the streams that are still reading, oldest first, up to the chunk size.
    pub(crate) fn prefill(&mut self, step: &mut Step) -> Result<(), DeviceError> {
        let mut room = self.options.prefill_chunk.max(1);
        let mut chunks: Vec<(usize, usize)> = Vec::new();
        for (at, stream) in self.running.iter().enumerate().filter(|(_, s)| s.bonus.is_none()) {
            let rows = room.min(stream.request.prompt.len() - stream.sequence.committed);
            if rows == 0 {
                break;
            }
            chunks.push((at, rows));
            room -= rows;
        }
        if chunks.is_empty() {
            return Ok(());
        }
        let chunk = |&(at, rows): &(usize, usize)| {
            let stream = &self.running[at];
            let end = stream.sequence.committed + rows;
            Chunk {
                sequence: &stream.sequence,
                tokens: &stream.request.prompt[stream.sequence.committed..end],
                complete: end == stream.request.prompt.len(),
                draw: stream.draw(),
            }
        };
        let given: Vec<Chunk<'_>> = chunks.iter().map(chunk).collect();
        let answers = self.backend.prefill(&given)?;

        let mut complete = Vec::new();
        for (at, rows) in chunks {
            let stream = &mut self.running[at];
            stream.sequence.committed += rows;
            if stream.sequence.committed == stream.request.prompt.len() {
                complete.push(at);
            }
        }
        let mut ended = Vec::new();
        for (row, at) in complete.into_iter().enumerate() {
            self.running[at].end_prefill();
            let (choices, failure) = match self.choose(at, answers.row(row)) {
                Ok(choice) => (vec![choice], None),
                Err(error) => (Vec::new(), Some(error)),
            };
            if let Some(end) = self.deliver(at, choices, failure, step).end {
                ended.push((at, end));
            }
        }
        self.end(ended, step);
        Ok(())
    }

    /// The next token of the running stream `at`, from what the target says after the row before it.
    pub(crate) fn choose(&mut self, at: usize, answer: Answer<'_>) -> Result<Choice, StreamError> {
        let stream = &self.running[at];
        let position = stream.next_position();
        let request = &stream.request;
        let chosen = match answer {
            Answer::Logits(row) => {
                let (history, params) = (&stream.history, &request.params);
                self.sampler.choose(row, history, params, position as u64, request.choice)
            }
            Answer::Token(Some(token)) => Ok(Choice { token, logprob: None, top_logprobs: Vec::new() }),
            Answer::Token(None) => Err(SampleError::NoFiniteMaximum),
        };
        chosen.map_err(|reason| StreamError::Sample { position, reason })
    }
}
