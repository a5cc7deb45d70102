//! What this machine allows: the rates that measured times are compared with.

use std::hint::black_box;
use std::time::Instant;

use crate::Pool;
use crate::lasting::Lasting;
use crate::simd::{multiply_adds, read_all};

/// Seconds of the fastest of `rounds` calls.
pub fn fastest(rounds: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// f32 multiply-adds a second over all threads of the pool, from a loop between registers: the best of `rounds` of some
/// ten microseconds.
pub fn peak(pool: &Pool, rounds: usize) -> f64 {
    const LENGTH: usize = 1 << 16;
    let done = pool.threads() * multiply_adds(LENGTH);
    let seconds = fastest(rounds, || {
        pool.for_each(vec![(); pool.threads()], |()| {
            black_box(multiply_adds(black_box(LENGTH)));
        });
    });
    done as f64 / seconds
}

/// Bytes a second that all threads of the pool together read from `bytes` of memory, each over and over its own share: the
/// best of `rounds`, and of one stream of addresses a thread or eight.
///
/// With more bytes than the caches of a level hold it is the bandwidth of the next one.
pub fn bandwidth(pool: &Pool, bytes: usize, rounds: usize) -> f64 {
    let share = (bytes / 4 / pool.threads()).next_multiple_of(128);
    // The memory that weights lie in, once written.
    let mut data: Vec<Lasting> = (0..pool.threads()).map(|_| Lasting::zeros(share)).collect();
    data.iter_mut().for_each(|data| data.fill(1.0));
    let repeats = ((1 << 22) / bytes.max(1)).max(1);
    let read = |streams: usize| {
        pool.for_each(data.iter().collect(), |data: &Lasting| {
            for _ in 0..repeats {
                black_box(read_all(black_box(&**data), streams));
            }
        });
    };
    let seconds = fastest(rounds, || read(1)).min(fastest(rounds, || read(8)));
    (repeats * pool.threads() * share * 4) as f64 / seconds
}
