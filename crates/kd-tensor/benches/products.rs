//! Weight products against what the machine allows: `cargo bench -p kd-tensor --bench products`.
//!
//! The floor of a product is the larger of its weight bytes ÷ the read bandwidth and its multiply-adds ÷ the peak of
//! the multiply-add instruction, both measured in the same run. Times are the best of many, as the machine may be
//! shared.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant;

use half::bf16;
use kd_tensor::{Bf16Matrix, Int4Matrix, Matrix, Pool, WeightRows, linear};

/// Seconds of the fastest of `rounds` calls.
fn best(rounds: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Runs `f` on every thread of the pool at once.
fn on_all(pool: &Pool, f: impl Fn() + Sync) {
    pool.for_each(vec![(); pool.threads()], |()| f());
}

/// Multiply-adds a second over all threads, from a loop that touches registers only.
fn peak(pool: &Pool) -> f64 {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn loop512(rounds: usize) {
        use std::arch::x86_64::*;
        let (a, b) = (_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(0.5)));
        let mut sums = [_mm512_setzero_ps(); 16];
        for _ in 0..rounds {
            sums.iter_mut().for_each(|s| *s = _mm512_fmadd_ps(a, b, *s));
        }
        black_box(sums.map(|s| _mm512_reduce_add_ps(s)));
    }
    const ROUNDS: usize = 200_000;
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512 F, as was just checked.
        let seconds = best(30, || on_all(pool, || unsafe { loop512(ROUNDS) }));
        return (pool.threads() * ROUNDS * 16 * 16) as f64 / seconds;
    }
    let (a, b) = (black_box([1.0f32; 16]), black_box([0.5f32; 16]));
    let seconds = best(30, || {
        on_all(pool, || {
            let mut sums = [0.0f32; 16];
            for _ in 0..ROUNDS {
                for i in 0..16 {
                    sums[i] += a[i] * b[i];
                }
            }
            black_box(sums);
        });
    });
    (pool.threads() * ROUNDS * 16) as f64 / seconds
}

/// Bytes a second that all threads together read from memory that fits no cache.
fn bandwidth(pool: &Pool, bytes: usize) -> f64 {
    let data = vec![1u64; bytes / 8];
    let parts: Vec<&[u64]> = data.chunks(data.len().div_ceil(4 * pool.threads())).collect();
    let seconds = best(10, || {
        pool.for_each(parts.clone(), |part| {
            black_box(part.iter().fold(0, |a, b| a | b));
        });
    });
    bytes as f64 / seconds
}

fn noise(len: usize) -> impl Iterator<Item = u32> {
    let mut state = 1u32;
    (0..len).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    })
}

fn int4(rows: usize, cols: usize) -> Int4Matrix {
    let words: Vec<i32> = noise(rows * cols / 8).map(|w| w as i32).collect();
    Int4Matrix::new(rows, cols, words, vec![bf16::from_f32(0.01); rows * cols / 32]).expect("the shape fits")
}

fn dense(rows: usize, cols: usize) -> Bf16Matrix {
    let values: Vec<bf16> = noise(rows * cols).map(|w| bf16::from_f32((w >> 8) as f32 * 1e-8)).collect();
    Bf16Matrix::new(rows, cols, values).expect("the shape fits")
}

struct Machine {
    pool: Pool,
    peak: f64,
    bandwidth: f64,
}

/// Times products with each of `weights` in turn, so that together they come from memory, and adds up the best times:
/// each is short enough to be spared by whatever else the machine does.
fn report<W: WeightRows>(machine: &Machine, what: &str, weights: &[W], bytes: usize, rows: &[usize]) {
    for &m in rows {
        let (n, k) = (weights[0].rows(), weights[0].cols());
        let x =
            Matrix::from_vec(m, k, noise(m * k).map(|w| w as f32 * 1e-10).collect()).expect("the shape fits");
        let mut fastest = vec![f64::MAX; weights.len()];
        for _ in 0..if weights.len() == 1 { 2000 } else { 8 } {
            for (w, fastest) in weights.iter().zip(&mut fastest) {
                *fastest = fastest.min(best(1, || {
                    black_box(linear(&machine.pool, x.view(), w));
                }));
            }
        }
        let seconds = fastest.iter().sum::<f64>() / weights.len() as f64;
        let (read, compute) = (bytes as f64 / machine.bandwidth, (m * n * k) as f64 / machine.peak);
        println!(
            "{what} [{n}, {k}], M = {m:3}: {:9.1} µs, {:4.2} × floor ({}), {:5.1} GMAC/s, {:4.1} GB/s",
            seconds * 1e6,
            seconds / read.max(compute),
            if read > compute { "bandwidth" } else { "multiply-adds" },
            (m * n * k) as f64 / seconds / 1e9,
            bytes as f64 / seconds / 1e9,
        );
    }
}

fn main() {
    let threads = std::env::var("KD_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(NonZeroUsize::MIN);
    let pool = Pool::new(threads).expect("threads start");
    let empty = best(2000, || on_all(&pool, || {}));
    let mut machine = Machine { peak: peak(&pool), bandwidth: bandwidth(&pool, 1 << 29), pool };
    println!(
        "{} threads: {:.1} GMAC/s, {:.1} GB/s from memory, empty region {:.2} µs",
        machine.pool.threads(),
        machine.peak / 1e9,
        machine.bandwidth / 1e9,
        empty * 1e6
    );
    let rows = [1, 4, 8, 33, 128];
    // Eight experts of Kimi K2.6, cut into slices.
    let up: Vec<Int4Matrix> = (0..8 * 16).map(|_| int4(2048 / 16, 7168)).collect();
    report(&machine, "int4 up  ", &up, 2048 / 16 * 7168 * 9 / 16, &rows);
    drop(up);
    let down: Vec<Int4Matrix> = (0..8 * 16).map(|_| int4(7168 / 16, 2048)).collect();
    report(&machine, "int4 down", &down, 2048 * 7168 / 16 * 9 / 16, &rows);
    drop(down);
    // The demo pair's matrices lie in the second-level cache.
    machine.bandwidth = f64::INFINITY;
    report(&machine, "int4     ", &[int4(128, 256)], 128 * 256 * 9 / 16, &[1, 17]);
    report(&machine, "bf16     ", &[dense(256, 256)], 256 * 256 * 2, &[1, 17]);
    report(&machine, "bf16     ", &[dense(4352, 256)], 4352 * 256 * 2, &[1, 7, 17]);
}
