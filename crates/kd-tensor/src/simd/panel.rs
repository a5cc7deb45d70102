//! Panels: blocks of weight rows that are decoded once for many activation rows.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Kernel;
use super::lanes::{LANES, Lanes, Line};
use super::rows::{Decoded, WeightRow};
use super::tile::{activations, finish, multiply_add, wait, waiting_sums};
use crate::buffer::Buffer;

/// Lines of a weight row that are decoded together, where several tiles of activations use them: those of six activation
/// rows stay in the first-level cache.
const PANEL: usize = 64;
thread_local! {
    /// Kept from product to product: to ask for zeroed memory each time would cost as much as a small product.
    pub(super) static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch::EMPTY) };
}

/// What a thread needs for panels.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) panel: Panel,
    /// Sums that wait between panels.
    pub(super) sums: Buffer,
}

impl Scratch {
    const EMPTY: Self = Self {
        panel: Panel { blocks: 0, values: Buffer::EMPTY, scales: Buffer::EMPTY },
        sums: Buffer::EMPTY,
    };
}

/// Makes room for so many lines.
pub(super) fn grow(buffer: &mut Buffer, lines: usize) {
    if buffer.len() < lines * LANES {
        *buffer = Buffer::zeros(lines * LANES);
    }
}

/// Decoded blocks of some weight rows.
#[derive(Default)]
pub(super) struct Panel {
    /// Most blocks of a row.
    pub(super) blocks: usize,
    values: Buffer,
    scales: Buffer,
}

impl Panel {
    pub(super) fn reserve(&mut self, rows: usize, steps: usize, blocks: usize) {
        self.blocks = blocks.min(PANEL / steps);
        grow(&mut self.values, rows * self.blocks * steps);
        grow(&mut self.scales, rows * self.blocks);
    }

    /// Rows of `blocks` blocks, and their scales if they have any.
    #[inline(always)]
    pub(super) fn decode<L: Lanes, R: WeightRow>(
        &mut self,
        lanes: L,
        rows: impl Iterator<Item = R>,
        blocks: usize,
    ) {
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
        for (r, row) in rows.iter_mut().enumerate() {
            let at = strip * ROWS + r;
            row.lines = R::lines(&values[at * blocks * R::STEPS..][..blocks * R::STEPS]);
            row.scales = &scales[at * blocks..][..blocks];
        }
        rows
    }
}

/// A pass of a panel over activation rows.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    /// The column of the result that the first row of the panel is for.
    pub(super) i: usize,
    /// Strips in the panel.
    pub(super) strips: usize,
    /// The first block.
    pub(super) first: usize,
    /// Number of blocks.
    pub(super) blocks: usize,
    /// Whether the sums are complete after it.
    pub(super) last: bool,
}

/// All strips of a panel against all of `x`, `C` rows at a time.
pub(super) struct Tiles<'a, 'o, W, const R: usize, const C: usize> {
    panel: &'a Panel,
    pass: Pass,
    x: &'a [&'a [Line]],
    out: &'a mut [&'o mut [f32]],
    sums: &'a mut [Line],
    form: PhantomData<W>,
}

impl<'a, 'o, W, const R: usize, const C: usize> Tiles<'a, 'o, W, R, C> {
    pub(super) fn new(
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
                let sums = multiply_add(lanes, w, w, x, sums);
                if last {
                    finish(lanes, sums, out, i + strip * R);
                } else {
                    wait::<L, R, C>(lanes, sums, waiting);
                }
            }
        }
    }
}
