//! Time to choose one token at K2.6's vocabulary, from a flat row (every entry could win) and from a peaked one.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kd_sample::noise::Noise;
use kd_sample::{History, Sampler, SamplingParams};

const VOCAB: u32 = 163_840;

/// Logistic noise of the given scale: the larger, the more the mass gathers on few entries.
fn row(scale: f64) -> Vec<f32> {
    let (a, b) = (Noise::new(1, 0, 0), Noise::new(2, 0, 0));
    (0..VOCAB).map(|id| (scale * (a.gumbel(id) - b.gumbel(id))) as f32).collect()
}

fn choose(c: &mut Criterion) {
    let sampled = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    let cases = [
        ("greedy", SamplingParams::default()),
        ("full", sampled.clone()),
        ("top_k64_top_p0.95", SamplingParams { top_k: 64, top_p: 0.95, ..sampled.clone() }),
        ("top_p0.95", SamplingParams { top_p: 0.95, ..sampled.clone() }),
        ("min_p0.05", SamplingParams { min_p: 0.05, ..sampled.clone() }),
        ("penalties", SamplingParams { repetition_penalty: 1.1, ..sampled.clone() }),
        ("greedy_logprobs", SamplingParams { logprobs: Some(5), ..SamplingParams::default() }),
    ];
    let history = History::new(&(0..2000).collect::<Vec<_>>());
    for (shape, scale) in [("flat", 1.0), ("peaked", 2.0)] {
        let row = row(scale);
        let mut group = c.benchmark_group(format!("choose_163840_{shape}"));
        for (name, params) in &cases {
            let mut sampler = Sampler::new();
            let mut position = 0;
            group.bench_function(*name, |b| {
                b.iter(|| {
                    position += 1;
                    sampler.choose(black_box(&row), &history, params, position, 0)
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, choose);
criterion_main!(benches);
