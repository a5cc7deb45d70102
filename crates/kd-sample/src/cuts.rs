//! min_p, top_k and top_p: steps 5 to 7 of the specification.

use crate::params::SamplingParams;
use crate::scan::{Logit, Peak};
use crate::top::{Candidate, best_first, top_k};

/// Slack of the top_p prefilter, far above the rounding of a logarithm; the prefix itself is cut without slack.
const SLACK: f64 = 1e-6;
/// The range that holds the end of the top_p prefix is halved down to this size, then sorted.
const SORTED: usize = 64;

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

/// Cuts to the shortest best-first prefix whose share of the weight is at least `top_p`, in linear time on average.
fn keep_nucleus(out: &mut Vec<Candidate>, top_p: f64, best: f64) {
    let total: f64 = out.iter().map(|c| weight(c, best)).sum();
    // All entries under this weight together have less than a share of 1 - top_p, so the prefix ends before them.
    let negligible = ((1.0 - top_p) * total / out.len() as f64).ln() - SLACK;
    out.retain(|c| c.score - best >= negligible);

    // The prefix ends within start..end, and the entries before start weigh `sum`.
    let target = top_p * total;
    let (mut start, mut end, mut sum) = (0, out.len(), 0.0);
    while end - start > SORTED {
        let half = (end - start) / 2;
        let (better, _, _) = out[start..end].select_nth_unstable_by(half, best_first);
        let with_better = better.iter().fold(sum, |sum, c| sum + weight(c, best));
        if with_better >= target {
            end = start + half;
        } else {
            (start, sum) = (start + half, with_better);
        }
    }
    out[start..end].sort_unstable_by(best_first);
    let last = out[start..end].iter().position(|c| {
        sum += weight(c, best);
        sum >= target
    });
    out.truncate(last.map_or(end, |i| start + i + 1));
}
