//! `y[m][n] = w[n] · x[m]`: a tile of weight rows against a tile of activation rows at a time.

use super::lanes::{LANES, Lanes, Line, join};
use super::rows::{Decoded, WeightRow};
use super::{Kernel, Level};
use crate::WeightRows;
use crate::buffer::Buffer;

/// Lines of a weight row that are decoded together, where several tiles of activations use them.
const PANEL: usize = 32;
/// Strips of weight rows that are decoded together: for four rows each 16 KiB, so that they and a tile of activations
/// stay in the first-level cache, and the activations come from the second level once for both.
const STRIPS: usize = 2;
/// Bytes of activations that stay in the second-level cache while all weight rows pass by.
const NEAR: usize = 1 << 20;

struct Products<'a, 'o, W: ?Sized> {
    w: &'a W,
    start: usize,
    x: &'a [&'a [Line]],
    out: &'a mut [&'o mut [f32]],
}

/// `out[m][i] = w[start + i] · x[m]` for as many weight rows as `out` is wide, with `x` as [`super::Inputs`] has it.
///
/// # Panics
/// If `x` and `out` have different numbers of rows, or the rows of `out` different lengths.
pub(super) fn products<W: WeightRows + ?Sized>(
    level: Level,
    w: &W,
    start: usize,
    x: &[&[Line]],
    out: &mut [&mut [f32]],
) {
    assert_eq!(x.len(), out.len(), "rows of x and of the result");
    let width = out.first().map_or(0, |row| row.len());
    assert!(out.iter().all(|row| row.len() == width), "columns of the result");
    if width > 0 {
        level.run(Products { w, start, x, out });
    }
}

/// Some blocks of a strip of weight rows, taken by some activation rows before the next ones.
#[derive(Clone, Copy)]
struct Pass {
    /// The first weight row, counted from the first column of the result.
    i: usize,
    /// The first block.
    first: usize,
    /// Whether the sums are complete after it.
    last: bool,
}

impl<W: WeightRows + ?Sized> Kernel for Products<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const HALF: usize, const TALL: usize>(self, lanes: L) {
        let Self { w, start, x, out } = self;
        let steps = W::Row::STEPS;
        let blocks = w.cols().div_ceil(steps * LANES);
        if x.len() <= L::MANY {
            let mut part = Part { w, start, x, out, sums: Buffer::zeros(0) };
            let mut done = 0;
            if x.len() == 1 {
                done = part.strips::<L, TALL>(lanes, done, 1);
            }
            if x.len() <= L::FEW {
                done = part.strips::<L, ROWS>(lanes, done, L::FEW);
            }
            done = part.strips::<L, HALF>(lanes, done, L::MANY);
            part.strips::<L, 1>(lanes, done, L::FEW);
            return;
        }
        let parts = x.len().div_ceil((NEAR / (w.cols() * 4 + 1)).max(L::WIDE));
        let each = x.len().div_ceil(parts);
        let mut panel = Panel::new(STRIPS * ROWS, steps, blocks);
        for (x, out) in x.chunks(each).zip(out.chunks_mut(each)) {
            let waiting = if blocks <= panel.blocks { 0 } else { STRIPS * ROWS * x.len() };
            let mut part = Part { w, start, x, out, sums: Buffer::zeros(waiting * LANES) };
            let done = part.panels::<L, ROWS>(lanes, 0, L::WIDE, &mut panel);
            part.panels::<L, 1>(lanes, done, L::FEW, &mut panel);
        }
    }
}

/// Decoded blocks of some weight rows.
struct Panel {
    /// Blocks of a row.
    blocks: usize,
    values: Buffer,
    scales: Buffer,
}

impl Panel {
    fn new(rows: usize, steps: usize, blocks: usize) -> Self {
        let blocks = blocks.min(PANEL / steps);
        let lines = if steps == 1 { 0 } else { rows * blocks };
        Self {
            blocks,
            values: Buffer::zeros(lines * steps * LANES),
            scales: Buffer::zeros(lines * LANES),
        }
    }
}

/// Activation rows that are near, against all weight rows.
struct Part<'a, 'o, W: ?Sized> {
    w: &'a W,
    start: usize,
    x: &'a [&'a [Line]],
    out: &'a mut [&'o mut [f32]],
    /// Sums that wait between panels, `[rows of x][strips · ROWS]` lines.
    sums: Buffer,
}

