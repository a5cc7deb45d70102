//! `y[m][n] = w[n] · x[m]`: a tile of weight rows against a tile of activation rows at a time.

use std::marker::PhantomData;
use std::ops::Range;

use super::lanes::{LANES, Lanes, Line};
use super::rows::{Decoded, WeightRow};
use super::{Kernel, Level};
use crate::WeightRows;
use crate::buffer::Buffer;

/// Lines of activations that stay in the first-level cache while weight rows pass by.
const CLOSE: usize = 512;
/// Lines of a weight row that are decoded together, where several tiles of activations use them: those of six activation
/// rows stay in the first-level cache.
const PANEL: usize = 64;
/// Strips of weight rows that are decoded together: of four rows each, they stay in the second-level cache.
const STRIPS: usize = 16;
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

impl<W: WeightRows + ?Sized> Kernel for Products<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const HALF: usize, const TALL: usize>(mut self, lanes: L) {
        let mut done = 0;
        if self.x.len() > L::MANY && self.blocks() > 0 {
            return self.in_parts::<L, ROWS>(lanes);
        }
        if self.x.len() == 1 {
            done = self.strips::<L, TALL>(lanes, done, 1);
        }
        if self.x.len() <= L::FEW {
            done = self.strips::<L, ROWS>(lanes, done, L::FEW);
        }
        done = self.strips::<L, HALF>(lanes, done, L::MANY);
        self.strips::<L, 1>(lanes, done, L::FEW);
    }
}

