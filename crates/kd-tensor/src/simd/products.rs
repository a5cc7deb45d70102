//! `y[m][n] = w[n] · x[m]`: a tile of weight rows against a tile of activation rows at a time.

use super::lanes::{CHUNK, LANES, Lanes, join};
use super::rows::{F32Row, WeightRow, split};
use super::{Kernel, Level};
use crate::WeightRows;

/// Chunks of a weight row that are decoded together, where several tiles of activations use them: for four rows
/// 16 KiB, so that they and a tile of activations stay in the first-level cache.
const PANEL: usize = 32;

struct Products<'a, 'o, W: ?Sized> {
    w: &'a W,
    start: usize,
    x: &'a [&'a [f32]],
    out: &'a mut [&'o mut [f32]],
}

/// `out[m][i] = w[start + i] · x[m]` for as many weight rows as `out` is wide.
///
/// # Panics
/// If `x` and `out` have different numbers of rows, the rows of `out` different lengths, or `x` other columns than `w`.
pub(crate) fn products<W: WeightRows + ?Sized>(w: &W, start: usize, x: &[&[f32]], out: &mut [&mut [f32]]) {
    products_at(Level::best(), w, start, x, out);
}

pub(super) fn products_at<W: WeightRows + ?Sized>(
    level: Level,
    w: &W,
    start: usize,
    x: &[&[f32]],
    out: &mut [&mut [f32]],
) {
    assert_eq!(x.len(), out.len(), "rows of x and of the result");
    let width = out.first().map_or(0, |row| row.len());
    assert!(out.iter().all(|row| row.len() == width), "columns of the result");
    if width == 0 {
        return;
    }
    assert!(x.iter().all(|x| x.len() == w.cols()), "columns of x and of the weights");
    level.run(Products { w, start, x, out });
}

impl<W: WeightRows + ?Sized> Kernel for Products<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(mut self, lanes: L) {
        let width = self.out.first().map_or(0, |row| row.len());
        let whole = width - width % ROWS;
        let rows = self.x.len();
        let decoded = if rows > COLUMNS { PANEL.min(self.w.cols() / CHUNK) } else { 0 };
        let mut panel = vec![[0.0; CHUNK]; ROWS * decoded];
        let mut acc = vec![[0.0; LANES]; ROWS * rows];
        for i in (0..whole).step_by(ROWS) {
            self.strip::<L, ROWS, COLUMNS>(lanes, i, acc.as_chunks_mut().0, &mut panel);
        }
        for i in whole..width {
            self.strip::<L, 1, COLUMNS>(lanes, i, acc[..rows].as_chunks_mut().0, &mut panel);
        }
    }
}

