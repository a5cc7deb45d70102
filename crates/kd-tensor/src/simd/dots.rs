//! Dot products of f32 rows that lie anywhere, as queries with cached keys: a tile of keys against one of queries.

use super::lanes::{LANES, Lanes, Line};
use super::{Kernel, Level};

/// `out[m][i] = keys[i] · x[m]`, each in the order of [`super::dot`].
///
/// # Panics
/// If rows of `keys` and `x` have different lengths, or `out` another shape.
pub(crate) fn dots(level: Level, keys: &[&[f32]], x: &[&[f32]], out: &mut [&mut [f32]]) {
    assert_eq!(x.len(), out.len(), "rows of x and of the result");
    assert!(out.iter().all(|row| row.len() == keys.len()), "columns of the result");
    let cols = keys.first().map_or(0, |key| key.len());
    assert!(keys.iter().chain(x).all(|row| row.len() == cols), "lengths of the rows");
    if !keys.is_empty() {
        level.run(Dots { keys, x, out });
    }
}

struct Dots<'a, 'o> {
    keys: &'a [&'a [f32]],
    x: &'a [&'a [f32]],
    out: &'a mut [&'o mut [f32]],
}

impl Kernel for Dots<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let widest = if L::VECTORS >= 32 { 6 } else { 3 };
        let (mut m, chunks) = (0, self.x.len().div_ceil(widest));
        for chunk in 0..chunks {
            // Chunks of about one width: a narrow one would wait for its own sums.
            let count = (self.x.len() - m).div_ceil(chunks - chunk);
            let (keys, x, out) = (self.keys, &self.x[m..m + count], &mut self.out[m..m + count]);
            match count {
                6 if widest >= 6 => lanes.apart(Strip::<6> { keys, x, out }),
                5 if widest >= 5 => lanes.apart(Strip::<5> { keys, x, out }),
                4 if widest >= 4 => lanes.apart(Strip::<4> { keys, x, out }),
                3 => lanes.apart(Strip::<3> { keys, x, out }),
                2 => lanes.apart(Strip::<2> { keys, x, out }),
                _ => lanes.apart(Strip::<1> { keys, x, out }),
            }
            m += count;
        }
    }
}

/// All keys against `C` rows of `x`.
struct Strip<'a, 'o, const C: usize> {
    keys: &'a [&'a [f32]],
    x: &'a [&'a [f32]],
    out: &'a mut [&'o mut [f32]],
}

impl<const C: usize> Kernel for Strip<'_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (whole, mut i) = (self.x[0].len() / LANES, 0);
        let (mut x, mut tails) = ([&[][..]; C], [lanes.splat(0.0); C]);
        for c in 0..C {
            let (lines, tail) = self.x[c].as_chunks();
            (x[c], tails[c]) = (&lines[..whole], lanes.load_part(tail, 0.0));
        }
        while C == 1 && L::VECTORS >= 32 && i + 8 <= self.keys.len() {
            self.tile::<L, 8>(lanes, i, x, tails);
            i += 8;
        }
        while L::VECTORS >= 32 && i + 4 <= self.keys.len() {
            self.tile::<L, 4>(lanes, i, x, tails);
            i += 4;
        }
        while i + 2 <= self.keys.len() {
            self.tile::<L, 2>(lanes, i, x, tails);
            i += 2;
        }
        if i < self.keys.len() {
            self.tile::<L, 1>(lanes, i, x, tails);
        }
    }
}

impl<const C: usize> Strip<'_, '_, C> {
    #[inline(always)]
    fn tile<L: Lanes, const R: usize>(&mut self, lanes: L, i: usize, x: [&[Line]; C], tails: [L::V; C]) {
        // Plain counted loops over fixed arrays of slices of one length: they unroll, and the arrays become registers.
        let (whole, rest) = (x[0].len(), self.x[0].len() % LANES);
        let mut keys: [&[Line]; R] = [&[]; R];
        for (r, key) in keys.iter_mut().enumerate() {
            *key = &self.keys[i + r].as_chunks().0[..whole];
        }
        let mut sums = [[lanes.splat(0.0); R]; C];
        let mut k = 0;
        while k < whole {
            let mut w = [lanes.splat(0.0); R];
            for r in 0..R {
                w[r] = lanes.load(&keys[r][k]);
            }
            for c in 0..C {
                let x = lanes.load(&x[c][k]);
                for r in 0..R {
                    sums[c][r] = lanes.mul_add(w[r], x, sums[c][r]);
                }
            }
            k += 1;
        }
        if rest > 0 {
            let mut w = [lanes.splat(0.0); R];
            for (r, w) in w.iter_mut().enumerate() {
                *w = lanes.load_part(self.keys[i + r].as_chunks::<LANES>().1, 0.0);
            }
            for c in 0..C {
                for r in 0..R {
                    sums[c][r] = lanes.mul_add(w[r], tails[c], sums[c][r]);
                }
            }
        }
        let mut c = 0;
        while c < C {
            let out = &mut self.out[c][i..i + R];
            let mut r = 0;
            while r < R {
                let mut four = [lanes.splat(0.0); 4];
                let count = if R - r < 4 { R - r } else { 4 };
                let mut k = 0;
                while k < count {
                    four[k] = sums[c][r + k];
                    k += 1;
                }
                out[r..r + count].copy_from_slice(&lanes.join4(four)[..count]);
                r += 4;
            }
            c += 1;
        }
    }
}
