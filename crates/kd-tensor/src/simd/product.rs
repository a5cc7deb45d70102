//! `y[m][n] = w[n] · x[m]`: tiles of sixteen weight rows against some activation rows at a time.

use std::ops::Range;

use super::lanes::{LANES, Lanes, Line};
use super::{Kernel, Level};

/// Tiles of weights that stay in the second-level cache while all activation rows pass by.
const NEAR: usize = 8;

/// Weights in tiles of sixteen rows.
pub(crate) trait Tiles: Sync {
    /// A row of activations.
    type Row<'x>: Copy;
    /// Columns of a step.
    const STEP: usize;
    /// Columns that are taken at a time where several tiles of activations use them.
    const PART: usize;

    /// Steps of a row.
    fn steps(&self) -> usize;

    /// Most activation rows that the registers have room for.
    fn widest<L: Lanes>() -> usize;

    /// Tiles, 1 to 4, that share what is loaded of so many activation rows.
    fn beside<L: Lanes>(rows: usize) -> usize;

    /// `sums` plus the products of some steps of `R` tiles from `tile` on.
    fn accumulate<L: Lanes, const R: usize, const C: usize>(
        &self,
        lanes: L,
        tile: usize,
        steps: Range<usize>,
        x: [Self::Row<'_>; C],
        sums: [[L::V; R]; C],
    ) -> [[L::V; R]; C];

    /// What the sums of all steps become.
    fn finish<L: Lanes>(lanes: L, x: Self::Row<'_>, sum: L::V) -> L::V;
}

/// `out[m][i] = w[start + i] · x[m]` for as many weight rows as `out` is wide; with factors
/// `out[m][i] += factors[m] · (w[start + i] · x[m])`, each product rounded first.
///
/// # Panics
/// If there are factors of another number than rows, or where sums wait in the result, `x` and `out` have different numbers of rows, or the rows of `out` different lengths.
pub(crate) fn product<'x, T: Tiles>(
    level: Level,
    tiles: &T,
    start: usize,
    x: &[T::Row<'x>],
    out: &mut [&mut [f32]],
    factors: Option<&[f32]>,
) {
    assert_eq!(x.len(), out.len(), "rows of x and of the result");
    assert!(factors.is_none_or(|factors| factors.len() == x.len()), "a factor for each row");
    assert!(factors.is_none() || T::PART == usize::MAX, "sums that wait in the result");
    let width = out.first().map_or(0, |row| row.len());
    assert!(out.iter().all(|row| row.len() == width), "columns of the result");
    if width > 0 {
        level.run(Product { tiles, start, x, out, factors });
    }
}

struct Product<'a, 'x, 'o, T: Tiles> {
    tiles: &'a T,
    start: usize,
    x: &'a [T::Row<'x>],
    out: &'a mut [&'o mut [f32]],
    factors: Option<&'a [f32]>,
}

impl<T: Tiles> Kernel for Product<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { tiles, start, x, out, factors } = self;
        let (first, end) = (start / LANES, (start + out[0].len()).div_ceil(LANES));
        let (steps, chunks) = (tiles.steps(), x.len().div_ceil(T::widest::<L>()));
        let part = if chunks > 1 { (T::PART / T::STEP).min(steps).max(1) } else { steps.max(1) };
        // Weights without columns have products all the same.
        for from in (0..steps.max(1)).step_by(part) {
            let steps = from..(from + part).min(steps);
            for near in (first..end).step_by(NEAR) {
                let near = near..(near + NEAR).min(end);
                let mut m = 0;
                for chunk in 0..chunks {
                    // Chunks of about one width: a narrow one would wait for its own sums.
                    let count = (x.len() - m).div_ceil(chunks - chunk);
                    let factors = factors.map(|factors| &factors[m..m + count]);
                    let (x, out) = (&x[m..m + count], &mut out[m..m + count]);
                    let (steps, near) = (steps.clone(), near.clone());
                    macro_rules! strip {
                        ($($columns:literal)*) => {
                            match count {
                                $($columns if T::widest::<L>() >= $columns => {
                                    lanes.apart(Strip::<T, $columns> { tiles, start, near, steps, x, out, factors });
                                })*
                                _ => lanes.apart(Strip::<T, 1> { tiles, start, near, steps, x, out, factors }),
                            }
                        };
                    }
                    strip!(12 11 10 9 8 7 6 5 4 3 2);
                    m += count;
                }
            }
        }
    }
}

