//! Routed experts of Kimi K2.6's size against what the machine allows: `cargo bench -p kd-moe --bench experts`.
//!
//! Eight experts, each with M rows: `gate_up` is [2 · 2048, 7168] an expert, `down` [7168, 2048]. The floor of an operation
//! is the larger of its weight bytes ÷ the read bandwidth and its multiply-adds ÷ the peak rate of the instruction, both
//! measured in the same run, the peak again beside every operation because clocks move. Three layers take turns, so that
//! weights come from memory. Threads: `KD_THREADS`, default 2; seconds for each M: `KD_SECONDS`, default 3. `KD_JSON=FILE`
//! writes every sample.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant;

use half::bf16;
use kd_moe::{Expert, Experts, Groups, Routing};
use kd_tensor::{Int4Matrix, Matrix, Pool, machine};

const EXPERTS: usize = 8;
const HIDDEN: usize = 7168;
const WIDTH: usize = 2048;
const LAYERS: usize = 3;

fn noise(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    }
}

fn int4(rows: usize, cols: usize, seed: u32) -> Int4Matrix {
    let mut next = noise(seed);
    let words: Vec<i32> = (0..rows * cols / 8).map(|_| next().rotate_left(11) as i32).collect();
    Int4Matrix::new(rows, cols, words, vec![bf16::from_f32(0.01); rows * cols / 32]).expect("the shape fits")
}

fn layer(seed: u32) -> Experts {
    let expert = |e: u32| Expert {
        gate: int4(WIDTH, HIDDEN, e),
        up: int4(WIDTH, HIDDEN, e + 1),
        down: int4(HIDDEN, WIDTH, e + 2),
    };
    Experts((0..EXPERTS as u32).map(|e| expert(seed + 3 * e)).collect())
}

fn matrix(rows: usize, cols: usize) -> Matrix {
    let mut next = noise(99);
    let values = (0..rows * cols).map(|_| (next() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect();
    Matrix::from_vec(rows, cols, values).expect("the shape fits")
}

/// One operation at one M: seconds of every run, and the peak measured beside it.
struct Samples {
    name: &'static str,
    rows: usize,
    work: usize,
    bytes: usize,
    seconds: Vec<f64>,
    /// Multiply-adds a second, a look beside every run.
    peaks: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl Samples {
    fn median(&self) -> f64 {
        median(&self.seconds)
    }

    fn peak(&self) -> f64 {
        self.peaks.iter().copied().fold(0.0, f64::max)
    }

    fn fastest(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::MAX, f64::min)
    }

    /// Seconds, and whether the bandwidth sets them.
    fn floor(&self, bandwidth: f64) -> (f64, bool) {
        let (read, compute) = (self.bytes as f64 / bandwidth, self.work as f64 / self.peak());
        (read.max(compute), read > compute)
    }
}

/// The routing of the first row alone.
fn first_row(routing: &Routing) -> Routing {
    let (ids, weights) = (routing.ids[..EXPERTS].to_vec(), routing.weights[..EXPERTS].to_vec());
    Routing { top_k: EXPERTS, ids, weights, scores: Matrix::zeros(1, EXPERTS) }
}

fn measure(pool: &Pool, layers: &[Experts], rows: usize, budget: f64) -> [Samples; 2] {
    let ids: Vec<u32> = (0..rows).flat_map(|_| 0..EXPERTS as u32).collect();
    let weights = vec![1.0; ids.len()];
    let routing = Routing { top_k: EXPERTS, ids, weights, scores: Matrix::zeros(rows, EXPERTS) };
    let groups = Groups::new(&routing, EXPERTS);
    let x = matrix(rows, HIDDEN);
    let hidden = layers[0].gate_up(pool, x.view(), &groups);
    let size = EXPERTS * WIDTH * HIDDEN;
    let samples = |name, matrices: usize| Samples {
        name,
        rows,
        work: matrices * rows * size,
        bytes: matrices * size * 9 / 16,
        seconds: Vec::new(),
        peaks: Vec::new(),
    };
    let mut both = [samples("gate_up", 2), samples("down", 1)];
    // The first product of a weight puts it in order.
    for layer in layers {
        black_box(layer.forward(pool, matrix(1, HIDDEN).view(), &first_row(&routing)));
    }
    let started = Instant::now();
    while both[0].seconds.len() < 2 * LAYERS || started.elapsed().as_secs_f64() < budget {
        let layer = &layers[both[0].seconds.len() % LAYERS];
        let start = Instant::now();
        black_box(layer.gate_up(pool, x.view(), &groups));
        both[0].seconds.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        black_box(layer.down(pool, rows, &hidden, &routing, &groups));
        both[1].seconds.push(start.elapsed().as_secs_f64());
        let peak = machine::peak(pool, 20);
        both.iter_mut().for_each(|s| s.peaks.push(peak));
    }
    both
}

fn main() {
    let threads = std::env::var("KD_THREADS").ok().and_then(|t| t.parse().ok());
    let threads = threads.or(NonZeroUsize::new(2)).expect("two is not zero");
    let seconds = std::env::var("KD_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let pool = Pool::new(threads).expect("threads start");
    let layers: Vec<Experts> = (0..LAYERS as u32).map(|l| layer(1000 * l)).collect();
    let bandwidth = machine::bandwidth(&pool, 600 << 20, 4);
    let mut all = Vec::new();
    for rows in [1, 8, 33, 128] {
        all.extend(measure(&pool, &layers, rows, seconds));
    }
    // Whatever the machine did meanwhile, the better of two looks is the floor.
    let bandwidth = bandwidth.max(machine::bandwidth(&pool, 600 << 20, 4));
    println!("{threads} threads, {:.1} GB/s read from memory", bandwidth / 1e9);
    let mut json = Vec::new();
    for s in &all {
        let (floor, bound) = s.floor(bandwidth);
        println!(
            "{:8} M = {:3}: median {:8.2} ms, fastest {:8.2} ms, floor {:7.2} ms ({}), ratio {:.2} / {:.2}; {:6.1} GMAC/s of {:6.1}, {:5.1} GB/s",
            s.name,
            s.rows,
            s.median() * 1e3,
            s.fastest() * 1e3,
            floor * 1e3,
            if bound { "bytes" } else { "multiply-adds" },
            s.median() / floor,
            s.fastest() / floor,
            s.work as f64 / s.median() / 1e9,
            s.peak() / 1e9,
            s.bytes as f64 / s.median() / 1e9,
        );
        let samples: Vec<String> = s.seconds.iter().map(|x| format!("{:.3}", x * 1e3)).collect();
        json.push(format!(
            "{{\"op\": \"{}\", \"rows_per_expert\": {}, \"bytes\": {}, \"multiply_adds\": {}, \"peak_gmac_s\": {:.1}, \"median_look_gmac_s\": {:.1}, \"floor_ms\": {:.3}, \"bound\": \"{}\", \"median_ms\": {:.3}, \"ratio\": {:.3}, \"samples_ms\": [{}]}}",
            s.name,
            s.rows,
            s.bytes,
            s.work,
            s.peak() / 1e9,
            median(&s.peaks) / 1e9,
            floor * 1e3,
            if bound { "bytes" } else { "multiply-adds" },
            s.median() * 1e3,
            s.median() / floor,
            samples.join(", "),
        ));
    }
    if let Ok(path) = std::env::var("KD_JSON") {
        let text = format!(
            "{{\"threads\": {threads}, \"read_gb_s\": {:.2}, \"measurements\": [\n {}\n]}}\n",
            bandwidth / 1e9,
            json.join(",\n ")
        );
        std::fs::write(path, text).expect("the results are written");
    }
}
