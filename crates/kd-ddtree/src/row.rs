//! Draft rows: the best tokens of one draft position with their log-probabilities.

use crate::error::RowError;
use crate::order::{from_ordered, to_ordered};
use crate::scorer::Child;

/// The best tokens of one draft position, best first; equal log-probabilities are ordered by token id.
///
/// A row never holds a token of probability zero, so it may be shorter than the `K` asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftRow {
    children: Vec<Child>,
}

impl DraftRow {
    /// The `k` best tokens of a whole row of logits `[vocab]`, with their log-softmax over the row.
    ///
    /// A NaN counts as minus infinity. `None` if the maximum is not finite (all impossible, or a `+inf`): nothing
    /// can be concluded from such a row, and the tree must end before it. O(vocab) for any `k`.
    pub fn from_logits(logits: &[f32], k: usize) -> Option<DraftRow> {
        DraftRow::from_logits_with(logits, k, exp_sum)
    }

    /// As [`from_logits`](DraftRow::from_logits) for a caller that has a faster sum: `sum(logits, max)` is
    /// `Σ e^(x − max)` over all logits that are not NaN, `max` the finite largest.
    pub fn from_logits_with(logits: &[f32], k: usize, sum: impl Fn(&[f32], f32) -> f64) -> Option<DraftRow> {
        DraftRow::merge(&[RowShard::scan_with(logits, 0, k, sum)], k)
    }

    /// The `k` best tokens of a row whose vocabulary is split over shards, in any order. As [`from_logits`]
    /// (and up to the rounding of the normaliser equal to it), provided that each shard was scanned with at least
    /// this `k`.
    ///
    /// [`from_logits`]: DraftRow::from_logits
    pub fn merge(shards: &[RowShard], k: usize) -> Option<DraftRow> {
        let max = shards.iter().map(|s| s.max).fold(f32::NEG_INFINITY, f32::max);
        if !max.is_finite() {
            return None;
        }
        let max = f64::from(max);
        let sum: f64 = shards.iter().map(|s| s.sum * (f64::from(s.max) - max).exp()).sum();
        let mut best: Vec<u64> = shards.iter().flat_map(|s| &s.best).copied().collect();
        best.sort_unstable_by(|a, b| b.cmp(a));
        let log_sum = sum.ln();
        let children = best
            .into_iter()
            .take(k)
            .map(|entry| Child {
                token: token_of(entry),
                logprob: (f64::from(logit_of(entry)) - max - log_sum) as f32,
            })
            .take_while(|child| child.logprob.is_finite())
            .collect();
        Some(DraftRow { children })
    }

    /// A row from a top-K found elsewhere (on a device, by a calibrator).
    ///
    /// The tokens must be distinct, as those of any top-K are; a repeated one would only cost a node that no walk
    /// reaches.
    ///
    /// # Errors
    /// If the lists differ in length, or the log-probabilities are not finite and descending.
    pub fn from_top_k(tokens: &[u32], logprobs: &[f32]) -> Result<DraftRow, RowError> {
        if tokens.len() != logprobs.len() {
            return Err(RowError::Length { tokens: tokens.len(), logprobs: logprobs.len() });
        }
        let mut previous = f32::INFINITY;
        for (rank, &value) in logprobs.iter().enumerate() {
            if !value.is_finite() {
                return Err(RowError::NotFinite { rank, value });
            }
            if value > previous {
                return Err(RowError::NotDescending { rank, value, previous });
            }
            previous = value;
        }
        let children =
            tokens.iter().zip(logprobs).map(|(&token, &logprob)| Child { token, logprob }).collect();
        Ok(DraftRow { children })
    }

    /// The tokens with their log-probabilities, best first.
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// The token at `rank`, counted from 0.
    pub fn child(&self, rank: usize) -> Option<Child> {
        self.children.get(rank).copied()
    }
}

/// The rows of a drafted block `[depths, vocab]`, each cut to its `k` best tokens, up to the first one that
/// [`DraftRow::from_logits`] refuses: the tree can be no deeper than the rows that mean something.
///
/// An incomplete last row and a vocabulary of 0 give no row.
pub fn draft_rows(logits: &[f32], vocab: usize, k: usize) -> Vec<DraftRow> {
    if vocab == 0 {
        return Vec::new();
    }
    logits.chunks_exact(vocab).map_while(|row| DraftRow::from_logits(row, k)).collect()
}

/// What one vocabulary shard contributes to a draft row: its best tokens under their *global* ids and its part of
/// the softmax normaliser.
#[derive(Debug, Clone, PartialEq)]
pub struct RowShard {
    /// (ordered logit, !token), best first: the integer order is logit descending, token ascending.
    best: Vec<u64>,
    max: f32,
    /// Sum of exp(logit - max); 0 where `max` is not finite.
    sum: f64,
}

impl RowShard {
    /// Scans the logits of tokens `first_token..`, keeping the `k` best.
    pub fn scan(logits: &[f32], first_token: u32, k: usize) -> RowShard {
        RowShard::scan_with(logits, first_token, k, exp_sum)
    }

