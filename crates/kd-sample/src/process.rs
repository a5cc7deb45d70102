//! Bias, masks and penalties: steps 1 to 3 of the specification.

use crate::error::SampleError;
use crate::history::{History, Seen};
use crate::params::SamplingParams;

/// Whether the steps would leave a row of this history as it is.
pub(crate) fn is_identity(params: &SamplingParams, history: &History) -> bool {
    params.logit_bias.is_empty()
        && params.forbidden_ids.is_empty()
        && params.allowed_ids.is_none()
        && !holds_back_stop_ids(params, history)
        && !params.penalises()
}

/// Applies the steps to `logits`. The ids of `params` must have been validated; `saved` is scratch.
pub(crate) fn apply(
    logits: &mut [f64],
    params: &SamplingParams,
    history: &History,
    saved: &mut Vec<f64>,
) -> Result<(), SampleError> {
    for &(id, bias) in &params.logit_bias {
        logits[id as usize] += bias;
    }
    if let Some(allowed) = &params.allowed_ids {
        saved.clear();
        saved.extend(allowed.iter().map(|&id| logits[id as usize]));
        logits.fill(f64::NEG_INFINITY);
        for (&id, &logit) in allowed.iter().zip(&*saved) {
            logits[id as usize] = logit;
        }
    }
    mask(logits, &params.forbidden_ids);
    if holds_back_stop_ids(params, history) {
        mask(logits, &params.stop_ids);
    }
    if params.penalises() {
        let vocab = logits.len();
        for seen in history.seen() {
            let logit =
                logits.get_mut(seen.id as usize).ok_or(SampleError::HistoryId { id: seen.id, vocab })?;
            *logit = penalised(*logit, seen, params);
        }
    }
    Ok(())
}

fn holds_back_stop_ids(params: &SamplingParams, history: &History) -> bool {
    history.generated().len() < params.min_tokens && !params.stop_ids.is_empty()
}

fn mask(logits: &mut [f64], ids: &[u32]) {
    for &id in ids {
        logits[id as usize] = f64::NEG_INFINITY;
    }
}

/// Repetition counts prompt and answer; presence and frequency count the answer alone.
fn penalised(logit: f64, seen: &Seen, params: &SamplingParams) -> f64 {
    let r = params.repetition_penalty;
    let logit = if logit > 0.0 { logit / r } else { logit * r };
    if seen.generated == 0 {
        return logit;
    }
    logit - params.presence_penalty - params.frequency_penalty * f64::from(seen.generated)
}
