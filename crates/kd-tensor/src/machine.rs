//! What this machine allows: the rates that measured times are compared with.

use std::hint::black_box;
use std::time::Instant;

use crate::lasting::Lasting;
use crate::simd::{multiply_adds, read_all};
use crate::{Matrix, Pool};

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

/// Seconds that `work` takes on all threads of the pool at once, the slowest one's: the fastest of `rounds` calls. Threads wait for
/// each other before each, so that none does another's share while that one is not running.
fn together<T: Sync>(pool: &Pool, rounds: usize, items: &[T], work: impl Fn(&T) + Sync + Send) -> f64 {
    let round = |_| {
        let seconds = pool.in_parts(items.iter().collect(), |others, _, item: &T| {
            others.all_gather_rows(Matrix::default()).expect("all threads do the same");
            let start = Instant::now();
            work(item);
            start.elapsed().as_secs_f64()
        });
        seconds.into_iter().fold(0.0, f64::max)
    };
    (0..rounds).map(round).fold(f64::MAX, f64::min)
}

/// f32 multiply-adds a second over all threads of the pool, from a loop between registers: the best of `rounds` of some
/// ten microseconds.
pub fn peak(pool: &Pool, rounds: usize) -> f64 {
    const LENGTH: usize = 1 << 16;
    let done = pool.threads() * multiply_adds(LENGTH);
    let seconds = together(pool, rounds, &vec![(); pool.threads()], |()| {
        black_box(multiply_adds(black_box(LENGTH)));
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
        together(pool, rounds, &data, |data| {
            for _ in 0..repeats {
                black_box(read_all(black_box(&**data), streams));
            }
        })
    };
    (repeats * pool.threads() * share * 4) as f64 / read(1).min(read(8))
}
