//! A tile: some weight rows against some activation rows, the sums in registers.

use super::lanes::{Lanes, Line};
use super::rows::WeightRow;

/// Sums as [`wait`] left them, or zeros for the first block.
#[inline(always)]
pub(super) fn waiting_sums<L: Lanes, const R: usize, const C: usize>(
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
pub(super) fn wait<L: Lanes, const R: usize, const C: usize>(
    lanes: L,
    sums: [[L::V; R]; C],
    waiting: &mut [Line],
) {
    for (sums, waiting) in sums.into_iter().zip(waiting.as_chunks_mut::<R>().0) {
        for r in 0..R {
            lanes.store(sums[r], &mut waiting[r]);
        }
    }
}

/// The blocks from `first` on of the first `C` of `x`.
#[inline(always)]
pub(super) fn activations<'a, R: WeightRow, const C: usize>(
    x: &[&'a [Line]],
    first: usize,
) -> [&'a [R::Lines]; C] {
    let mut blocks: [&[R::Lines]; C] = [&[]; C];
    for (blocks, x) in blocks.iter_mut().zip(x) {
        *blocks = &R::lines(x)[first..];
    }
    blocks
}

/// `out[c][i + r]` becomes the sum over the lanes of `sums[c][r]`, four at a time whatever the shape of the tile.
#[inline(always)]
pub(super) fn finish<L: Lanes, const R: usize, const C: usize>(
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

/// `sums` plus the products of all blocks of `w` with as many of `x`; the sums stay in registers throughout. Asks for
/// the rows `ahead` on the way.
#[inline(always)]
pub(super) fn multiply_add<L: Lanes, R: WeightRow, const ROWS: usize, const COLUMNS: usize>(
    lanes: L,
    w: [R; ROWS],
    ahead: [R; ROWS],
    mut x: [&[R::Lines]; COLUMNS],
    mut sums: [[L::V; ROWS]; COLUMNS],
) -> [[L::V; ROWS]; COLUMNS] {
    let whole = w[0].whole();
    let all = x;
    for x in &mut x {
        *x = &x[..whole];
    }
    // Plain counted loops over fixed arrays: they unroll, and the arrays become registers.
    let mut i = 0;
    while i < whole {
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
        i += 1;
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