impl<W: WeightRows + ?Sized> Products<'_, '_, W> {
    /// Weight rows `start + i …` against all of `x`. Sums of lanes wait in `acc`, `[rows of x][ROWS][LANES]`; `panel` has
    /// room for decoded chunks.
    #[inline(always)]
    fn strip<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        lanes: L,
        i: usize,
        acc: &mut [[[f32; LANES]; ROWS]],
        panel: &mut [[f32; CHUNK]],
    ) {
        acc.fill([[0.0; LANES]; ROWS]);
        let mut rows = [self.w.row(self.start + i); ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = self.w.row(self.start + i + r);
        }
        let (chunks, rest) = (rows[0].len() / CHUNK, rows[0].len() % CHUNK);
        if self.x.len() <= COLUMNS {
            let mut whole = rows;
            for row in &mut whole {
                *row = row.chunks(0, chunks);
            }
            self.tiles::<L, _, ROWS, COLUMNS>(lanes, whole, 0, acc);
        } else {
            for first in (0..chunks).step_by(PANEL) {
                let count = PANEL.min(chunks - first);
                let mut decoded = [F32Row::of_chunks(&[]); ROWS];
                for ((panel, row), decoded) in panel.chunks_exact_mut(count).zip(rows).zip(&mut decoded) {
                    decode(lanes, row.chunks(first, count), panel);
                    *decoded = F32Row::of_chunks(panel);
                }
                self.tiles::<L, _, ROWS, COLUMNS>(lanes, decoded, first, acc);
            }
        }
        if rest > 0 {
            let mut tails = [[[0.0; CHUNK]; 1]; ROWS];
            for (tail, row) in tails.iter_mut().zip(rows) {
                tail[0] = row.tail();
            }
            for (x, acc) in self.x.iter().zip(acc.iter_mut()) {
                let x = [F32Row::from(*x).tail()];
                let mut w = [F32Row::of_chunks(&[]); ROWS];
                for (w, tail) in w.iter_mut().zip(&tails) {
                    *w = F32Row::of_chunks(tail);
                }
                tile(lanes, w, [&x], std::array::from_mut(acc));
            }
        }
        self.finish(lanes, i, acc);
    }

    /// The chunks of `w`, which are those from `first` on, against all of `x`, a tile at a time.
    #[inline(always)]
    fn tiles<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
        &self,
        lanes: L,
        w: [R; ROWS],
        first: usize,
        acc: &mut [[[f32; LANES]; ROWS]],
    ) {
        let x = |m: usize| &F32Row::from(self.x[m]).whole()[first..];
        let mut m = 0;
        while m < self.x.len() {
            let acc = &mut acc[m..];
            let count = COLUMNS.min(acc.len());
            match count {
                1 => tile(lanes, w, [x(m)], acc),
                2 => tile(lanes, w, [x(m), x(m + 1)], acc),
                3 => tile(lanes, w, [x(m), x(m + 1), x(m + 2)], acc),
                _ => tile(lanes, w, [x(m), x(m + 1), x(m + 2), x(m + 3)], acc),
            }
            m += count.min(4);
        }
    }

    /// Joins the lanes and hands the sums out.
    #[inline(always)]
    fn finish<L: Lanes, const ROWS: usize>(&mut self, lanes: L, i: usize, acc: &[[[f32; LANES]; ROWS]]) {
        let (fours, rest) = acc.as_flattened().as_chunks::<4>();
        let mut put = |at: usize, sum: f32| self.out[at / ROWS][i + at % ROWS] = sum;
        for (f, four) in fours.iter().enumerate() {
            for (j, sum) in lanes.join4(four).into_iter().enumerate() {
                put(4 * f + j, sum);
            }
        }
        for (j, &lanes) in rest.iter().enumerate() {
            put(4 * fours.len() + j, join(lanes));
        }
    }
}

#[inline(always)]
fn decode<L: Lanes, R: WeightRow>(lanes: L, row: R, out: &mut [[f32; CHUNK]]) {
    for (i, out) in out.iter_mut().enumerate() {
        let [low, high] = row.chunk(lanes, i);
        let (halves, _) = out.as_chunks_mut();
        lanes.store(low, &mut halves[0]);
        lanes.store(high, &mut halves[1]);
    }
}

/// All chunks of `w` against as many of `x`, added into `acc`; the sums stay in registers throughout.
#[inline(always)]
fn tile<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    mut x: [&[[f32; CHUNK]]; COLUMNS],
    acc: &mut [[[f32; LANES]; ROWS]],
) {
    let chunks = w[0].len() / CHUNK;
    for x in &mut x {
        *x = &x[..chunks];
    }
    let zero = lanes.splat(0.0);
    let mut sums = [[zero; ROWS]; COLUMNS];
    for (sums, acc) in sums.iter_mut().zip(acc.iter()) {
        for (sum, acc) in sums.iter_mut().zip(acc) {
            *sum = lanes.load(acc);
        }
    }
    for i in 0..chunks {
        let mut weights = [[zero; 2]; ROWS];
        for (weights, w) in weights.iter_mut().zip(w) {
            *weights = w.chunk(lanes, i);
        }
        for half in 0..2 {
            for (sums, x) in sums.iter_mut().zip(&x) {
                let x = lanes.load(split(&x[i])[half]);
                for (sum, w) in sums.iter_mut().zip(&weights) {
                    *sum = lanes.mul_add(w[half], x, *sum);
                }
            }
        }
    }
    for (sums, acc) in sums.iter().zip(acc) {
        for (&sum, acc) in sums.iter().zip(acc) {
            lanes.store(sum, acc);
        }
    }
}
