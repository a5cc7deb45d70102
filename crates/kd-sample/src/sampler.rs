//! The sampler: all steps from a raw row to a token.

use crate::error::SampleError;
use crate::history::History;
use crate::noise::Noise;
use crate::params::SamplingParams;
use crate::scan::{Logit, Peak, peak};
use crate::top::Candidate;
use crate::{cuts, draw, logprobs, process};

/// A chosen token and what was asked to be reported about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The token id.
    pub token: u32,
    /// Its log-probability in the raw row, if [`SamplingParams::logprobs`] is set.
    pub logprob: Option<f64>,
    /// The highest log-probabilities of the raw row, best first, equal values by ascending id.
    pub top_logprobs: Vec<(u32, f64)>,
}

/// Chooses tokens. It holds nothing but scratch memory, so results do not depend on earlier calls.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f64>,
    saved: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler without scratch memory yet; it grows to the largest row and is then reused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the token at absolute index `position` of parallel answer `choice` from the row of one position.
    ///
    /// `row` has one logit per token id; `history` holds the tokens before `position`. Nothing is allocated once the
    /// scratch memory has grown, unless the highest log-probabilities are asked for.
    ///
    /// # Errors
    /// [`SampleError::NoFiniteMaximum`] if the row holds NaN or +inf, or if no finite entry is left after the penalties;
    /// also if a parameter is out of its limits or an id out of the row.
    pub fn choose(
        &mut self,
        row: &[f32],
        history: &History,
        params: &SamplingParams,
        position: u64,
        choice: u32,
    ) -> Result<Choice, SampleError> {
        let raw_peak = checked_peak(row, params)?;
        let noise = Noise::new(params.seed, choice, position);
        let token = if process::is_identity(params, history) {
            pick(row, raw_peak, params, &noise, &mut self.candidates)
        } else {
            let peak = self.process(row, history, params)?;
            pick(&self.logits, peak, params, &noise, &mut self.candidates)
        };
        let Some(n) = params.logprobs else {
            return Ok(Choice { token, logprob: None, top_logprobs: Vec::new() });
        };
        let lse = logprobs::log_sum_exp(row, raw_peak);
        let logprob = Some(f64::from(row[token as usize]) - lse);
        let top_logprobs = logprobs::highest(row, n as usize, lse, &mut self.candidates);
        Ok(Choice { token, logprob, top_logprobs })
    }

    /// The kept ids in ascending order, with the probability of each to be chosen.
    ///
    /// For tests and explanations: [`choose`](Self::choose) draws from exactly this distribution. At temperature 0 it is
    /// the largest logit alone.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn distribution(
        &mut self,
        row: &[f32],
        history: &History,
        params: &SamplingParams,
    ) -> Result<Vec<(u32, f64)>, SampleError> {
        checked_peak(row, params)?;
        let peak = self.process(row, history, params)?;
        if params.temperature == 0.0 {
            return Ok(vec![(peak.id, 1.0)]);
        }
        let kept = &mut self.candidates;
        cuts::keep(&self.logits, params, peak, kept);
        kept.sort_unstable_by_key(|c| c.id);
        let best = peak.value / params.temperature;
        let total: f64 = kept.iter().map(|c| cuts::weight(c, best)).sum();
        Ok(kept.iter().map(|c| (c.id, cuts::weight(c, best) / total)).collect())
    }

    /// Fills `self.logits` with the row after bias, masks and penalties and finds its peak.
    fn process(
        &mut self,
        row: &[f32],
        history: &History,
        params: &SamplingParams,
    ) -> Result<Peak, SampleError> {
        self.logits.clear();
        self.logits.extend(row.iter().map(|&x| f64::from(x)));
        process::apply(&mut self.logits, params, history, &mut self.saved)?;
        peak(&self.logits).ok_or(SampleError::NoFiniteMaximum)
    }
}

/// Checks parameters and raw row before anything else is done with them.
fn checked_peak(row: &[f32], params: &SamplingParams) -> Result<Peak, SampleError> {
    if u32::try_from(row.len()).is_err() {
        return Err(SampleError::RowTooLong { len: row.len() });
    }
    params.validate(row.len())?;
    peak(row).ok_or(SampleError::NoFiniteMaximum)
}

/// Temperature, cuts and draw on a row whose peak is known.
fn pick<T: Logit>(
    row: &[T],
    peak: Peak,
    params: &SamplingParams,
    noise: &Noise,
    candidates: &mut Vec<Candidate>,
) -> u32 {
    if params.temperature == 0.0 {
        peak.id
    } else if params.cuts() {
        cuts::keep(row, params, peak, candidates);
        draw::from_candidates(candidates, noise)
    } else {
        draw::from_row(row, params.temperature, peak, noise)
    }
}
