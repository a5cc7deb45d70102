//! `y[m][n] = w[n] · x[m]`: a tile of weight rows against a tile of activation rows at a time.

use super::lanes::{CHUNK, LANES, Lanes, join};
use super::rows::{F32Row, WeightRow, split, split_mut};
use super::{Kernel, Level};
use crate::WeightRows;
use crate::buffer::Buffer;

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
    fn run<L: Lanes, const ROWS: usize, const TALL: usize, const COLUMNS: usize>(mut self, lanes: L) {
        let width = self.out.first().map_or(0, |row| row.len());
        let decoded = if self.x.len() > COLUMNS { PANEL.min(self.w.cols() / CHUNK) } else { 0 };
        let mut panel = Buffer::zeros(ROWS * decoded * CHUNK);
        let mut acc = Buffer::zeros(ROWS.max(TALL) * self.x.len() * LANES);
        let (panel, acc) = (panel.as_chunks_mut().0, acc.as_chunks_mut().0);
        let mut done = 0;
        if self.x.len() == 1 {
            while width - done >= TALL {
                self.strip::<L, TALL, COLUMNS>(lanes, done, acc, panel);
                done += TALL;
            }
        }
        while width - done >= ROWS {
            self.strip::<L, ROWS, COLUMNS>(lanes, done, acc, panel);
            done += ROWS;
        }
        while done < width {
            self.strip::<L, 1, COLUMNS>(lanes, done, acc, panel);
            done += 1;
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
        acc: &mut [[f32; LANES]],
        panel: &mut [[f32; CHUNK]],
    ) {
        let acc = &mut acc.as_chunks_mut().0[..self.x.len()];
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
            // A last tile of one row would wait for its own sums, so two tiles share what is left.
            let count = if acc.len() == COLUMNS + 1 { COLUMNS.div_ceil(2) } else { COLUMNS.min(acc.len()) };
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
        for (out, acc) in self.out.iter_mut().zip(acc) {
            let out = &mut out[i..i + ROWS];
            let ((to_fours, to_rest), (fours, rest)) = (out.as_chunks_mut(), acc.as_chunks());
            for (to, four) in to_fours.iter_mut().zip(fours) {
                *to = lanes.join4(four);
            }
            for (to, &one) in to_rest.iter_mut().zip(rest) {
                *to = join(one);
            }
        }
    }
}

#[inline(always)]
fn decode<L: Lanes, R: WeightRow>(lanes: L, row: R, out: &mut [[f32; CHUNK]]) {
    for (i, out) in out.iter_mut().enumerate() {
        let (low, high) = row.chunk(lanes, i);
        let (to_low, to_high) = split_mut(out);
        lanes.store(low, to_low);
        lanes.store(high, to_high);
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
    // Plain counted loops over fixed arrays: they unroll, and the arrays become registers.
    let mut sums = [[lanes.splat(0.0); ROWS]; COLUMNS];
    for m in 0..COLUMNS {
        for r in 0..ROWS {
            sums[m][r] = lanes.load(&acc[m][r]);
        }
    }
    for i in 0..chunks {
        let mut low = [lanes.splat(0.0); ROWS];
        let mut high = [lanes.splat(0.0); ROWS];
        for r in 0..ROWS {
            (low[r], high[r]) = w[r].chunk(lanes, i);
        }
        for m in 0..COLUMNS {
            let x = lanes.load(split(&x[m][i]).0);
            for r in 0..ROWS {
                sums[m][r] = lanes.mul_add(low[r], x, sums[m][r]);
            }
        }
        for m in 0..COLUMNS {
            let x = lanes.load(split(&x[m][i]).1);
            for r in 0..ROWS {
                sums[m][r] = lanes.mul_add(high[r], x, sums[m][r]);
            }
        }
    }
    for m in 0..COLUMNS {
        for r in 0..ROWS {
            lanes.store(sums[m][r], &mut acc[m][r]);
        }
    }
}
