//! The demo pair against what the machine allows: `cargo bench -p kd-engine --bench demo`.
//!
//! Plain decoding and trees of 8, 16 and 32 nodes, one stream. The floor of a round is the larger of its multiply-adds ÷
//! the peak rate of the instruction and the weight bytes that it must at least touch ÷ the read bandwidth over a working set
//! of that size, both measured in the same run. Only rows that the round has are counted, every expert once a row for
//! operations and as few experts as one row needs for bytes; norms, softmax, sampling and tree building count nothing.
//! Threads: `KD_THREADS`, default 2. `KD_JSON=FILE` writes every sample. `KD_ONLY=tree16` repeats one mode for a profiler. `KD_DEMO`: the pair's folder, where
//! it is not this repository's.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kd_engine::{Engine, EngineOptions, Models, Request, Round, Speculation};
use kd_model::{Drafter, Target};
use kd_tensor::{Pool, machine};
use kd_text::Tokenizer;

const PROMPTS: [&str; 3] = [
    "fn main() {\n    let args: Vec<String> = std::env::args().collect();\n    for arg in &args[1..] {\n",
    "Explain how a hash map works and when to prefer a sorted tree over it.",
    "The engine reads the checkpoint, checks every tensor against the configuration and then ",
];
const TOKENS: usize = 96;
const MODES: [(&str, Speculation); 4] = [
    ("plain", Speculation::Plain),
    ("tree8", Speculation::Tree { nodes: 8 }),
    ("tree16", Speculation::Tree { nodes: 16 }),
    ("tree32", Speculation::Tree { nodes: 32 }),
];

/// Multiply-adds and weight bytes of a pass.
#[derive(Default, Clone, Copy)]
struct Work {
    multiply_adds: usize,
    bytes: usize,
}

impl Work {
    /// `rows` products with a bf16 matrix of `size` elements.
    fn dense(&mut self, rows: usize, size: usize) {
        self.multiply_adds += rows * size;
        self.bytes += 2 * size;
    }
}

/// One pass of the target over a tree: `rows` rows after `start` committed tokens, each with about `own` tree keys.
fn verify(target: &Target, rows: usize, start: usize, own: usize) -> Work {
    let c = target.config();
    let (hidden, heads, latent) = (c.hidden_size, c.num_attention_heads, c.kv_lora_rank);
    let (nope, rope, value) = (c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim);
    let mut work = Work::default();
    for layer in 0..c.num_hidden_layers {
        let rank = c.q_lora_rank.unwrap_or(0);
        let wide = heads * (nope + rope);
        work.dense(rows, if rank > 0 { rank * (hidden + wide) } else { hidden * wide });
        work.dense(rows, hidden * (latent + rope));
        work.dense(rows, heads * latent * (nope + value));
        work.dense(rows, hidden * heads * value);
        work.multiply_adds += rows * heads * (start + own) * (2 * latent + rope);
        work.bytes += start * (latent + rope) * 4;
        if layer < c.first_k_dense_replace {
            work.dense(rows, 3 * hidden * c.intermediate_size);
        } else {
            let expert = 3 * hidden * c.moe_intermediate_size;
            work.dense(rows, hidden * c.n_routed_experts);
            work.dense(rows, c.n_shared_experts * expert);
            work.multiply_adds += rows * c.num_experts_per_tok * expert;
            work.bytes += c.num_experts_per_tok * expert * 9 / 16;
        }
    }
    work.dense(rows, c.vocab_size * hidden);
    work
}