impl<'a, W: WeightRows + ?Sized> Products<'a, '_, W> {
    fn width(&self) -> usize {
        self.out.first().map_or(0, |row| row.len())
    }

    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.w.cols().div_ceil(W::Row::STEPS * LANES)
    }

    /// As many times `ROWS` weight rows as there are from row `i` on, decoded in registers. Returns the next row.
    #[inline(always)]
    fn strips<L: Lanes, const ROWS: usize>(&mut self, lanes: L, i: usize, limit: usize) -> usize {
        if self.width() - i < ROWS {
            return i;
        }
        let (strips, blocks) = ((self.width() - i) / ROWS, self.blocks());
        let mut m = 0;
        while m < self.x.len() {
            let count = (self.x.len() - m).min(limit);
            let each = (CLOSE / count / W::Row::STEPS).max(1);
            let mut sums = Buffer::zeros(if blocks > each { strips * ROWS * count * LANES } else { 0 });
            let mut first = 0;
            // Weights without elements have products all the same.
            while first < blocks.max(1) {
                let part = first..(first + each).min(blocks);
                let (x, out) = (&self.x[m..m + count], &mut self.out[m..m + count]);
                let sums = sums.as_chunks_mut().0;
                macro_rules! strips {
                    ($($columns:literal)*) => {
                        match count {
                            $($columns if limit >= $columns => lanes.apart(Strips::<W, ROWS, $columns> {
                                w: self.w, start: self.start, i, blocks, part, x, out, sums,
                            }),)*
                            _ => lanes.apart(Strips::<W, ROWS, 1> {
                                w: self.w, start: self.start, i, blocks, part, x, out, sums,
                            }),
                        }
                    };
                }
                strips!(8 7 6 5 4 3 2);
                first += each;
            }
            m += count;
        }
        i + strips * ROWS
    }

    /// Many activation rows: as many at a time as stay near, against all weight rows.
    #[inline(always)]
    fn in_parts<L: Lanes, const ROWS: usize>(self, lanes: L) {
        let rows = self.x.len();
        let parts = rows.div_ceil((NEAR / (self.w.cols() * 4 + 1)).max(L::WIDE));
        let each = rows.div_ceil(parts);
        let mut panel = Panel::new(STRIPS * ROWS, W::Row::STEPS, self.blocks());
        let waiting = if self.blocks() <= panel.blocks { 0 } else { STRIPS * ROWS * each };
        let mut sums = Buffer::zeros(waiting * LANES);
        let sums = sums.as_chunks_mut().0;
        for (x, out) in self.x.chunks(each).zip(self.out.chunks_mut(each)) {
            let mut part = Products { w: self.w, start: self.start, x, out };
            let mut i = 0;
            while part.width() - i >= ROWS {
                let strips = STRIPS.min((part.width() - i) / ROWS);
                part.panels::<L, ROWS>(lanes, i, strips, &mut panel, sums);
                i += strips * ROWS;
            }
            part.strips::<L, 1>(lanes, i, L::FEW);
        }
    }

    /// `strips · ROWS` weight rows from row `i` on, decoded a panel at a time. Between panels the sums of lanes wait in
    /// `sums`, `[rows of x][strips][ROWS]`.
    #[inline(always)]
    fn panels<L: Lanes, const ROWS: usize>(
        &mut self,
        lanes: L,
        i: usize,
        strips: usize,
        panel: &mut Panel,
        sums: &mut [Line],
    ) {
        let blocks = self.blocks();
        for first in (0..blocks).step_by(panel.blocks.max(1)) {
            let end = (first + panel.blocks).min(blocks);
            let row = |r: usize| self.w.row(self.start + i + r).part(first, end);
            panel.decode(lanes, (0..strips * ROWS).map(row), end - first);
            let (mut m, tiles) = (0, self.x.len().div_ceil(L::WIDE));
            // Tiles of about one width: a narrow one would wait for its own sums.
            for count in [self.x.len().div_ceil(tiles), self.x.len() / tiles] {
                let narrower = tiles * count.max(1) - self.x.len().min(tiles * count.max(1));
                let rows = if m == 0 { (tiles - narrower) * count } else { self.x.len() - m };
                if rows == 0 {
                    continue;
                }
                let (x, out) = (&self.x[m..m + rows], &mut self.out[m..m + rows]);
                let waiting = if sums.is_empty() { 0 } else { m * strips * ROWS };
                let sums = &mut sums[waiting..];
                let pass = Pass { i, strips, first, blocks: end - first, last: end == blocks };
                macro_rules! tiles {
                    ($($columns:literal)*) => {
                        match count {
                            $($columns if L::WIDE >= $columns => {
                                lanes.apart(Tiles::<W::Row<'_>, ROWS, $columns>::new(panel, pass, x, out, sums));
                            })*
                            _ => lanes.apart(Tiles::<W::Row<'_>, ROWS, 1>::new(panel, pass, x, out, sums)),
                        }
                    };
                }
                tiles!(6 5 4 3 2);
                m += rows;
            }
        }
    }
}

/// A pass of a panel over activation rows.
#[derive(Clone, Copy)]
struct Pass {
    /// The column of the result that the first row of the panel is for.
    i: usize,
    /// Strips in the panel.
    strips: usize,
    /// The first block.
    first: usize,
    /// Number of blocks.
    blocks: usize,
    /// Whether the sums are complete after it.
    last: bool,
}

/// Decoded blocks of some weight rows.
struct Panel {
    /// Most blocks of a row.
    blocks: usize,
    values: Buffer,
    scales: Buffer,
}

impl Panel {
    fn new(rows: usize, steps: usize, blocks: usize) -> Self {
        let blocks = blocks.min(PANEL / steps);
        let lines = rows * blocks;
        Self {
            blocks,
            values: Buffer::zeros(lines * steps * LANES),
            scales: Buffer::zeros(lines * LANES),
        }
    }

    /// Rows of `blocks` blocks, and their scales if they have any.
    #[inline(always)]
    fn decode<L: Lanes, R: WeightRow>(&mut self, lanes: L, rows: impl Iterator<Item = R>, blocks: usize) {
        let values = self.values.as_chunks_mut().0.chunks_exact_mut(blocks * R::STEPS);
        let scales = self.scales.as_chunks_mut().0.chunks_exact_mut(blocks);
        for (row, (values, scales)) in rows.zip(values.zip(scales)) {
            let whole = row.whole();
            for (i, (out, scale)) in values.chunks_exact_mut(R::STEPS).zip(scales).enumerate() {
                let mut open = if i < whole { row.open(lanes, i) } else { row.open_tail(lanes) };
                for (step, out) in out.iter_mut().enumerate() {
                    lanes.store(R::take(lanes, &mut open, step), out);
                }
                if R::SCALED {
                    lanes.store(if i < whole { row.scales(lanes, i) } else { row.tail_scales(lanes) }, scale);
                }
            }
        }
    }

    /// The rows of a strip.
    #[inline(always)]
    fn rows<R: WeightRow, const ROWS: usize>(&self, strip: usize, blocks: usize) -> [Decoded<'_, R>; ROWS] {
        let (values, scales) = (self.values.as_chunks().0, self.scales.as_chunks().0);
        let mut rows = [Decoded { lines: &[], scales: &[] }; ROWS];
        for r in 0..ROWS {
            let row = strip * ROWS + r;
            rows[r].lines = R::lines(&values[row * blocks * R::STEPS..][..blocks * R::STEPS]);
            rows[r].scales = &scales[row * blocks..][..blocks];
        }
        rows
    }
}

/// Some blocks of all strips of `R` weight rows that fit the result from its column `i` on, against `C` rows of `x`.
struct Strips<'a, 'o, W: ?Sized, const R: usize, const C: usize> {
    w: &'a W,
    start: usize,
    i: usize,
    /// Blocks of a row.
    blocks: usize,
    part: Range<usize>,
    x: &'a [&'a [Line]],
    out: &'a mut [&'o mut [f32]],
    /// Sums that wait between parts, `[strips][C][R]`.
    sums: &'a mut [Line],
}

impl<W: WeightRows + ?Sized, const R: usize, const C: usize> Kernel for Strips<'_, '_, W, R, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const HALF: usize, const TALL: usize>(self, lanes: L) {
        let Range { start: first, end } = self.part;
        let x = activations::<W::Row<'_>, C>(self.x, first);
        let mut waiting = self.sums.chunks_exact_mut(C * R);
        for i in (self.i..self.out[0].len() + 1 - R).step_by(R) {
            let mut w = [self.w.row(self.start + i).part(first, end); R];
            let mut ahead = w;
            for r in 0..R {
                w[r] = self.w.row(self.start + i + r).part(first, end);
                ahead[r] = self.w.row((self.start + i + R + r).min(self.w.rows() - 1)).part(first, end);
            }
            let waiting = waiting.next().unwrap_or_default();
            let sums = waiting_sums::<L, R, C>(lanes, waiting, first);
            let sums = multiply_add_ahead(lanes, w, ahead, x, sums);
            if end == self.blocks {
                finish(lanes, sums, self.out, i);
            } else {
                wait::<L, R, C>(lanes, sums, waiting);
            }
        }
    }
}

