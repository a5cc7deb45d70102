//! Products with INT4 weights: codes and activations are multiplied as whole numbers, exactly, and the sum of a group of 32
//! columns by its scale in f32.

use std::ops::Range;

use super::digits::DigitRow;
use super::lanes::{Digits, Lanes, Words};
use super::product::Tiles;
use super::tiles::CodeTiles;
use crate::int4::GROUP;

/// Groups that are asked for ahead of their use.
const AHEAD: usize = 8;

impl Tiles for CodeTiles {
    type Row<'x> = DigitRow<'x>;
    const STEP: usize = GROUP;
    const SHARE: bool = false;

    fn steps(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    fn widest<L: Lanes>() -> usize {
        if L::VECTORS >= 32 { 8 } else { 4 }
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
            digits[c] = &x[c].digits[steps.clone()];
        }
        let mut r = 0;
        while r < R {
            let (words, scales) = self.tile(tile + r);
            let (words, scales) = (&words[steps.clone()], &scales[steps.clone()]);
            let mut g = 0;
            while g < count {
                for i in 0..4 {
                    lanes.prefetch(words.as_ptr().cast::<Words>().wrapping_add(4 * (g + AHEAD) + i));
                }
                lanes.prefetch(scales.as_ptr().wrapping_add(g + 4 * AHEAD).cast());
                let codes = lanes.codes(&words[g]);
                let scale = lanes.widen(&scales[g]);
                // A loop of this length would not be unrolled, and the sums would go through memory.
                macro_rules! each {
                    ($($c:literal)*) => {
                        $(if $c < C {
                            let part = lanes.code_sums(codes, &digits[$c][g]);
                            sums[$c][r] = lanes.mul_add(part, scale, sums[$c][r]);
                        })*
                    };
                }
                each!(0 1 2 3 4 5 6 7);
                g += 1;
            }
            r += 1;
        }
        sums
    }

    #[inline(always)]
    fn finish<L: Lanes>(lanes: L, x: DigitRow<'_>, sum: L::V) -> L::V {
        lanes.mul(sum, lanes.splat(x.unit))
    }
}
