//! min_p, top_k and top_p: steps 5 to 7 of the specification.

use crate::params::SamplingParams;
use crate::scan::{Logit, Peak};
use crate::top::{Candidate, best_first, top_k};

/// Slack of the top_p prefilter, far above the rounding of a logarithm; the prefix itself is cut without slack.
const SLACK: f64 = 1e-6;
/// Size of the first sorted piece of the top_p prefix, and the growth of the next ones.
const FIRST_PIECE: usize = 64;
const PIECE_GROWTH: usize = 4;

/// Overwrites `out` with the entries that the cuts keep, scored by logit / temperature, in no particular order.
///
/// `temperature` must not be 0.
pub(crate) fn keep<T: Logit>(row: &[T], params: &SamplingParams, peak: Peak, out: &mut Vec<Candidate>) {
    let t = params.temperature;
    // p_i >= min_p * max p, in the logarithm; ln 0 = -inf is "off". Adding what is not positive keeps the peak itself.
    let floor = peak.value + t * params.min_p.ln();
    let k = if params.top_k == 0 { row.len() } else { (params.top_k as usize).min(row.len()) };
    top_k(row, k, floor, out);
    for c in out.iter_mut() {
        c.score /= t;
    }
    if params.top_p < 1.0 {
        keep_nucleus(out, params.top_p, peak.value / t);
    }
}

/// The weight of a score relative to that of the best entry.
pub(crate) fn weight(c: &Candidate, best: f64) -> f64 {
    (c.score - best).exp()
}

/// Cuts to the shortest best-first prefix whose share of the weight is at least `top_p`; sorts little more than that.
fn keep_nucleus(out: &mut Vec<Candidate>, top_p: f64, best: f64) {
    let total: f64 = out.iter().map(|c| weight(c, best)).sum();
    // All entries under this weight together have less than a share of 1 - top_p, so the prefix ends before them.
    let negligible = ((1.0 - top_p) * total / out.len() as f64).ln() - SLACK;
    out.retain(|c| c.score - best >= negligible);

    let target = top_p * total;
    let (mut sum, mut sorted, mut piece) = (0.0, 0, FIRST_PIECE);
    while sorted < out.len() {
        let rest = &mut out[sorted..];
        let n = piece.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n - 1, best_first);
        }
        rest[..n].sort_unstable_by(best_first);
        for (i, c) in rest[..n].iter().enumerate() {
            sum += weight(c, best);
            if sum >= target {
                out.truncate(sorted + i + 1);
                return;
            }
        }
        sorted += n;
        piece *= PIECE_GROWTH;
    }
}