    fn scan_with(logits: &[f32], first_token: u32, k: usize, sum: impl Fn(&[f32], f32) -> f64) -> RowShard {
        let k = k.min(logits.len());
        // Candidates gather in twice the room and are halved when it is full: O(vocab) in all. Later equals of
        // the threshold have higher ids and lose; NaN and -inf never exceed it.
        let room = 2 * k.max(32);
        let mut best = Vec::with_capacity(room.min(logits.len()));
        let mut threshold = f32::NEG_INFINITY;
        let mut max = f32::NEG_INFINITY;
        // Few blocks hold anything above the threshold, and their maxima are found several logits at a time.
        const BLOCK: u32 = 32;
        for (first, block) in
            (first_token..=u32::MAX).step_by(BLOCK as usize).zip(logits.chunks(BLOCK as usize))
        {
            if !exceeds(block, threshold) {
                continue;
            }
            for (token, &logit) in (first..=u32::MAX).zip(block) {
                if logit > threshold {
                    max = max.max(logit);
                    best.push(pack(logit, token));
                    if best.len() == room {
                        threshold = keep_best(&mut best, k).unwrap_or(max);
                    }
                }
            }
        }
        keep_best(&mut best, k);
        best.sort_unstable_by(|a, b| b.cmp(a));
        let sum = if max.is_finite() { sum(logits, max) } else { 0.0 };
        RowShard { best, max, sum }
    }
}

/// `Σ e^(x − max)` over all `x` that are not NaN, for a finite `max` above them.
///
/// `e^d = 2^n · e^r` with `d = n · ln 2 + r`; `e^r` by its Taylor polynomial, within two units in the last place of f32.
/// Plain operations on a few lanes at a time, which compile to vectors; `f32::exp` would be a call for each logit.
fn exp_sum(logits: &[f32], max: f32) -> f64 {
    const LANES: usize = 8;
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Adding and taking away this rounds to the nearest whole number; the sum's low bits are that number.
    const ROUND: f32 = 12_582_912.0;
    // Without branches or `f32::max`, which the compiler would keep to one logit at a time.
    let term = |x: f32| {
        let d = x - max;
        let d = if d > -87.0 { d } else { -87.0 };
        let shifted = d * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (d - n * LN2[0]) - n * LN2[1];
        let mut p = 1.0 / 5040.0;
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = p * r + c;
        }
        let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
        let counts = u32::from(x > f32::NEG_INFINITY).wrapping_neg();
        f32::from_bits((p * power).to_bits() & counts)
    };
    let mut sums = [0.0f64; LANES];
    let mut add = |lanes: &[f32; LANES]| {
        // `lanes.map` is a call of its own, one lane at a time.
        for (sum, &x) in sums.iter_mut().zip(lanes) {
            *sum += f64::from(term(x));
        }
    };
    let (chunks, rest) = logits.as_chunks();
    chunks.iter().for_each(&mut add);
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    sums.iter().sum()
}

/// Whether a logit is above the threshold; NaN never is.
fn exceeds(block: &[f32], threshold: f32) -> bool {
    // Maxima of four lanes, which the compiler keeps in one register: a single one would wait for itself at each logit.
    let mut most = [f32::NEG_INFINITY; 4];
    let (fours, rest) = block.as_chunks::<4>();
    for four in fours {
        for (most, &x) in most.iter_mut().zip(four) {
            *most = if x > *most { x } else { *most };
        }
    }
    most.iter().chain(rest).any(|&x| x > threshold)
}

/// Cuts the list to its `k` largest entries and returns the smallest logit kept.
fn keep_best(best: &mut Vec<u64>, k: usize) -> Option<f32> {
    if best.len() > k && k > 0 {
        best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    }
    best.truncate(k);
    (best.len() == k).then(|| best.last().copied().map(logit_of)).flatten()
}

fn pack(logit: f32, token: u32) -> u64 {
    u64::from(to_ordered(logit)) << 32 | u64::from(!token)
}

fn logit_of(entry: u64) -> f32 {
    from_ordered((entry >> 32) as u32)
}

fn token_of(entry: u64) -> u32 {
    !(entry as u32)
}

#[cfg(test)]
mod tests {
    use super::exp_sum;

    #[test]
    fn the_sum_of_exponentials_is_right_and_leaves_out_what_has_none() {
        for len in [1, 7, 8, 9, 1000] {
            let logits: Vec<f32> = (0..len).map(|i| -((i * 37 % 101) as f32) * 1.3).collect();
            let exact: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let got = exp_sum(&logits, 0.0);
            assert!((got / exact - 1.0).abs() < 3e-7, "{len} logits: {got} for {exact}");
        }
        let odd = [0.0, f32::NAN, f32::NEG_INFINITY, -200.0];
        assert!((exp_sum(&odd, 0.0) - 1.0).abs() < 1e-30, "e^0 alone");
    }
}