/// One block of the drafter, and the context of `kept` tokens.
fn draft(drafter: &Drafter, start: usize, kept: usize) -> Work {
    let c = drafter.config();
    let (hidden, block) = (c.hidden_size, c.block_size);
    let (wide, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    let mut work = Work::default();
    for _ in 0..c.layers.len() {
        work.dense(block, hidden * 2 * (wide + kv));
        work.dense(block, 3 * hidden * c.intermediate_size);
        work.multiply_adds += block * (start + block) * 2 * wide + kept * hidden * 2 * kv;
        work.bytes += start * 2 * kv * 4;
    }
    work.dense(block - 1, c.vocab_size * hidden);
    work.dense(kept, c.target_layer_ids.len() * hidden * hidden);
    work
}

/// Seconds and work of the rounds of one mode.
struct Samples {
    name: &'static str,
    seconds: Vec<f64>,
    work: Vec<Work>,
    tokens: usize,
    peak: f64,
}

fn work_of(models: &Models, round: &Round) -> Work {
    let rows = round.tree.rows().len();
    let own = (0..rows).map(|row| round.tree.depth(row) + 1).sum::<usize>().div_ceil(rows);
    let mut work = verify(&models.target, rows, round.start, own);
    if let (Some(drafter), true) = (&models.drafter, rows > 1) {
        let draft = draft(drafter, round.start, round.rows.len());
        work.multiply_adds += draft.multiply_adds;
        work.bytes += draft.bytes;
    }
    work
}

fn run(models: &Models, pool: Pool, ids: &[Vec<u32>], mode: usize, repeats: usize) -> Samples {
    let (name, speculation) = MODES[mode];
    let mut samples = Samples { name, seconds: Vec::new(), work: Vec::new(), tokens: 0, peak: 0.0 };
    let mut engine = Engine::new(models.clone(), pool, EngineOptions::default()).expect("a pair that fits");
    for prompt in ids.iter().cycle().take(repeats * ids.len()) {
        let request = Request { speculation, ..Request::new(prompt.clone(), TOKENS) };
        engine.submit(request).expect("a request that fits");
        while !engine.is_idle() {
            let start = Instant::now();
            let step = engine.step();
            let seconds = start.elapsed().as_secs_f64();
            // A step that also reads a prompt is no round alone.
            if let [round] = step.rounds.as_slice()
                && round.start > prompt.len()
            {
                samples.seconds.push(seconds);
                samples.work.push(work_of(models, round));
                samples.tokens += round.tokens.len();
            }
        }
    }
    samples
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() {
    let threads = std::env::var("KD_THREADS").ok().and_then(|t| t.parse().ok());
    let threads = threads.or(NonZeroUsize::new(2)).expect("two is not zero");
    let pool = || Pool::new(threads).expect("threads start");
    let demo = std::env::var_os("KD_DEMO")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo"), Into::into);
    let tokenizer = Tokenizer::from_dir(demo.join("target")).expect("the demo tokenizer");
    let models = Models {
        target: Arc::new(Target::load(&demo.join("target")).expect("the demo target")),
        drafter: Some(Arc::new(Drafter::load(&demo.join("drafter")).expect("the demo drafter"))),
        tokenizer: None,
    };
    let ids: Vec<Vec<u32>> =
        PROMPTS.iter().map(|text| tokenizer.encode_ordinary(text).expect("ordinary text")).collect();
    if let Ok(only) = std::env::var("KD_ONLY") {
        let mode = MODES.iter().position(|(name, _)| *name == only).expect("plain, tree8, tree16 or tree32");
        let samples = run(&models, pool(), &ids, mode, 40);
        println!("{only}: median {:.1} µs a round", median(samples.seconds.iter().copied()) * 1e6);
        return;
    }
    // Modes take turns, so that what else the machine does meets all of them.
    let mut all: Vec<Samples> = Vec::new();
    for turn in 0..4 {
        for mode in 0..MODES.len() {
            let mut samples = run(&models, pool(), &ids, mode, 1);
            samples.peak = machine::peak(&pool(), 200);
            if turn == 0 {
                all.push(samples);
            } else {
                let to = &mut all[mode];
                to.seconds.extend(samples.seconds);
                to.work.extend(samples.work);
                to.tokens += samples.tokens;
                to.peak = to.peak.max(samples.peak);
            }
        }
    }
    let mut json = Vec::new();
    for s in &all {
        let bytes = median(s.work.iter().map(|w| w.bytes as f64));
        let bandwidth = machine::bandwidth(&pool(), bytes as usize, 20);
        let floor = |w: &Work| (w.multiply_adds as f64 / s.peak).max(w.bytes as f64 / bandwidth);
        let share = median(s.work.iter().zip(&s.seconds).map(|(w, seconds)| floor(w) / seconds));
        let seconds = median(s.seconds.iter().copied());
        let floor = median(s.work.iter().map(floor));
        let work = median(s.work.iter().map(|w| w.multiply_adds as f64));
        println!(
            "{:7}: {:5} rounds, median {:7.1} µs, floor {:6.1} µs, share {:4.1} %; {:5.1} M multiply-adds at peak {:.1} G/s, {:4.1} MB at {:.1} GB/s, {:.2} tokens a round",
            s.name,
            s.seconds.len(),
            seconds * 1e6,
            floor * 1e6,
            share * 100.0,
            work / 1e6,
            s.peak / 1e9,
            bytes / 1e6,
            bandwidth / 1e9,
            s.tokens as f64 / s.seconds.len() as f64,
        );
        let samples: Vec<String> = s.seconds.iter().map(|x| format!("{:.0}", x * 1e6)).collect();
        json.push(format!(
            "{{\"mode\": \"{}\", \"median_us\": {:.1}, \"floor_us\": {:.1}, \"share\": {:.3}, \"multiply_adds\": {:.0}, \"bytes\": {:.0}, \"peak_gmac_s\": {:.1}, \"read_gb_s\": {:.1}, \"tokens_a_round\": {:.2}, \"samples_us\": [{}]}}",
            s.name,
            seconds * 1e6,
            floor * 1e6,
            share,
            work,
            bytes,
            s.peak / 1e9,
            bandwidth / 1e9,
            s.tokens as f64 / s.seconds.len() as f64,
            samples.join(",")
        ));
    }
    if let Ok(path) = std::env::var("KD_JSON") {
        let text = format!("{{\"threads\": {threads}, \"modes\": [\n {}\n]}}\n", json.join(",\n "));
        std::fs::write(path, text).expect("the results are written");
    }
}
