//! Loops that do nothing but what a limit is about: multiply-adds in registers, loads.

use std::hint::black_box;

use super::lanes::{LANES, Lanes};
use super::{Kernel, Level};

/// Sums that depend on nothing but themselves: enough to keep the multiply-add units busy.
const SUMS: usize = 8;

/// Runs at least `count` vector multiply-adds between registers and returns how many single ones that were.
pub(crate) fn multiply_adds(count: usize) -> usize {
    Level::best().run(MultiplyAdds(count))
}

struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const TALL: usize, const COLUMNS: usize>(self, lanes: L) -> usize {
        let (a, b) = (lanes.splat(black_box(0.5)), lanes.splat(black_box(1.0)));
        // Sums that start alike would be made one.
        let mut sums = [a; SUMS];
        for sum in &mut sums {
            *sum = lanes.splat(black_box(1.0));
        }
        let rounds = self.0.div_ceil(SUMS);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = lanes.mul_add(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(lanes.join4([sum; 4]));
        }
        rounds * SUMS * LANES
    }
}

/// Reads all whole lines of `data`; the sum of what it read.
pub(crate) fn read_all(data: &[f32]) -> f32 {
    Level::best().run(Read(data.as_chunks().0))
}

struct Read<'a>(&'a [[f32; LANES]]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize, const TALL: usize, const COLUMNS: usize>(self, lanes: L) -> f32 {
        let mut sums = [lanes.splat(0.0); 4];
        for four in self.0.as_chunks::<4>().0 {
            for (sum, line) in sums.iter_mut().zip(four) {
                *sum = lanes.add(*sum, lanes.load(line));
            }
        }
        lanes.join4(sums).into_iter().sum()
    }
}