impl<'a, W: WeightRows + ?Sized> Part<'a, '_, W> {
    fn width(&self) -> usize {
        self.out.first().map_or(0, |row| row.len())
    }

    /// `ROWS` weight rows, the first for column `i` of the result.
    #[inline(always)]
    fn rows<const ROWS: usize>(&self, i: usize) -> [W::Row<'a>; ROWS] {
        let mut rows = [self.w.row(self.start + i); ROWS];
        for r in 1..ROWS {
            rows[r] = self.w.row(self.start + i + r);
        }
        rows
    }

    /// As many times `ROWS` weight rows as there are from row `i` on, decoded in registers for at most `limit` rows of
    /// `x`. Returns the next row.
    #[inline(always)]
    fn strips<L: Lanes, const ROWS: usize>(&mut self, lanes: L, mut i: usize, limit: usize) -> usize {
        while self.width() - i >= ROWS {
            let w = self.rows::<ROWS>(i);
            self.tiles(lanes, 1, |_| w, Pass { i, first: 0, last: true }, limit);
            i += ROWS;
        }
        i
    }

    /// As many times `ROWS` weight rows as there are from row `i` on, decoded a panel at a time. Returns the next row.
    #[inline(always)]
    fn panels<L: Lanes, const ROWS: usize>(
        &mut self,
        lanes: L,
        mut i: usize,
        limit: usize,
        panel: &mut Panel,
    ) -> usize {
        let steps = W::Row::STEPS;
        let blocks = self.w.cols().div_ceil(steps * LANES);
        while self.width() - i >= ROWS {
            let strips = STRIPS.min((self.width() - i) / ROWS);
            let mut first = 0;
            loop {
                let end = (first + panel.blocks).min(blocks);
                let pass = Pass { i, first, last: end == blocks };
                let stored = |strip: usize| {
                    let mut rows = [self.w.row(self.start + i); ROWS];
                    for r in 0..ROWS {
                        rows[r] = self.w.row(self.start + i + strip * ROWS + r).part(first, end);
                    }
                    rows
                };
                if W::Row::STEPS == 1 {
                    let w = [stored(0), stored(strips - 1)];
                    self.tiles(lanes, strips, |strip| w[strip], pass, limit);
                } else {
                    let count = end - first;
                    let (values, scales) = (panel.values.as_chunks_mut().0, panel.scales.as_chunks_mut().0);
                    let (mut to, mut to_scales) =
                        (values.chunks_exact_mut(count * steps), scales.chunks_exact_mut(count));
                    for strip in 0..strips {
                        for (row, (to, scales)) in stored(strip).into_iter().zip((&mut to).zip(&mut to_scales)) {
                            decode(lanes, row, to, scales);
                        }
                    }
                    let (values, scales) = (panel.values.as_chunks().0, panel.scales.as_chunks().0);
                    let decoded = |strip: usize| {
                        let mut rows = [Decoded::<W::Row<'a>> { lines: &[], scales: &[] }; ROWS];
                        for r in 0..ROWS {
                            let row = strip * ROWS + r;
                            let lines = &values[row * count * steps..][..count * steps];
                            rows[r].lines = W::Row::lines(lines);
                            rows[r].scales = &scales[row * count..][..count];
                        }
                        rows
                    };
                    self.tiles(lanes, strips, decoded, pass, limit);
                }
                if pass.last {
                    break;
                }
                first = end;
            }
            i += strips * ROWS;
        }
        i
    }

    /// A pass over all of `x`, in tiles of about one width, at most `limit`: a narrow one would wait for its own sums.
    #[inline(always)]
    fn tiles<L: Lanes, R: WeightRow<Lines = <W::Row<'a> as WeightRow>::Lines>, const ROWS: usize>(
        &mut self,
        lanes: L,
        strips: usize,
        w: impl Fn(usize) -> [R; ROWS],
        pass: Pass,
        limit: usize,
    ) {
        let rows = self.x;
        let (mut m, mut tiles) = (0, rows.len().div_ceil(limit));
        while tiles > 0 {
            let count = (rows.len() - m).div_ceil(tiles);
            for strip in 0..strips {
                let w = w(strip);
                match count {
                    8 if limit >= 8 => self.tile::<L, R, ROWS, 8>(lanes, w, m, pass, strip, strips),
                    7 if limit >= 7 => self.tile::<L, R, ROWS, 7>(lanes, w, m, pass, strip, strips),
                    6 if limit >= 6 => self.tile::<L, R, ROWS, 6>(lanes, w, m, pass, strip, strips),
                    5 if limit >= 5 => self.tile::<L, R, ROWS, 5>(lanes, w, m, pass, strip, strips),
                    4 if limit >= 4 => self.tile::<L, R, ROWS, 4>(lanes, w, m, pass, strip, strips),
                    3 if limit >= 3 => self.tile::<L, R, ROWS, 3>(lanes, w, m, pass, strip, strips),
                    2 if limit >= 2 => self.tile::<L, R, ROWS, 2>(lanes, w, m, pass, strip, strips),
                    _ => self.tile::<L, R, ROWS, 1>(lanes, w, m, pass, strip, strips),
                }
            }
            m += count;
            tiles -= 1;
        }
    }

    /// Rows `m …` of `x` in a pass.
    #[inline(always)]
    fn tile<L: Lanes, R: WeightRow<Lines = <W::Row<'a> as WeightRow>::Lines>, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        lanes: L,
        w: [R; ROWS],
        m: usize,
        pass: Pass,
        strip: usize,
        strips: usize,
    ) {
        let mut x: [&[R::Lines]; COLUMNS] = [&[]; COLUMNS];
        for c in 0..COLUMNS {
            x[c] = &R::lines(self.x[m + c])[pass.first..];
        }
        let waiting = self.sums.as_chunks_mut::<LANES>().0;
        let place = |c: usize, r: usize| ((m + c) * strips + strip) * ROWS + r;
        let mut sums = [[lanes.splat(0.0); ROWS]; COLUMNS];
        if pass.first > 0 {
            for c in 0..COLUMNS {
                for r in 0..ROWS {
                    sums[c][r] = lanes.load(&waiting[place(c, r)]);
                }
            }
        }
        let sums = multiply_add(lanes, w, x, sums);
        for c in 0..COLUMNS {
            if pass.last {
                let out = &mut self.out[m + c][pass.i + strip * ROWS..][..ROWS];
                joined(lanes, sums[c], out);
            } else {
                for r in 0..ROWS {
                    lanes.store(sums[c][r], &mut waiting[place(c, r)]);
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

/// All blocks of a row, and their scales if they have any.
#[inline(always)]
fn decode<L: Lanes, R: WeightRow>(lanes: L, row: R, out: &mut [Line], scales: &mut [Line]) {
    let whole = row.whole();
    for (i, (out, scale)) in out.chunks_exact_mut(R::STEPS).zip(scales).enumerate() {
        let mut open = if i < whole { row.open(lanes, i) } else { row.open_tail(lanes) };
        for (step, out) in out.iter_mut().enumerate() {
            lanes.store(R::take(lanes, &mut open, step), out);
        }
        if R::SCALED {
            lanes.store(if i < whole { row.scales(lanes, i) } else { row.tail_scales(lanes) }, scale);
        }
    }
}

/// `sums` plus the products of all blocks of `w` with as many of `x`; the sums stay in registers throughout.
#[inline(always)]
fn multiply_add<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    mut x: [&[R::Lines]; COLUMNS],
    mut sums: [[L::V; ROWS]; COLUMNS],
) -> [[L::V; ROWS]; COLUMNS] {
    let whole = w[0].whole();
    let all = x;
    for c in 0..COLUMNS {
        x[c] = &x[c][..whole];
    }
    // Plain counted loops over fixed arrays: they unroll, and the arrays become registers.
    for i in 0..whole {
        let mut lines = [&x[0][i]; COLUMNS];
        for c in 1..COLUMNS {
            lines[c] = &x[c][i];
        }
        let mut open = [w[0].open(lanes, i); ROWS];
        let mut scales = [w[0].scales(lanes, i); ROWS];
        for r in 1..ROWS {
            (open[r], scales[r]) = (w[r].open(lanes, i), w[r].scales(lanes, i));
        }
        sums = block::<L, R, ROWS, COLUMNS>(lanes, open, scales, lines, sums);
    }
    if w[0].has_tail() {
        let mut open = [w[0].open_tail(lanes); ROWS];
        let mut scales = [w[0].tail_scales(lanes); ROWS];
        for r in 1..ROWS {
            (open[r], scales[r]) = (w[r].open_tail(lanes), w[r].tail_scales(lanes));
        }
        sums = block::<L, R, ROWS, COLUMNS>(lanes, open, scales, all.map(|x| &x[whole]), sums);
    }
    sums
}

/// One block; its own sum first where it is scaled.
#[inline(always)]
fn block<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    mut open: [R::Open<L>; ROWS],
    scales: [L::V; ROWS],
    x: [&R::Lines; COLUMNS],
    mut sums: [[L::V; ROWS]; COLUMNS],
) -> [[L::V; ROWS]; COLUMNS] {
    let mut part = if R::SCALED { [[lanes.splat(0.0); ROWS]; COLUMNS] } else { sums };
    for step in 0..R::STEPS {
        let mut w = [lanes.splat(0.0); ROWS];
        for r in 0..ROWS {
            w[r] = R::take(lanes, &mut open[r], step);
        }
        for c in 0..COLUMNS {
            let x = lanes.load(&x[c].as_ref()[step]);
            for r in 0..ROWS {
                part[c][r] = lanes.mul_add(w[r], x, part[c][r]);
            }
        }
    }
    if !R::SCALED {
        return part;
    }
    for c in 0..COLUMNS {
        for r in 0..ROWS {
            sums[c][r] = lanes.mul_add(part[c][r], scales[r], sums[c][r]);
        }
    }
    sums
}
