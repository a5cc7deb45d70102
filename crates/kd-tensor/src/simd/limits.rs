//! Loops that do nothing but what a limit is about: multiply-adds in registers, loads.

use std::hint::black_box;

use super::lanes::{LANES, Lanes, Line};
use super::{Kernel, Level};

/// Runs at least `count` vector multiply-adds between registers and returns how many single ones that were.
pub(crate) fn multiply_adds(count: usize) -> usize {
    Level::best().run(MultiplyAdds(count))
}

struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> usize {
        if L::VECTORS >= 32 { self.of::<L, 16>(lanes) } else { self.of::<L, 5>(lanes) }
    }
}

impl MultiplyAdds {
    /// Between `N` registers: more than multiply-adds are under way at a time.
    #[inline(always)]
    fn of<L: Lanes, const N: usize>(self, lanes: L) -> usize {
        let (a, b) = (lanes.splat(black_box(0.5)), lanes.splat(black_box(1.0)));
        // Sums that start alike would be made one.
        let mut sums = [a; N];
        for sum in &mut sums {
            *sum = lanes.splat(black_box(1.0));
        }
        let rounds = self.0.div_ceil(N);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = lanes.mul_add(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(stored(lanes, sum));
        }
        rounds * N * LANES
    }
}

/// Reads all whole lines of `data` as so many streams side by side; the sum of what it read.
pub(crate) fn read_all(data: &[f32], streams: usize) -> f32 {
    let lines = data.as_chunks().0;
    Level::best().run(Read { lines, stream: (lines.len() / streams.max(1)).max(1) })
}

struct Read<'a> {
    lines: &'a [Line],
    stream: usize,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let mut sums = [lanes.splat(0.0); 4];
        if self.stream == self.lines.len() {
            for four in self.lines.as_chunks::<4>().0 {
                for (sum, line) in sums.iter_mut().zip(four) {
                    *sum = lanes.add(*sum, lanes.load(line));
                }
            }
        } else {
            for i in 0..self.stream {
                for (s, stream) in self.lines.chunks_exact(self.stream).enumerate() {
                    sums[s % 4] = lanes.add(sums[s % 4], lanes.load(&stream[i]));
                }
            }
        }
        sums.into_iter().map(|sum| stored(lanes, sum)[0]).sum()
    }
}

#[inline(always)]
fn stored<L: Lanes>(lanes: L, v: L::V) -> Line {
    let mut line = [0.0; LANES];
    lanes.store(v, &mut line);
    line
}
