//! The state of one request.

use std::time::Instant;

use kd_attn::PageId;
use kd_ddtree::budget::Record;
use kd_sample::{Choice, History, stop::StopMatcher};
use kd_text::{StreamDecoder, Tokenizer};

use crate::backend::{Draw, Sequence};
use crate::{FinishReason, Request, RequestId, StreamError, StreamStats, SubmitError};

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// Where its committed tokens lie. Without slot and pages until it is admitted.
    pub(crate) sequence: Sequence,
    /// The newest token, not committed yet; `None` while the prompt is being read.
    pub(crate) bonus: Option<u32>,
    pub(crate) history: History,
    pub(crate) stats: StreamStats,
    /// What its drafts were worth.
    pub(crate) record: Record,
    text: Option<Text>,
    /// Admission, then the first token.
    since: Instant,
}

/// Turns tokens into text as they come.
#[derive(Debug)]
struct Text {
    tokenizer: Tokenizer,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    keep_markers: bool,
}

impl Text {
    /// Appends what has become certain to `out`; true when a stop string is complete.
    fn push(&mut self, token: u32, out: &mut String) -> Result<bool, StreamError> {
        let shown = if self.keep_markers {
            !self.tokenizer.is_special(token)
        } else {
            !self.tokenizer.is_control(token)
        };
        if !shown {
            return Ok(false);
        }
        let piece = self.decoder.push(token)?;
        Ok(self.matcher.push(&piece, out).is_some())
    }

    fn finish(&mut self, out: &mut String) {
        let tail = self.decoder.finish();
        self.matcher.push(&tail, out);
        self.matcher.finish(out);
    }
}

/// What became of newly chosen tokens.
pub(crate) struct Accepted {
    /// How many of them belong to the answer.
    pub(crate) taken: usize,
    /// How many of them a round counts: up to a stop, but not cut by `max_tokens`.
    pub(crate) gained: usize,
    pub(crate) text: String,
    pub(crate) finish: Option<FinishReason>,
    /// Set if the token after the taken ones has no text.
    pub(crate) failure: Option<StreamError>,
}

impl Stream {
    pub(crate) fn new(
        id: RequestId,
        request: Request,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Self, SubmitError> {
        let matcher = StopMatcher::new(&request.stop)?;
        let text = match tokenizer {
            Some(tokenizer) => Some(Text {
                // What is left out is decided here, before the decoder sees a token.
                decoder: StreamDecoder::new(tokenizer, false),
                tokenizer: tokenizer.clone(),
                matcher,
                keep_markers: request.keep_markers,
            }),
            None if request.stop.is_empty() => None,
            None => return Err(SubmitError::NoTokenizer),
        };
        let history = History::new(&request.prompt);
        let since = Instant::now();
        let sequence = Sequence { drafts: request.speculation.drafts(), ..Sequence::default() };
        let stats = StreamStats::default();
        let record = Record::new(request.params.temperature);
        Ok(Self { id, request, sequence, bonus: None, history, stats, record, text, since })
    }

    /// Starts the clock and takes a slot and the pages for the whole request.
    pub(crate) fn admit(&mut self, slot: usize, pages: Vec<PageId>) {
        (self.sequence.slot, self.sequence.pages) = (slot, pages);
        self.since = Instant::now();
    }

    /// Most tokens that are ever committed.
    pub(crate) fn longest(&self) -> usize {
        self.request.prompt.len() + self.request.max_tokens
    }

    /// Absolute position of the next token to be chosen.
    pub(crate) fn next_position(&self) -> usize {
        self.request.prompt.len() + self.history.generated().len()
    }

    /// How its next token is drawn, if that takes nothing but the logits. It holds for every node of a tree that hangs
    /// on it: of all that a history changes, only `min_tokens` ends, and nothing begins.
    pub(crate) fn draw(&self) -> Option<Draw> {
        let Request { ref params, choice, .. } = self.request;
        let draw = Draw { temperature: params.temperature, seed: params.seed, choice };
        params.draws_only(&self.history).then_some(draw)
    }

    /// The prompt has been read.
    pub(crate) fn end_prefill(&mut self) {
        self.stats.prefill = self.since.elapsed();
        self.since = Instant::now();
    }

    /// Appends chosen tokens, oldest first, up to the one that ends the answer.
    pub(crate) fn accept(&mut self, choices: &[Choice]) -> Accepted {
        let (gained, text) = (choices.len(), String::new());
        let mut accepted = Accepted { taken: 0, gained, text, finish: None, failure: None };
        for (i, choice) in choices.iter().enumerate() {
            let stop_id = self.request.params.stop_ids.contains(&choice.token);
            if accepted.finish.is_some() {
                if stop_id {
                    accepted.gained = i + 1;
                    break;
                }
                continue;
            }
            let stopped = match &mut self.text {
                Some(text) if !stop_id => text.push(choice.token, &mut accepted.text),
                _ => Ok(false),
            };
            let stopped = match stopped {
                Ok(stopped) => stopped,
                Err(error) => {
                    // The tokens before it stay, as plain decoding would have given them one by one.
                    (accepted.gained, accepted.failure) = (i, Some(error));
                    break;
                }
            };
            accepted.taken = i + 1;
            self.history.push(choice.token);
            if stop_id || stopped {
                accepted.finish = Some(FinishReason::Stop);
                accepted.gained = i + 1;
                break;
            }
            if self.history.generated().len() == self.request.max_tokens {
                accepted.finish = Some(FinishReason::Length);
            }
        }
        self.stats.generated = self.history.generated().len() as u64;
        self.bonus = choices[..accepted.taken].last().map(|choice| choice.token);
        if accepted.finish.is_some() {
            self.finish(&mut accepted.text);
        }
        accepted
    }

    /// Appends the text that was held back, and stops the clock.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if let Some(state) = &mut self.text {
            state.finish(text);
        }
        if self.stats.generated > 0 {
            self.stats.decode = self.since.elapsed();
        } else {
            self.stats.prefill = self.since.elapsed();
        }
    }
}
