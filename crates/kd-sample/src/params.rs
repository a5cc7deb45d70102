//! Sampling parameters and their limits.

use crate::error::ParamError;
use crate::history::History;
use crate::process;

/// Below it `logit / temperature` could overflow; far under any use, which takes 0 for greedy.
const MIN_TEMPERATURE: f64 = 1e-100;
/// Bound of biases and penalties: it keeps every processed logit finite.
const MAX_WEIGHT: f64 = 1e9;
/// The usual limit of OpenAI-compatible APIs.
const MAX_TOP_LOGPROBS: u32 = 20;

/// How a token is chosen. The default is greedy: temperature 0 and everything else off.
///
/// The limits are those of the arithmetic; an API that promises narrower ones (such as biases in -100..=100) checks them
/// itself.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the largest logit. 0, or finite and at least 1e-100.
    pub temperature: f64,
    /// Keeps the k largest; 0 = off.
    pub top_k: u32,
    /// Keeps the shortest prefix of the sorted rest whose probability reaches this; at least 0, from 1 on it is off.
    pub top_p: f64,
    /// Keeps what is at least this fraction of the highest probability; 0..=1, 0 = off.
    pub min_p: f64,
    /// Divides positive and multiplies other logits of every id in prompt or answer; 1e-9..=1e9, 1 = off.
    pub repetition_penalty: f64,
    /// Subtracted once from every id in the answer; -1e9..=1e9.
    pub presence_penalty: f64,
    /// Subtracted from every id in the answer as often as it occurs there; -1e9..=1e9.
    pub frequency_penalty: f64,
    /// Added to logits before everything else, -1e9..=1e9; values for the same id add up.
    pub logit_bias: Vec<(u32, f64)>,
    /// Ids that are never chosen.
    pub forbidden_ids: Vec<u32>,
    /// The only ids that may be chosen, as a grammar permits them; `None` = all.
    pub allowed_ids: Option<Vec<u32>>,
    /// Tokens to generate before a stop id may be chosen.
    pub min_tokens: usize,
    /// Ids that end the answer; here they matter only while `min_tokens` forbids them.
    pub stop_ids: Vec<u32>,
    /// Key of the noise.
    pub seed: u64,
    /// `Some(n)` reports the token's log-probability and the n highest of the row, n at most 20; `None` skips the work.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            forbidden_ids: Vec::new(),
            allowed_ids: None,
            min_tokens: 0,
            stop_ids: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Checks every value against its limits and every id against a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// The first parameter out of its limits.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamError> {
        let range = |field, value: f64, ok: bool, limit| {
            if ok { Ok(()) } else { Err(ParamError::Range { field, limit, value }) }
        };
        let weight = |value: f64| value.abs() <= MAX_WEIGHT;
        let weight_limit = "in -1e9..=1e9";

        let t = self.temperature;
        let t_ok = t.is_finite() && (t == 0.0 || t >= MIN_TEMPERATURE);
        range("temperature", t, t_ok, "0, or finite and at least 1e-100")?;
        range("top_p", self.top_p, self.top_p.is_finite() && self.top_p >= 0.0, "finite and at least 0")?;
        range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "in 0..=1")?;
        let r = self.repetition_penalty;
        range("repetition_penalty", r, (1.0 / MAX_WEIGHT..=MAX_WEIGHT).contains(&r), "in 1e-9..=1e9")?;
        range("presence_penalty", self.presence_penalty, weight(self.presence_penalty), weight_limit)?;
        range("frequency_penalty", self.frequency_penalty, weight(self.frequency_penalty), weight_limit)?;
        let n = self.logprobs.unwrap_or(0);
        range("logprobs", f64::from(n), n <= MAX_TOP_LOGPROBS, "at most 20")?;

        for &(id, value) in &self.logit_bias {
            check_id("logit_bias", id, vocab)?;
            if !weight(value) {
                return Err(ParamError::Bias { id, limit: weight_limit, value });
            }
        }
        let allowed = self.allowed_ids.as_deref().unwrap_or_default();
        for (field, ids) in [
            ("forbidden_ids", &self.forbidden_ids[..]),
            ("allowed_ids", allowed),
            ("stop_ids", &self.stop_ids),
        ] {
            ids.iter().try_for_each(|&id| check_id(field, id, vocab))?;
        }
        Ok(())
    }

    /// Whether the token after `history` is drawn from the raw row by temperature and noise alone, with nothing to report
    /// about it: what a device can do that has seen neither history nor parameters.
    pub fn draws_only(&self, history: &History) -> bool {
        process::is_identity(self, history) && !self.cuts() && self.logprobs.is_none()
    }

    /// Whether a penalty has any effect.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether min_p, top_k or top_p has any effect.
    pub(crate) fn cuts(&self) -> bool {
        self.min_p > 0.0 || self.top_k > 0 || self.top_p < 1.0
    }
}

fn check_id(field: &'static str, id: u32, vocab: usize) -> Result<(), ParamError> {
    if (id as usize) < vocab { Ok(()) } else { Err(ParamError::Id { field, id, vocab }) }
}
