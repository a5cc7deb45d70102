//! Single products against what the machine allows: `cargo bench -p kd-tensor --bench products`.
//!
//! The floor of a product is the larger of its weight bytes ÷ the read bandwidth of where they lie and its multiply-adds ÷
//! the peak rate of the instruction, measured beside it. Times are the best of many, as the machine may be shared.
//! `KD_THREADS` sets the number of threads, default 1.

use std::hint::black_box;
use std::num::NonZeroUsize;

use half::bf16;
use kd_tensor::{Bf16Matrix, Int4Matrix, Matrix, Pool, WeightRows, linear, machine};

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

/// Products with each of `weights` in turn.
fn report<W: WeightRows>(pool: &Pool, what: &str, weights: &[W], bytes: usize, rows: &[usize]) {
    let bandwidth = machine::bandwidth(pool, bytes * weights.len(), 4);
    for &m in rows {
        let (n, k) = (weights[0].rows(), weights[0].cols());
        let x =
            Matrix::from_vec(m, k, noise(m * k).map(|w| w as f32 * 1e-10).collect()).expect("the shape fits");
        let mut fastest = vec![f64::MAX; weights.len()];
        let mut peak = 0f64;
        for _ in 0..if weights.len() == 1 { 500 } else { 4 } {
            for (w, fastest) in weights.iter().zip(&mut fastest) {
                *fastest = fastest.min(machine::fastest(1, || {
                    black_box(linear(pool, x.view(), w));
                }));
            }
            peak = peak.max(machine::peak(pool, 3));
        }
        let seconds = fastest.iter().sum::<f64>() / weights.len() as f64;
        let (read, compute) = (bytes as f64 / bandwidth, (m * n * k) as f64 / peak);
        println!(
            "{what} [{n}, {k}], M = {m:3}: {:9.1} µs, {:4.2} × floor ({}), {:5.1} of {:5.1} GMAC/s, {:4.1} of {:4.1} GB/s",
            seconds * 1e6,
            seconds / read.max(compute),
            if read > compute { "bytes" } else { "multiply-adds" },
            (m * n * k) as f64 / seconds / 1e9,
            peak / 1e9,
            bytes as f64 / seconds / 1e9,
            bandwidth / 1e9,
        );
    }
}

fn main() {
    let threads = std::env::var("KD_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(NonZeroUsize::MIN);
    let pool = Pool::new(threads).expect("threads start");
    // An expert of Kimi K2.6 in slices, from memory.
    let up: Vec<Int4Matrix> = (0..64).map(|_| int4(512, 7168)).collect();
    report(&pool, "int4 up  ", &up, 512 * 7168 * 9 / 16, &[1, 8, 33, 128]);
    drop(up);
    let down: Vec<Int4Matrix> = (0..64).map(|_| int4(1792, 2048)).collect();
    report(&pool, "int4 down", &down, 1792 * 2048 * 9 / 16, &[1, 8, 33, 128]);
    drop(down);
    // An output projection and a query projection of it in slices, from memory.
    for (rows, cols) in [(448, 8192), (1536, 1536)] {
        let slices: Vec<Bf16Matrix> = (0..32).map(|_| dense(rows, cols)).collect();
        report(&pool, "bf16     ", &slices, 2 * rows * cols, &[1, 8, 33, 128]);
    }
    // The demo pair's matrices.
    report(&pool, "int4     ", &[int4(128, 256)], 128 * 256 * 9 / 16, &[1, 2, 3, 5, 8, 17]);
    report(&pool, "bf16     ", &[dense(256, 256)], 256 * 256 * 2, &[1, 17]);
    report(&pool, "bf16     ", &[dense(4352, 256)], 4352 * 256 * 2, &[1, 7, 17, 33]);
}
