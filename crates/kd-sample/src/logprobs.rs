//! Log-probabilities of the raw row, as reported beside the token.

use crate::scan::Peak;
use crate::top::{Candidate, best_first, top_k};

/// The log of the sum of the row's exponentials; `peak` is the row's own.
pub(crate) fn log_sum_exp(row: &[f32], peak: Peak) -> f64 {
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - peak.value).exp()).sum();
    peak.value + sum.ln()
}

/// The `n` highest entries with their log-probabilities, best first, equal values by ascending id, without -inf entries.
pub(crate) fn highest(
    row: &[f32],
    n: usize,
    log_sum_exp: f64,
    scratch: &mut Vec<Candidate>,
) -> Vec<(u32, f64)> {
    top_k(row, n, f64::NEG_INFINITY, scratch);
    scratch.sort_unstable_by(best_first);
    scratch.iter().map(|c| (c.id, c.score - log_sum_exp)).collect()
}
