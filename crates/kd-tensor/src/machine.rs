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

/// Seconds that `work` takes on all threads of the pool, from the first one's start to the last one's end: the fastest of
/// `rounds` calls. Threads wait for each other before each, so that none does another's share; one that the system stops after
/// that starts late, and the wait counts.
fn together<T: Sync>(pool: &Pool, rounds: usize, items: &[T], work: impl Fn(&T) + Sync + Send) -> f64 {
    let round = |_| {
        let spans = pool.in_parts(items.iter().collect(), |others, _, item: &T| {
            others.all_gather_rows(Matrix::default()).expect("all threads do the same");
            let start = Instant::now();
            work(item);
            (start, Instant::now())
        });
        extent(&spans)
    };
    (0..rounds).map(round).fold(f64::MAX, f64::min)
}

/// Seconds from the first start to the last end.
fn extent(spans: &[(Instant, Instant)]) -> f64 {
    let start = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64())
}

/// f32 multiply-adds a second over all threads of the pool, from a loop between registers: the best of `rounds` of some
/// hundred microseconds: threads start up to a microsecond or so apart, and that counts.
pub fn peak(pool: &Pool, rounds: usize) -> f64 {
    const LENGTH: usize = 10 << 16;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Threads that the system runs one after the other have not shared the work: each one's own time would say twice the rate.
    #[test]
    fn threads_that_do_not_overlap_took_the_time_of_all() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(extent(&[(at(10), at(20)), (at(0), at(10))]), 0.02);
        assert_eq!(extent(&[(at(0), at(10)), (at(2), at(9))]), 0.01);
    }
}
