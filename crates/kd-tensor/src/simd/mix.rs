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
        let widest = if L::VECTORS >= 32 { 12 } else { 2 };
        let (mut done, chunks) = (0, self.out.len().div_ceil(widest));
        for chunk in 0..chunks {
            // Chunks of about one height: a low one would wait for its own sums.
            let count = (self.out.len() - done).div_ceil(chunks - chunk);
            let a = &self.coefficients[done..done + count];
            let (w, out) = (self.w, &mut self.out[done..done + count]);
            macro_rules! strip {
                ($($rows:literal)*) => {
                    match count {
                        $($rows if widest >= $rows => lanes.apart(Strip::<W, $rows> { a, w, out }),)*
                        _ => lanes.apart(Strip::<W, 1> { a, w, out }),
                    }
                };
            }
            strip!(12 11 10 9 8 7 6 5 4 3 2);
            done += count;
        }
    }
}

/// `N` rows of the result.
struct Strip<'a, 'o, W: ?Sized, const N: usize> {
    a: &'a [&'a [f32]],
    w: &'a W,
    out: &'a mut [&'o mut [f32]],
}

impl<W: PlainRows + ?Sized, const N: usize> Kernel for Strip<'_, '_, W, N> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        mix_rows::<L, W, N>(lanes, self.a, self.w, self.out);
    }
}

/// `N` rows of `out`.
#[inline(always)]
fn mix_rows<L: Lanes, W: PlainRows + ?Sized, const N: usize>(
    lanes: L,
    a: &[&[f32]],
    w: &W,
    out: &mut [&mut [f32]],
) {
    let mut coefficients: [&[f32]; N] = [&[]; N];
    for (to, a) in coefficients.iter_mut().zip(a) {
        *to = a;
    }
    let (width, mut start) = (out[0].len(), 0);
    // Few rows by themselves wait for their own sums, so they take several chunks at a time.
    while N <= 2 && L::VECTORS >= 32 && start + 4 * CHUNK <= width {
        whole::<L, W, N, 4>(lanes, coefficients, w, out, start / CHUNK);
        start += 4 * CHUNK;
    }
    while N <= 5 && L::VECTORS >= 32 && start + 2 * CHUNK <= width {
        whole::<L, W, N, 2>(lanes, coefficients, w, out, start / CHUNK);
        start += 2 * CHUNK;
    }
    while start + CHUNK <= width {
        whole::<L, W, N, 1>(lanes, coefficients, w, out, start / CHUNK);
        start += CHUNK;
    }
    if start < width {
        let mut edges = [[[0.0; LANES]; 2]; N];
        let mut sums = [[[lanes.splat(0.0); 2]; 1]; N];
        for m in 0..N {
            edges[m].as_flattened_mut()[..width - start].copy_from_slice(&out[m][start..]);
            sums[m][0] = [lanes.load(&edges[m][0]), lanes.load(&edges[m][1])];
        }
        if start + CHUNK <= w.cols() {
            tile(lanes, coefficients, w.rows(), |j| [w.plain(j).pair(lanes, start / CHUNK)], &mut sums);
        } else {
            let rest = |j| {
                let [low, high] = w.plain(j).rest();
                [(lanes.load(&low), lanes.load(&high))]
            };
            tile(lanes, coefficients, w.rows(), rest, &mut sums);
        }
        for m in 0..N {
            lanes.store(sums[m][0][0], &mut edges[m][0]);
            lanes.store(sums[m][0][1], &mut edges[m][1]);
            out[m][start..].copy_from_slice(&edges[m].as_flattened()[..width - start]);
        }
    }
}

/// `P` whole chunks of `N` rows from chunk `first` on.
#[inline(always)]
fn whole<L: Lanes, W: PlainRows + ?Sized, const N: usize, const P: usize>(
    lanes: L,
    coefficients: [&[f32]; N],
    w: &W,
    out: &mut [&mut [f32]],
    first: usize,
) {
    let mut sums = [[[lanes.splat(0.0); 2]; P]; N];
    for m in 0..N {
        let chunks = &pairs(out[m])[first..first + P];
        for p in 0..P {
            sums[m][p] = [lanes.load(&chunks[p][0]), lanes.load(&chunks[p][1])];
        }
    }
    let row = |j| {
        let row = w.plain(j);
        let mut chunks = [(lanes.splat(0.0), lanes.splat(0.0)); P];
        for (p, chunk) in chunks.iter_mut().enumerate() {
            *chunk = row.pair(lanes, first + p);
        }
        chunks
    };
    tile(lanes, coefficients, w.rows(), row, &mut sums);
    for m in 0..N {
        let chunks = &mut pairs_mut(out[m])[first..first + P];
        for p in 0..P {
            lanes.store(sums[m][p][0], &mut chunks[p][0]);
            lanes.store(sums[m][p][1], &mut chunks[p][1]);
        }
    }
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

/// `P` chunks of `N` sums, in registers throughout.
#[inline(always)]
fn tile<L: Lanes, const N: usize, const P: usize>(
    lanes: L,
    mut a: [&[f32]; N],
    count: usize,
    row: impl Fn(usize) -> [(L::V, L::V); P],
    sums: &mut [[[L::V; 2]; P]; N],
) {
    for a in &mut a {
        *a = &a[..count];
    }
    let mut held = *sums;
    let mut j = 0;
    while j < count {
        let chunks = row(j);
        for m in 0..N {
            let a = lanes.splat(a[m][j]);
            for p in 0..P {
                held[m][p][0] = lanes.mul_add(a, chunks[p].0, held[m][p][0]);
                held[m][p][1] = lanes.mul_add(a, chunks[p].1, held[m][p][1]);
            }
        }
        j += 1;
    }
    *sums = held;
}