/// Sums as [`wait`] left them, or zeros for the first block.
#[inline(always)]
fn waiting_sums<L: Lanes, const R: usize, const C: usize>(
    lanes: L,
    waiting: &[Line],
    first: usize,
) -> [[L::V; R]; C] {
    let mut sums = [[lanes.splat(0.0); R]; C];
    if first > 0 {
        for (sums, waiting) in sums.iter_mut().zip(waiting.as_chunks::<R>().0) {
            for r in 0..R {
                sums[r] = lanes.load(&waiting[r]);
            }
        }
    }
    sums
}

#[inline(always)]
fn wait<L: Lanes, const R: usize, const C: usize>(lanes: L, sums: [[L::V; R]; C], waiting: &mut [Line]) {
    for (sums, waiting) in sums.into_iter().zip(waiting.as_chunks_mut::<R>().0) {
        for r in 0..R {
            lanes.store(sums[r], &mut waiting[r]);
        }
    }
}

/// All strips of a panel against all of `x`, `C` rows at a time.
struct Tiles<'a, 'o, W, const R: usize, const C: usize> {
    panel: &'a Panel,
    pass: Pass,
    x: &'a [&'a [Line]],
    out: &'a mut [&'o mut [f32]],
    sums: &'a mut [Line],
    form: PhantomData<W>,
}

impl<'a, 'o, W, const R: usize, const C: usize> Tiles<'a, 'o, W, R, C> {
    fn new(
        panel: &'a Panel,
        pass: Pass,
        x: &'a [&'a [Line]],
        out: &'a mut [&'o mut [f32]],
        sums: &'a mut [Line],
    ) -> Self {
        Self { panel, pass, x, out, sums, form: PhantomData }
    }
}

impl<W: WeightRow, const R: usize, const C: usize> Kernel for Tiles<'_, '_, W, R, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const HALF: usize, const TALL: usize>(self, lanes: L) {
        let Pass { i, strips, first, blocks, last } = self.pass;
        let mut waiting = self.sums.chunks_exact_mut(C * R);
        for (x, out) in self.x.chunks_exact(C).zip(self.out.chunks_exact_mut(C)) {
            let x = activations::<W, C>(x, first);
            for strip in 0..strips {
                let w = self.panel.rows::<W, R>(strip, blocks);
                let waiting = waiting.next().unwrap_or_default();
                let sums = waiting_sums::<L, R, C>(lanes, waiting, first);
                let sums = multiply_add(lanes, w, x, sums);
                if last {
                    finish(lanes, sums, out, i + strip * R);
                } else {
                    wait::<L, R, C>(lanes, sums, waiting);
                }
            }
        }
    }
}

/// The blocks from `first` on of the first `C` of `x`.
#[inline(always)]
fn activations<'a, R: WeightRow, const C: usize>(x: &[&'a [Line]], first: usize) -> [&'a [R::Lines]; C] {
    let mut blocks: [&[R::Lines]; C] = [&[]; C];
    for (blocks, x) in blocks.iter_mut().zip(x) {
        *blocks = &R::lines(x)[first..];
    }
    blocks
}

/// `out[c][i + r]` becomes the sum over the lanes of `sums[c][r]`, four at a time whatever the shape of the tile.
#[inline(always)]
fn finish<L: Lanes, const R: usize, const C: usize>(
    lanes: L,
    sums: [[L::V; R]; C],
    out: &mut [&mut [f32]],
    i: usize,
) {
    let mut at = 0;
    while at < R * C {
        let mut four = [lanes.splat(0.0); 4];
        for k in 0..4.min(R * C - at) {
            four[k] = sums[(at + k) / R][(at + k) % R];
        }
        let joined = lanes.join4(four);
        if R.is_multiple_of(4) {
            out[at / R][i + at % R..][..4].copy_from_slice(&joined);
        } else {
            for k in 0..4.min(R * C - at) {
                out[(at + k) / R][i + (at + k) % R] = joined[k];
            }
        }
        at += 4;
    }
}

/// `sums` plus the products of all blocks of `w` with as many of `x`; the sums stay in registers throughout.
#[inline(always)]
fn multiply_add<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    x: [&[R::Lines]; COLUMNS],
    sums: [[L::V; ROWS]; COLUMNS],
) -> [[L::V; ROWS]; COLUMNS] {
    multiply_add_ahead(lanes, w, w, x, sums)
}

/// [`multiply_add`] that asks for as much of the rows `ahead`.
#[inline(always)]
fn multiply_add_ahead<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    ahead: [R; ROWS],
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
        for ahead in ahead {
            ahead.prefetch(lanes, i);
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
