//! `y[m][n] = w[n] · x[m]`: a tile of weight rows against a tile of activation rows at a time.

use std::ops::Range;

use super::lanes::{LANES, Lanes, Line};
use super::panel::{Panel, Pass, SCRATCH, Scratch, Tiles, grow};
use super::rows::WeightRow;
use super::tile::{activations, finish, multiply_add, wait, waiting_sums};
use super::{Kernel, Level};
use crate::WeightRows;
use crate::buffer::Buffer;

/// Lines of activations that stay in the first-level cache while weight rows pass by.
const CLOSE: usize = 512;
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
        // Two or three tiles decode for themselves in less time than it takes to write a panel.
        let tiles = if W::Row::SCALED { 2 } else { 3 };
        if self.x.len() > tiles * L::MANY && self.blocks() > 0 {
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
        let (mut m, mut tiles) = (0, self.x.len().div_ceil(limit));
        while tiles > 0 {
            // Tiles of about one width: a narrow one would wait for its own sums.
            let count = (self.x.len() - m).div_ceil(tiles);
            tiles -= 1;
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
        let mut scratch = SCRATCH.take();
        let Scratch { panel, sums } = &mut scratch;
        panel.reserve(STRIPS * ROWS, W::Row::STEPS, self.blocks());
        if self.blocks() > panel.blocks {
            grow(sums, STRIPS * ROWS * each);
        }
        let sums = if self.blocks() > panel.blocks { sums.as_chunks_mut().0 } else { &mut [] };
        for (x, out) in self.x.chunks(each).zip(self.out.chunks_mut(each)) {
            let mut part = Products { w: self.w, start: self.start, x, out };
            let mut i = 0;
            while part.width() - i >= ROWS {
                let strips = STRIPS.min((part.width() - i) / ROWS);
                part.panels::<L, ROWS>(lanes, i, strips, panel, sums);
                i += strips * ROWS;
            }
            part.strips::<L, 1>(lanes, i, L::FEW);
        }
        SCRATCH.set(scratch);
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
            let sums = multiply_add(lanes, w, ahead, x, sums);
            if end == self.blocks {
                finish(lanes, sums, self.out, i);
            } else {
                wait::<L, R, C>(lanes, sums, waiting);
            }
        }
    }
}
