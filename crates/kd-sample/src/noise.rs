//! Gumbel noise keyed by seed, choice, absolute position and token id.
//!
//! Word `id mod 4` of the Philox block with counter (`id div 4`, position low, choice, position high) and key (seed low,
//! seed high) belongs to token `id`. Adding the noise to scaled logits and taking the argmax draws from their softmax.

use std::f64::consts::LN_2;

use crate::philox::Philox4x32_10;

/// No noise value exceeds this: the largest uniform is 1 - 2^-25, and `-ln u > 1 - u`.
pub const MAX_GUMBEL: f64 = 25.0 * LN_2;

/// The noise of one position: one value for each token id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    philox: Philox4x32_10,
    position: u64,
    choice: u32,
}

impl Noise {
    /// The noise with which the token at absolute index `position` of parallel answer `choice` is drawn.
    pub const fn new(seed: u64, choice: u32, position: u64) -> Self {
        Self { philox: Philox4x32_10::new([seed as u32, (seed >> 32) as u32]), position, choice }
    }

    /// The random words of the ids `4 * index .. 4 * index + 4`.
    #[inline]
    pub const fn block(&self, index: u32) -> [u32; 4] {
        self.philox.block([index, self.position as u32, self.choice, (self.position >> 32) as u32])
    }

    /// The random word of one id.
    #[inline]
    pub const fn word(&self, id: u32) -> u32 {
        self.block(id / 4)[(id % 4) as usize]
    }

    /// The Gumbel value of one id.
    #[inline]
    pub fn gumbel(&self, id: u32) -> f64 {
        gumbel_of_word(self.word(id))
    }
}

/// The Gumbel value of one token id; see [`Noise`] for many ids of one position.
pub fn gumbel(seed: u64, choice: u32, position: u64, id: u32) -> f64 {
    Noise::new(seed, choice, position).gumbel(id)
}

/// `-ln(-ln u)` with `u = ((word >> 8) + 0.5) * 2^-24`.
///
/// `u` is exact in f64; in f32 the largest one would round to 1 and its noise to infinity.
#[inline]
pub fn gumbel_of_word(word: u32) -> f64 {
    let u = (f64::from(word >> 8) + 0.5) / f64::from(1 << 24);
    -(-u.ln()).ln()
}

/// An upper bound of [`gumbel_of_word`] without a logarithm, less than `ln 4` above it for `u >= 1/2`.
///
/// From `-ln u > 1 - u`, and `1 - u = odd * 2^-25` for an odd integer that is at least the power of two of its leading bit.
#[inline]
pub(crate) fn gumbel_bound(word: u32) -> f64 {
    let odd = (1_u32 << 25) - 1 - 2 * (word >> 8);
    f64::from(odd.leading_zeros() - 6) * LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_holds_for_every_uniform() {
        for k in 0..1_u32 << 24 {
            let (value, bound) = (gumbel_of_word(k << 8), gumbel_bound(k << 8));
            assert!(
                value.is_finite() && value < bound && bound <= MAX_GUMBEL,
                "u index {k}: {value} {bound}"
            );
            if k >= 1 << 23 {
                assert!(bound - value < 2.0 * LN_2, "u index {k}: bound {bound} is loose for {value}");
            }
        }
    }

    #[test]
    fn low_bits_of_a_word_do_not_matter() {
        assert_eq!(gumbel_of_word(0x1234_5600), gumbel_of_word(0x1234_56ff));
    }
}
