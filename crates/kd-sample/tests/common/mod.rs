//! The specification written out plainly: whole-vocabulary sorts, no shortcut, one step after the other.

use kd_sample::SamplingParams;
use kd_sample::noise::gumbel;

/// What the specification says about one row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expected {
    pub(crate) token: u32,
    /// Kept ids ascending, with their probabilities.
    pub(crate) kept: Vec<(u32, f64)>,
}

/// Steps 0 to 8; `None` is the refusal.
pub(crate) fn specification(
    row: &[f32],
    prompt: &[u32],
    generated: &[u32],
    params: &SamplingParams,
    position: u64,
    choice: u32,
) -> Option<Expected> {
    let finite = |l: &[f64]| l.iter().any(|x| x.is_finite());
    let mut l: Vec<f64> = row.iter().map(|&x| x.into()).collect();
    if l.iter().any(|&x| x.is_nan() || x == f64::INFINITY) || !finite(&l) {
        return None;
    }
    for &(id, bias) in &params.logit_bias {
        l[id as usize] += bias;
    }
    for id in 0..l.len() as u32 {
        let outside = params.allowed_ids.as_ref().is_some_and(|ids| !ids.contains(&id));
        let early_stop = generated.len() < params.min_tokens && params.stop_ids.contains(&id);
        if params.forbidden_ids.contains(&id) || outside || early_stop {
            l[id as usize] = f64::NEG_INFINITY;
        }
    }
    for id in 0..l.len() as u32 {
        let x = &mut l[id as usize];
        if prompt.contains(&id) || generated.contains(&id) {
            *x = if *x > 0.0 { *x / params.repetition_penalty } else { *x * params.repetition_penalty };
        }
        let count = generated.iter().filter(|&&g| g == id).count();
        if count > 0 {
            *x -= params.presence_penalty + params.frequency_penalty * count as f64;
        }
    }
    if !finite(&l) {
        return None;
    }
    let mut ids: Vec<u32> = (0..l.len() as u32).filter(|&i| l[i as usize].is_finite()).collect();
    ids.sort_by(|&a, &b| l[b as usize].partial_cmp(&l[a as usize]).unwrap().then(a.cmp(&b)));
    if params.temperature == 0.0 {
        return Some(Expected { token: ids[0], kept: vec![(ids[0], 1.0)] });
    }
    let z: Vec<f64> = l.iter().map(|x| x / params.temperature).collect();
    let max = z[ids[0] as usize];
    let weight = |i: u32| (z[i as usize] - max).exp();
    ids.retain(|&i| weight(i) >= params.min_p);
    if params.top_k > 0 {
        ids.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: f64 = ids.iter().map(|&i| weight(i)).sum();
        let mut sum = 0.0;
        let end = ids.iter().position(|&i| {
            sum += weight(i);
            sum / total >= params.top_p
        });
        ids.truncate(end.map_or(ids.len(), |e| e + 1));
    }
    ids.sort_unstable();
    let total: f64 = ids.iter().map(|&i| weight(i)).sum();
    let kept = ids.iter().map(|&i| (i, weight(i) / total)).collect();
    let score = |i: u32| z[i as usize] + gumbel(params.seed, choice, position, i);
    let token = ids.iter().copied().reduce(|a, b| if score(b) > score(a) { b } else { a })?;
    Some(Expected { token, kept })
}

/// Pearson's statistic of `counts` against `probabilities`, over the entries that are possible.
pub(crate) fn chi_square(counts: &[u64], probabilities: &[f64]) -> f64 {
    let n = counts.iter().sum::<u64>() as f64;
    let terms = counts.iter().zip(probabilities).filter(|&(_, &p)| p > 0.0);
    terms.map(|(&c, &p)| (c as f64 - n * p).powi(2) / (n * p)).sum()
}
