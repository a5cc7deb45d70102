//! What a kernel says are the best tokens of a row, against `kd_ddtree::DraftRow`.

use kd_ddtree::DraftRow;

/// How far a log-probability may be: sums of up to 2^18 f32 terms in another order, and one f32 rounding.
const LOGPROB: f32 = 2e-5;

/// The results for one row.
pub(super) struct Best {
    pub(super) tokens: Vec<i32>,
    pub(super) values: Vec<f32>,
    /// The maximum, and the sum of `e^(x - max)`.
    pub(super) stats: Vec<f32>,
    pub(super) finite: Vec<i32>,
}

impl Best {
    /// Compares with the CPU's choice among `logits`, whose first token is `first`.
    pub(super) fn judge(&self, logits: &[f32], first: usize) -> Result<(), String> {
        let bad = logits.iter().any(|x| x.is_nan() || *x == f32::INFINITY);
        let usable = !bad && logits.iter().any(|x| x.is_finite());
        if self.finite != [i32::from(usable)] {
            return Err(format!("finite is {:?}", self.finite));
        }
        // A row without a finite maximum has no CPU result: the flag is all that counts.
        let Some(expected) = DraftRow::from_logits(logits, self.tokens.len()) else { return Ok(()) };
        if bad {
            return Ok(());
        }
        let lse = self.stats[0] + self.stats[1].ln();
        for (rank, (token, value)) in self.tokens.iter().zip(&self.values).enumerate() {
            let wanted = expected.child(rank);
            let id = wanted.map_or(-1, |child| (child.token as usize + first) as i32);
            if *token != id {
                return Err(format!("token {token} has rank {rank}, not {id}"));
            }
            let Some(child) = wanted else { continue };
            if *value != logits[child.token as usize] {
                return Err(format!("rank {rank} has logit {value}"));
            }
            let error = (value - lse - child.logprob).abs() / (1.0 + child.logprob.abs());
            if error.is_nan() || error > LOGPROB {
                let found = value - lse;
                return Err(format!("log-probability {found} of rank {rank}, not {}", child.logprob));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_pair_a_wrong_sum_and_a_missed_nan_are_found() {
        let logits = [1.0, 3.0, 3.0, f32::NEG_INFINITY];
        let sum = (1.0f32 - 3.0).exp() + 2.0;
        let best = |tokens: [i32; 4], sum: f32, finite: i32| Best {
            tokens: tokens.to_vec(),
            values: tokens
                .iter()
                .map(|token| if *token < 0 { f32::NAN } else { logits[*token as usize - 8] })
                .collect(),
            stats: vec![3.0, sum],
            finite: vec![finite],
        };
        assert_eq!(best([9, 10, 8, -1], sum, 1).judge(&logits, 8), Ok(()));
        assert!(best([10, 9, 8, -1], sum, 1).judge(&logits, 8).is_err(), "ties go to the lower token");
        assert!(best([9, 10, 8, -1], sum * 1.001, 1).judge(&logits, 8).is_err());
        assert!(best([9, 10, 8, -1], sum, 0).judge(&logits, 8).is_err());
        assert!(best([9, 10, 8, -1], sum, 1).judge(&[1.0, f32::NAN, 3.0, 0.0], 8).is_err());
    }
}
