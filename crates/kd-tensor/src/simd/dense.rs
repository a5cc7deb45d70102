//! Products with bf16 weights: one multiply-add an element, weights widened in registers.

use std::ops::Range;

use super::lanes::{Lanes, Words};
use super::product::Tiles;
use super::tiles::DenseTiles;

/// Vectors of weights that are asked for ahead of their use.
const AHEAD: usize = 32;

impl Tiles for DenseTiles {
    type Row<'x> = &'x [f32];
    const STEP: usize = 2;
    /// A tile's activations stay in the first-level cache.
    const PART: usize = 1024;

    fn steps(&self) -> usize {
        self.cols.div_ceil(2)
    }

    #[inline(always)]
    fn widest<L: Lanes>() -> usize {
        if L::VECTORS >= 32 { 12 } else { 4 }
    }

    #[inline(always)]
    fn beside<L: Lanes>(rows: usize) -> usize {
        match rows {
            _ if L::VECTORS < 32 => 1,
            1..=5 => 4,
            6..=8 => 3,
            _ => 2,
        }
    }

    #[inline(always)]
    fn accumulate<L: Lanes, const R: usize, const C: usize>(
        &self,
        lanes: L,
        tile: usize,
        steps: Range<usize>,
        x: [&[f32]; C],
        mut sums: [[L::V; R]; C],
    ) -> [[L::V; R]; C] {
        // Plain counted loops over fixed arrays of slices of one length: they unroll, and the arrays become registers.
        let pairs = steps.end.min(self.cols / 2) - steps.start;
        let mut w: [&[Words]; R] = [&[]; R];
        for (r, w) in w.iter_mut().enumerate() {
            *w = &self.tile(tile + r)[steps.start..][..pairs];
        }
        let mut pair: [&[[f32; 2]]; C] = [&[]; C];
        for c in 0..C {
            pair[c] = &x[c].as_chunks().0[steps.start..][..pairs];
        }
        // A macro: a closure would be a function of its own, without the instruction set.
        macro_rules! step {
            ($i:expr, $next:expr) => {
                let mut low = [lanes.splat(0.0); R];
                let mut high = low;
                for r in 0..R {
                    lanes.prefetch(w[r].as_ptr().wrapping_add($i + AHEAD + $next));
                    (low[r], high[r]) = lanes.halves(&w[r][$i]);
                }
                for c in 0..C {
                    let x = lanes.splat(pair[c][$i][0]);
                    for r in 0..R {
                        sums[c][r] = lanes.mul_add(low[r], x, sums[c][r]);
                    }
                }
                for c in 0..C {
                    let x = lanes.splat(pair[c][$i][1]);
                    for r in 0..R {
                        sums[c][r] = lanes.mul_add(high[r], x, sums[c][r]);
                    }
                }
            };
        }
        // Two loops: what is asked for ahead takes no registers from the rows' addresses.
        let mut i = 0;
        while i + AHEAD < pairs {
            step!(i, 0);
            i += 1;
        }
        // After the last columns of these tiles come the first of the next.
        while i < pairs {
            step!(i, (R - 1) * pairs);
            i += 1;
        }
        if pairs < steps.len() {
            for c in 0..C {
                let x = lanes.splat(x[c][self.cols - 1]);
                for (r, sum) in sums[c].iter_mut().enumerate() {
                    *sum = lanes.mul_add(lanes.halves(&self.tile(tile + r)[steps.end - 1]).0, x, *sum);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn finish<L: Lanes>(_lanes: L, _x: &[f32], sum: L::V) -> L::V {
        sum
    }
}
