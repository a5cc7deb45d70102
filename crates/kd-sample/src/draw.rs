//! The Gumbel-max draw: step 8 of the specification.
//!
//! Most entries cannot win: their score plus a cheap upper bound of their noise is under the best value so far. They are
//! passed over, which changes the time of a draw and never its result.

use crate::noise::{MAX_GUMBEL, Noise, gumbel_bound, gumbel_of_word};
use crate::scan::{Logit, Peak};
use crate::top::Candidate;

/// The leader of a draw in progress.
struct Leader {
    value: f64,
    id: u32,
}

impl Leader {
    const NONE: Leader = Leader { value: f64::NEG_INFINITY, id: u32::MAX };

    #[inline]
    fn offer(&mut self, score: f64, id: u32, word: u32) {
        // Rounding is monotone, so what the bound rules out, the exact sum would not have won or tied.
        if score + gumbel_bound(word) < self.value {
            return;
        }
        let value = score + gumbel_of_word(word);
        if value > self.value || (value == self.value && id < self.id) {
            *self = Leader { value, id };
        }
    }
}

/// Draws from the whole row, scaled by the temperature.
pub(crate) fn from_row<T: Logit>(row: &[T], temperature: f64, peak: Peak, noise: &Noise) -> u32 {
    let mut leader = Leader::NONE;
    leader.offer(peak.value / temperature, peak.id, noise.word(peak.id));
    for (block, logits) in (0_u32..).zip(row.chunks(4)) {
        let max = logits.iter().fold(T::NEG_INFINITY, |a, &x| if x > a { x } else { a });
        if max.into() / temperature + MAX_GUMBEL < leader.value {
            continue;
        }
        for ((&x, id), word) in logits.iter().zip(4 * block..).zip(noise.block(block)) {
            leader.offer(x.into() / temperature, id, word);
        }
    }
    leader.id
}

/// Draws from the kept candidates; there is at least one.
pub(crate) fn from_candidates(kept: &[Candidate], noise: &Noise) -> u32 {
    let mut leader = Leader::NONE;
    for c in kept {
        if c.score + MAX_GUMBEL >= leader.value {
            leader.offer(c.score, c.id, noise.word(c.id));
        }
    }
    leader.id
}
