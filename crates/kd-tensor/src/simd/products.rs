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

/// Some chunks of a strip of weight rows, taken by all of `x` before the next ones.
#[derive(Clone, Copy)]
struct Pass {
    /// The first weight row, counted from the first column of the result.
    i: usize,
    /// The first chunk.
    first: usize,
    /// Whether the sums are complete after it.
    last: bool,
}

impl<W: WeightRows + ?Sized> Kernel for Products<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const TALL: usize, const COLUMNS: usize>(mut self, lanes: L) {
        let width = self.out.first().map_or(0, |row| row.len());
        let (chunks, rest) = (self.w.cols() / CHUNK, self.w.cols() % CHUNK);
        let decoded = if self.x.len() > COLUMNS { PANEL.min(chunks) } else { 0 };
        let waiting = if rest == 0 && (decoded == 0 || decoded == chunks) { 0 } else { self.x.len() };
        let mut panel = Buffer::zeros(ROWS * decoded * CHUNK);
        let mut acc = Buffer::zeros(ROWS.max(TALL) * waiting * LANES);
        let (panel, acc) = (panel.as_chunks_mut().0, acc.as_chunks_mut().0);
        let mut done = 0;
        if self.x.len() == 1 {
            while width - done >= TALL {
                self.strip::<L, TALL, 1>(lanes, done, acc, panel);
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
    /// Weight rows `start + i …` against all of `x`. Where that takes several passes, sums of lanes wait in `acc`,
    /// `[rows of x][ROWS][LANES]`; `panel` has room for decoded chunks.
    #[inline(always)]
    fn strip<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        lanes: L,
        i: usize,
        acc: &mut [[f32; LANES]],
        panel: &mut [[f32; CHUNK]],
    ) {
        let acc = acc.as_chunks_mut().0;
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
            self.tiles::<L, _, ROWS, COLUMNS>(lanes, whole, Pass { i, first: 0, last: rest == 0 }, acc);
        } else {
            if chunks <= PANEL {
                // Rows so short are over before the processor has noticed that others follow.
                for next in (self.start + i + ROWS..self.w.rows()).take(ROWS) {
                    self.w.row(next).prefetch(lanes);
                }
            }
            for first in (0..chunks).step_by(PANEL) {
                let count = PANEL.min(chunks - first);
                let mut decoded = [F32Row::of_chunks(&[]); ROWS];
                for ((panel, row), decoded) in panel.chunks_exact_mut(count).zip(rows).zip(&mut decoded) {
                    decode(lanes, row.chunks(first, count), panel);
                    *decoded = F32Row::of_chunks(panel);
                }
                let last = rest == 0 && first + count == chunks;
                self.tiles::<L, _, ROWS, COLUMNS>(lanes, decoded, Pass { i, first, last }, acc);
            }
        }
        if rest > 0 {
            let mut tails = [[[0.0; CHUNK]; 1]; ROWS];
            for (tail, row) in tails.iter_mut().zip(rows) {
                tail[0] = row.tail();
            }
            let mut w = [F32Row::of_chunks(&[]); ROWS];
            for (w, tail) in w.iter_mut().zip(&tails) {
                *w = F32Row::of_chunks(tail);
            }
            let pass = Pass { i, first: chunks, last: true };
            for m in 0..self.x.len() {
                let x = [F32Row::from(self.x[m]).tail()];
                self.tile(lanes, w, [&x], m, pass, acc);
            }
        }
    }

    /// A pass over all of `x`, in tiles of about one width: a narrow one would wait for its own sums.
    #[inline(always)]
    fn tiles<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        lanes: L,
        w: [R; ROWS],
        pass: Pass,
        acc: &mut [[[f32; LANES]; ROWS]],
    ) {
        let rows = self.x;
        let x = |m: usize| &F32Row::from(rows[m]).whole()[pass.first..];
        let (mut m, mut tiles) = (0, rows.len().div_ceil(COLUMNS));
        while tiles > 0 {
            let count = (rows.len() - m).div_ceil(tiles);
            match count {
                5 if COLUMNS >= 5 => {
                    self.tile(lanes, w, [x(m), x(m + 1), x(m + 2), x(m + 3), x(m + 4)], m, pass, acc);
                }
                4 if COLUMNS >= 4 => self.tile(lanes, w, [x(m), x(m + 1), x(m + 2), x(m + 3)], m, pass, acc),
                3 if COLUMNS >= 3 => self.tile(lanes, w, [x(m), x(m + 1), x(m + 2)], m, pass, acc),
                2 if COLUMNS >= 2 => self.tile(lanes, w, [x(m), x(m + 1)], m, pass, acc),
                _ => self.tile(lanes, w, [x(m)], m, pass, acc),
            }
            m += count;
            tiles -= 1;
        }
    }

    /// Rows `m …` of `x` in a pass.
    #[inline(always)]
    fn tile<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        lanes: L,
        w: [R; ROWS],
        x: [&[[f32; CHUNK]]; COLUMNS],
        m: usize,
        pass: Pass,
        acc: &mut [[[f32; LANES]; ROWS]],
    ) {
        let mut sums = [[lanes.splat(0.0); ROWS]; COLUMNS];
        if pass.first > 0 {
            for c in 0..COLUMNS {
                for r in 0..ROWS {
                    sums[c][r] = lanes.load(&acc[m + c][r]);
                }
            }
        }
        let sums = multiply_add(lanes, w, x, sums);
        for c in 0..COLUMNS {
            if pass.last {
                let out = &mut self.out[m + c][pass.i..pass.i + ROWS];
                joined(lanes, sums[c], out);
            } else {
                for r in 0..ROWS {
                    lanes.store(sums[c][r], &mut acc[m + c][r]);
                }
            }
        }
    }
}

/// The sums over the lanes of each of `sums`.
#[inline(always)]
fn joined<L: Lanes, const ROWS: usize>(lanes: L, sums: [L::V; ROWS], out: &mut [f32]) {
    if ROWS.is_multiple_of(4) {
        for (four, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let r = 4 * four;
            *out = lanes.join4([sums[r], sums[r + 1], sums[r + 2], sums[r + 3]]);
        }
    } else {
        for r in 0..ROWS {
            let mut one = [0.0; LANES];
            lanes.store(sums[r], &mut one);
            out[r] = join(one);
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

/// `sums` plus the products of all chunks of `w` with as many of `x`; the sums stay in registers throughout.
#[inline(always)]
fn multiply_add<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    mut x: [&[[f32; CHUNK]]; COLUMNS],
    mut sums: [[L::V; ROWS]; COLUMNS],
) -> [[L::V; ROWS]; COLUMNS] {
    let chunks = w[0].len() / CHUNK;
    for x in &mut x {
        *x = &x[..chunks];
    }
    // Plain counted loops over fixed arrays: they unroll, and the arrays become registers.
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
    sums
}
