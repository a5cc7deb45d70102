//! Products with INT4 weights: codes and activations are multiplied as whole numbers, exactly, and the sum of a group of 32
//! columns by its scale in f32.

use std::ops::Range;

use half::bf16;

use super::digits::DigitRow;
use super::lanes::{Digits, LANES, Lanes, Words};
use super::product::Tiles;
use super::tiles::CodeTiles;
use crate::int4::GROUP;

/// Groups that are asked for ahead of their use.
const AHEAD: usize = 8;
/// Scales of groups that are asked for ahead of their use: eight lines, as many as of a group's codes in two.
const SCALES_AHEAD: usize = 16;

impl Tiles for CodeTiles {
    type Row<'x> = DigitRow<'x>;
    const STEP: usize = GROUP;
    /// Whole rows: digits come from the second-level cache as fast as they are used, and sums never wait in memory.
    const PART: usize = usize::MAX;

    fn steps(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    fn widest<L: Lanes>() -> usize {
        if L::VECTORS >= 32 { 8 } else { 2 }
    }

    #[inline(always)]
    fn beside<L: Lanes>(rows: usize) -> usize {
        match rows {
            _ if L::VECTORS < 32 => 1,
            1 => 4,
            2 | 3 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn accumulate<L: Lanes, const R: usize, const C: usize>(
        &self,
        lanes: L,
        tile: usize,
        steps: Range<usize>,
        x: [DigitRow<'_>; C],
        mut sums: [[L::V; R]; C],
    ) -> [[L::V; R]; C] {
        let count = steps.len();
        let mut digits: [&[Digits]; C] = [&[]; C];
        for c in 0..C {
            digits[c] = &x[c].digits[steps.clone()][..count];
        }
        let mut words: [&[[Words; 4]]; R] = [&[]; R];
        let mut scales: [&[[bf16; LANES]]; R] = [&[]; R];
        for r in 0..R {
            let (all_words, all_scales) = self.tile(tile + r);
            (words[r], scales[r]) = (&all_words[steps.clone()][..count], &all_scales[steps.clone()][..count]);
        }
        let mut g = 0;
        while g < count {
            // After the last groups of these tiles come the same of the next.
            let ahead =
                |groups: usize| g + groups + if g + groups < count { 0 } else { R * self.groups - count };
            let (codes_ahead, scales_ahead) = (ahead(AHEAD), ahead(SCALES_AHEAD));
            let mut parts = [[lanes.open(0); R]; C];
            let mut group = [&digits[0][g]; C];
            for c in 0..C {
                group[c] = &digits[c][g];
                parts[c] = [lanes.open(group[c].start); R];
            }
            // All products of a column before those of the next: none waits for the one before it.
            macro_rules! each {
                ($($i:literal)*) => {$({
                    let mut low = [lanes.codes(&words[0][g][$i]).0; R];
                    let mut high = low;
                    for r in 0..R {
                        lanes.prefetch(words[r].as_ptr().cast::<Words>().wrapping_add(4 * codes_ahead + $i));
                        (low[r], high[r]) = lanes.codes(&words[r][g][$i]);
                    }
                    for c in 0..C {
                        for r in 0..R {
                            let [a, b, d] = parts[c][r];
                            parts[c][r] = [
                                lanes.code_products::<0, { 2 * $i }>(a, low[r], group[c]),
                                lanes.code_products::<1, { 2 * $i }>(b, low[r], group[c]),
                                lanes.code_products::<2, { 2 * $i }>(d, low[r], group[c]),
                            ];
                        }
                    }
                    for c in 0..C {
                        for r in 0..R {
                            let [a, b, d] = parts[c][r];
                            parts[c][r] = [
                                lanes.code_products::<0, { 2 * $i + 1 }>(a, high[r], group[c]),
                                lanes.code_products::<1, { 2 * $i + 1 }>(b, high[r], group[c]),
                                lanes.code_products::<2, { 2 * $i + 1 }>(d, high[r], group[c]),
                            ];
                        }
                    }
                })*};
            }
            each!(0 1 2 3);
            for r in 0..R {
                lanes.prefetch(scales[r].as_ptr().wrapping_add(scales_ahead).cast());
                let scale = lanes.widen(&scales[r][g]);
                for c in 0..C {
                    let part = lanes.close(parts[c][r], group[c].start);
                    sums[c][r] = lanes.mul_add(part, scale, sums[c][r]);
                }
            }
            g += 1;
        }
        sums
    }

    #[inline(always)]
    fn finish<L: Lanes>(lanes: L, x: DigitRow<'_>, sum: L::V) -> L::V {
        lanes.mul(sum, lanes.splat(x.unit))
    }
}