/// Some steps of some tiles against `C` rows of `x`. Between parts of a row its sums wait in the result.
struct Strip<'a, 'x, 'o, T: Tiles, const C: usize> {
    tiles: &'a T,
    start: usize,
    near: Range<usize>,
    steps: Range<usize>,
    x: &'a [T::Row<'x>],
    out: &'a mut [&'o mut [f32]],
    factors: Option<&'a [f32]>,
}

impl<T: Tiles, const C: usize> Kernel for Strip<'_, '_, '_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let Range { start: mut tile, end } = self.near;
        while T::beside::<L>(C) >= 4 && tile + 4 <= end {
            self.tile::<L, 4>(lanes, tile);
            tile += 4;
        }
        while T::beside::<L>(C) == 3 && tile + 3 <= end {
            self.tile::<L, 3>(lanes, tile);
            tile += 3;
        }
        while T::beside::<L>(C) >= 2 && tile + 2 <= end {
            self.tile::<L, 2>(lanes, tile);
            tile += 2;
        }
        while tile < end {
            self.tile::<L, 1>(lanes, tile);
            tile += 1;
        }
    }
}

impl<T: Tiles, const C: usize> Strip<'_, '_, '_, T, C> {
    #[inline(always)]
    fn tile<L: Lanes, const R: usize>(&mut self, lanes: L, tile: usize) {
        let mut x = [self.x[0]; C];
        x.copy_from_slice(&self.x[..C]);
        let mut sums = [[lanes.splat(0.0); R]; C];
        if self.steps.start > 0 {
            let mut lines = [[[0.0; LANES]; R]; C];
            self.take(tile, &mut lines);
            for c in 0..C {
                for r in 0..R {
                    sums[c][r] = lanes.load(&lines[c][r]);
                }
            }
        }
        let mut sums = self.tiles.accumulate(lanes, tile, self.steps.clone(), x, sums);
        if self.steps.end == self.tiles.steps() {
            for (sums, x) in sums.iter_mut().zip(x) {
                for sum in sums {
                    *sum = T::finish(lanes, x, *sum);
                }
            }
        }
        let factors = self.factors;
        let factor = |c: usize| factors.map(|factors| factors[c]);
        let column = (tile * LANES).wrapping_sub(self.start);
        if tile * LANES >= self.start && column + R * LANES <= self.out[0].len() {
            for (c, (sums, out)) in sums.iter().zip(&mut *self.out).enumerate() {
                let lines = out[column..].as_chunks_mut().0;
                for (sum, line) in sums.iter().zip(lines) {
                    lanes.store(added(lanes, factor(c), *sum, line), line);
                }
            }
            return;
        }
        let mut lines = [[[0.0; LANES]; R]; C];
        if factors.is_some() {
            self.take(tile, &mut lines);
        }
        for c in 0..C {
            for r in 0..R {
                lanes.store(added(lanes, factor(c), sums[c][r], &lines[c][r]), &mut lines[c][r]);
            }
        }
        self.put(tile, &lines);
    }

    /// Of `R` tiles from `tile` on those elements that the result has, and the column of the first.
    fn place<const R: usize>(&self, tile: usize) -> (Range<usize>, usize) {
        let first = tile * LANES;
        let begin = self.start.saturating_sub(first);
        let end = (self.start + self.out[0].len() - first).min(R * LANES);
        (begin..end, first + begin - self.start)
    }

    fn take<const R: usize>(&self, tile: usize, lines: &mut [[Line; R]; C]) {
        let (place, column) = self.place::<R>(tile);
        for (line, out) in lines.iter_mut().zip(&*self.out) {
            line.as_flattened_mut()[place.clone()].copy_from_slice(&out[column..][..place.len()]);
        }
    }

    fn put<const R: usize>(&mut self, tile: usize, lines: &[[Line; R]; C]) {
        let (place, column) = self.place::<R>(tile);
        for (line, out) in lines.iter().zip(&mut *self.out) {
            out[column..][..place.len()].copy_from_slice(&line.as_flattened()[place.clone()]);
        }
    }
}

/// A sum, or with a factor what `line` holds plus so many times the sum.
#[inline(always)]
fn added<L: Lanes>(lanes: L, factor: Option<f32>, sum: L::V, line: &Line) -> L::V {
    match factor {
        Some(factor) => lanes.add(lanes.load(line), lanes.mul(lanes.splat(factor), sum)),
        None => sum,
    }
}
