//! From the best tokens of each row, as the device found them, to rows that a tree is built from.

use kd_ddtree::DraftRow;
use kd_kernels::{Arrived, KernelError, Landing, Sent};

use super::CudaDrafter;
use crate::cuda::CudaError;
use crate::cuda::error::within;

/// Tokens of a row that the device finds.
pub(crate) const TOP: usize = 64;

/// What one rank found in the rows of a draft.
#[derive(Debug, Clone, PartialEq)]
pub struct BestTokens {
    /// `[rows, 64]`, best first; -1 where there are no more.
    pub tokens: Vec<i32>,
    /// Their logits.
    pub logits: Vec<f32>,
    /// `[rows, 2]`: the largest logit of a row, and the sum of `e^(x - largest)`.
    pub stats: Vec<f32>,
    /// 1 unless a row has a NaN, a +inf or no finite entry.
    pub finite: Vec<i32>,
}

/// [`BestTokens`] on their way to the host.
#[derive(Debug, Clone, Copy)]
pub struct SentTokens {
    tokens: Sent<i32>,
    logits: Sent<f32>,
    stats: Sent<f32>,
    finite: Sent<i32>,
}

impl SentTokens {
    /// Once they are there.
    pub fn arrived(&self, arrived: Arrived<'_>) -> BestTokens {
        BestTokens {
            tokens: arrived.get(self.tokens).to_vec(),
            logits: arrived.get(self.logits).to_vec(),
            stats: arrived.get(self.stats).to_vec(),
            finite: arrived.get(self.finite).to_vec(),
        }
    }

    /// Bytes of a [`Landing`] that `rows` rows take.
    pub fn bytes(rows: usize) -> usize {
        let (best, stats) = (Landing::bytes::<i32>(rows * TOP), Landing::bytes::<f32>(rows * 2));
        2 * best + stats + Landing::bytes::<i32>(rows)
    }
}

impl CudaDrafter {
    /// Enqueues the copies of what this rank finds in the last draft of `streams` streams.
    ///
    /// # Errors
    /// More streams than planned, no room, a failed copy.
    pub fn send_best(&self, landing: &mut Landing, streams: usize) -> Result<SentTokens, CudaError> {
        within("the number of streams of a draft", streams, self.limits.streams)?;
        let (rows, memory) = (streams * self.dims.drafted(), &self.memory);
        let mut send = || -> Result<SentTokens, KernelError> {
            Ok(SentTokens {
                tokens: landing.send(&memory.tokens.slice(..rows * TOP))?,
                logits: landing.send(&memory.values.slice(..rows * TOP))?,
                stats: landing.send(&memory.stats.slice(..rows * 2))?,
                finite: landing.send(&memory.finite.slice(..rows))?,
            })
        };
        Ok(send()?)
    }
}

impl BestTokens {
    /// The `k` (at most 64) best tokens of row `row` of a vocabulary split over `ranks`, with their log-probabilities under
    /// the softmax over all of it. Equal logits are ordered by token. `None` for a row that is not finite at some rank or
    /// that a rank does not have.
    pub fn row(ranks: &[Self], row: usize, k: usize) -> Option<DraftRow> {
        let stats = |rank: &Self| Some((*rank.stats.get(2 * row)?, *rank.stats.get(2 * row + 1)?));
        let whole = |rank: &Self| rank.finite.get(row) == Some(&1);
        if ranks.is_empty() || !ranks.iter().all(whole) {
            return None;
        }
        let stats: Vec<(f32, f32)> = ranks.iter().map(stats).collect::<Option<_>>()?;
        let max = stats.iter().map(|(max, _)| *max).fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = stats.iter().map(|(own, sum)| f64::from(*sum) * f64::from(own - max).exp()).sum();
        let normaliser = f64::from(max) + sum.ln();
        // Each rank's are in order, so no more than its first `k` are among the best of all.
        let k = k.min(TOP);
        let mut best = Vec::with_capacity(ranks.len() * k);
        best.extend(ranks.iter().flat_map(|rank| rank.candidates(row).take(k)));
        if ranks.len() > 1 {
            best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            best.truncate(k);
        }
        let (logprobs, tokens): (Vec<f32>, Vec<u32>) =
            best.into_iter().map(|(logit, token)| ((f64::from(logit) - normaliser) as f32, token)).unzip();
        DraftRow::from_top_k(&tokens, &logprobs).ok()
    }

    fn candidates(&self, row: usize) -> impl Iterator<Item = (f32, u32)> {
        let span = row * TOP..(row + 1) * TOP;
        let tokens = self.tokens.get(span.clone()).unwrap_or_default();
        let logits = self.logits.get(span).unwrap_or_default();
        let pairs = tokens.iter().zip(logits);
        pairs.filter_map(|(token, logit)| Some((*logit, u32::try_from(*token).ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `lm_head_top_k` of rank `rank` gives for one row of logits.
    fn found(logits: &[f32], rank: usize) -> BestTokens {
        let mut order: Vec<usize> = (0..logits.len()).filter(|i| logits[*i] > f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.resize(TOP.max(order.len()), usize::MAX);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let token = |i: &usize| if *i < logits.len() { (rank * logits.len() + i) as i32 } else { -1 };
        BestTokens {
            tokens: order.iter().take(TOP).map(token).collect(),
            logits: order.iter().take(TOP).map(|i| logits.get(*i).copied().unwrap_or(f32::NAN)).collect(),
            stats: vec![max, sum as f32],
            finite: vec![i32::from(logits.iter().all(|x| x.is_finite()))],
        }
    }

    proptest! {
        #[test]
        fn ranks_together_find_what_the_whole_row_has(
            row in proptest::collection::vec((-40i32..40).prop_map(|x| x as f32 / 4.0), 160),
            k in 1usize..=TOP,
        ) {
            let expected = DraftRow::from_logits(&row, k).expect("finite");
            for ranks in [1, 2, 4] {
                let parts: Vec<_> = row.chunks(160 / ranks).enumerate().map(|(i, part)| found(part, i)).collect();
                let merged = BestTokens::row(&parts, 0, k).expect("finite");
                for (a, b) in merged.children().iter().zip(expected.children()) {
                    prop_assert_eq!(a.token, b.token);
                    prop_assert!((a.logprob - b.logprob).abs() <= 1e-5 * b.logprob.abs().max(1.0));
                }
                prop_assert_eq!(merged.children().len(), expected.children().len());
            }
        }
    }

    #[test]
    fn a_row_that_is_not_finite_at_one_rank_is_no_row() {
        let good = found(&[1.0, 2.0], 0);
        assert!(BestTokens::row(std::slice::from_ref(&good), 0, 2).is_some());
        let bad = found(&[f32::NAN, 2.0], 1);
        assert!(BestTokens::row(&[good.clone(), bad], 0, 2).is_none());
        assert!(BestTokens::row(&[good], 1, 2).is_none(), "a row that was not computed");
        assert!(BestTokens::row(&[], 0, 2).is_none());
    }
}
