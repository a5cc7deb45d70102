//! Reading prompts, chunk by chunk.

use kd_sample::{Choice, SampleError};

use crate::StreamError;
use crate::backend::{Answer, Answers, Chunk, DeviceError};
use crate::engine::{Engine, Step};

impl Engine {
    /// One pass over prompt rows of the streams that are still reading, oldest first, up to the chunk size: a large one reads
    /// a prompt in fewer passes over the weights, a small one lets streams that generate wait less.
    pub(crate) fn prefill(&mut self, step: &mut Step) -> Result<(), DeviceError> {
        let mut room = self.options.chunk(self.running.iter().any(|stream| stream.bonus.is_some()));
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
            let (choices, failure) = match self.choose(at, &answers, row) {
                Ok(choice) => (vec![choice], None),
                Err(StreamError::Device(error)) => return Err(error),
                Err(error) => (Vec::new(), Some(error)),
            };
            if let Some(end) = self.deliver(at, choices, failure, step).end {
                ended.push((at, end));
            }
        }
        self.end(ended, step);
        Ok(())
    }

    /// The next token of the running stream `at`, from what the target says after row `row` of the last pass.
    pub(crate) fn choose(&mut self, at: usize, answers: &Answers, row: usize) -> Result<Choice, StreamError> {
        let stream = &self.running[at];
        let (position, request) = (stream.next_position(), &stream.request);
        let held: Vec<f32>;
        let logits = match answers.row(row) {
            Answer::Token(Some(token)) => {
                return Ok(Choice { token, logprob: None, top_logprobs: Vec::new() });
            }
            Answer::Token(None) => {
                return Err(StreamError::Sample { position, reason: SampleError::NoFiniteMaximum });
            }
            Answer::Logits(logits) => logits,
            Answer::Held => {
                held = self.backend.logits(row)?;
                &held
            }
        };
        let (history, params) = (&stream.history, &request.params);
        let chosen = self.sampler.choose(logits, history, params, position as u64, request.choice);
        chosen.map_err(|reason| StreamError::Sample { position, reason })
    }
}
