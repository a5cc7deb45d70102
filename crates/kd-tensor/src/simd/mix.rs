//! `y[m] += Σ_j a[m][j] · w[j]`: rows mixed by coefficients, each element summed in order of `j`.

use super::lanes::{LANES, Lanes, Line};
use super::rows::PlainRow;
use super::{Kernel, Level};
use crate::PlainRows;

/// Columns that are summed at a time: two vectors.
const CHUNK: usize = 2 * LANES;

struct Mix<'a, 'o, W: ?Sized> {
    coefficients: &'a [&'a [f32]],
    w: &'a W,
    out: &'a mut [&'o mut [f32]],
}

/// `out[m][c] += Σ_j coefficients[m][j] · w[j][c]`, in order of `j`, so that a sum may be continued by another call.
/// Where `out` is narrower than `w`, the remaining columns of `w` are left alone.
///
/// # Panics
/// If `coefficients` and `out` have different numbers of rows, `w` has other rows than `coefficients` columns, or `out`
/// has rows of different lengths or longer than those of `w`.
pub fn mix<W>(coefficients: &[&[f32]], w: &W, out: &mut [&mut [f32]])
where
    W: PlainRows + ?Sized,
{
    mix_at(Level::best(), coefficients, w, out);
}

pub(super) fn mix_at<W: PlainRows + ?Sized>(
    level: Level,
    coefficients: &[&[f32]],
    w: &W,
    out: &mut [&mut [f32]],
) {
    assert_eq!(coefficients.len(), out.len(), "rows of coefficients and of the result");
    assert!(coefficients.iter().all(|a| a.len() == w.rows()), "coefficients and rows to mix");
    if w.rows() == 0 {
        return;
    }
    let width = out.first().map_or(0, |row| row.len());
    assert!(out.iter().all(|row| row.len() == width) && width <= w.cols(), "columns of the result");
    level.run(Mix { coefficients, w, out });
}

impl<W: PlainRows + ?Sized> Kernel for Mix<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let mut done = 0;
        while done < self.out.len() {
            let a = &self.coefficients[done..];
            let out = &mut self.out[done..];
            // A chunk is two vectors wide, so there are a third as many rows of them as a tile has sums.
            done += if L::VECTORS >= 32 && out.len() >= 8 {
                mix_rows::<L, _, 8>(lanes, a, self.w, out)
            } else if L::VECTORS >= 32 && out.len() >= 4 {
                mix_rows::<L, _, 4>(lanes, a, self.w, out)
            } else if out.len() >= 2 {
                mix_rows::<L, _, 2>(lanes, a, self.w, out)
            } else {
                mix_rows::<L, _, 1>(lanes, a, self.w, out)
            };
        }
    }
}

/// The first `N` rows of `out`. Returns `N`.
#[inline(always)]
fn mix_rows<L: Lanes, W: PlainRows + ?Sized, const N: usize>(
    lanes: L,
    a: &[&[f32]],
    w: &W,
    out: &mut [&mut [f32]],
) -> usize {
    let mut coefficients: [&[f32]; N] = [&[]; N];
    for (to, a) in coefficients.iter_mut().zip(a) {
        *to = a;
    }
    let width = out[0].len();
    for start in (0..width).step_by(CHUNK) {
        let mut sums = [[lanes.splat(0.0); 2]; N];
        if start + CHUNK <= width {
            for m in 0..N {
                let [low, high] = &pairs(out[m])[start / CHUNK];
                sums[m] = [lanes.load(low), lanes.load(high)];
            }
            tile(lanes, coefficients, w.rows(), |j| w.plain(j).pair(lanes, start / CHUNK), &mut sums);
            for m in 0..N {
                let [low, high] = &mut pairs_mut(out[m])[start / CHUNK];
                lanes.store(sums[m][0], low);
                lanes.store(sums[m][1], high);
            }
            continue;
        }
        let mut edges = [[[0.0; LANES]; 2]; N];
        for m in 0..N {
            edges[m].as_flattened_mut()[..width - start].copy_from_slice(&out[m][start..]);
            sums[m] = [lanes.load(&edges[m][0]), lanes.load(&edges[m][1])];
        }
        if start + CHUNK <= w.cols() {
            tile(lanes, coefficients, w.rows(), |j| w.plain(j).pair(lanes, start / CHUNK), &mut sums);
        } else {
            let rest = |j| {
                let [low, high] = w.plain(j).rest();
                (lanes.load(&low), lanes.load(&high))
            };
            tile(lanes, coefficients, w.rows(), rest, &mut sums);
        }
        for m in 0..N {
            lanes.store(sums[m][0], &mut edges[m][0]);
            lanes.store(sums[m][1], &mut edges[m][1]);
            out[m][start..].copy_from_slice(&edges[m].as_flattened()[..width - start]);
        }
    }
    N
}

/// Whole chunks of a row.
#[inline(always)]
fn pairs(row: &[f32]) -> &[[Line; 2]] {
    row.as_chunks().0.as_chunks().0
}

#[inline(always)]
fn pairs_mut(row: &mut [f32]) -> &mut [[Line; 2]] {
    row.as_chunks_mut().0.as_chunks_mut().0
}

/// One chunk of `N` sums, in registers throughout.
#[inline(always)]
fn tile<L: Lanes, const N: usize>(
    lanes: L,
    mut a: [&[f32]; N],
    count: usize,
    row: impl Fn(usize) -> (L::V, L::V),
    sums: &mut [[L::V; 2]; N],
) {
    for m in 0..N {
        a[m] = &a[m][..count];
    }
    let mut held = *sums;
    let mut j = 0;
    while j < count {
        let (low, high) = row(j);
        for m in 0..N {
            let a = lanes.splat(a[m][j]);
            held[m][0] = lanes.mul_add(a, low, held[m][0]);
            held[m][1] = lanes.mul_add(a, high, held[m][1]);
        }
        j += 1;
    }
    *sums = held;
}
