//! The demo pair against what the machine allows: `cargo bench -p kd-engine --bench demo`.
//!
//! Plain decoding and trees of 8, 16 and 32 nodes, one stream. The floor of a round is the sum of those of its products, which
//! depend on each other: each the larger of its multiply-adds ÷ the peak rate of the instruction and its bytes ÷ the read
//! bandwidth over a working set of a round's size, both measured in the same run. Only rows that the round has are counted, every
//! expert once a row for operations and once for bytes if a row chose it; norms, softmax, sampling and tree building count
//! nothing. Beside it stands what would be least if all products overlapped.
//!
//! `KD_THREADS`: threads, default 2. `KD_JSON=FILE` writes every sample. `KD_ONLY=tree16` repeats one mode for a profiler. `KD_DEMO`: the
//! pair's folder, where it is not this repository's.

mod work;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kd_engine::{Engine, EngineOptions, Models, Request, Speculation};
use kd_model::{Drafter, Target};
use kd_tensor::{Pool, machine};
use kd_text::Tokenizer;
use work::{Limits, Work};

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

/// Seconds and work of the rounds of one mode.
struct Samples {
    name: &'static str,
    seconds: Vec<f64>,
    work: Vec<Work>,
    tokens: usize,
    peak: f64,
}

fn run(models: &Models, pool: &impl Fn() -> Pool, ids: &[Vec<u32>], mode: usize, repeats: usize) -> Samples {
    let (name, speculation) = MODES[mode];
    let mut samples = Samples { name, seconds: Vec::new(), work: Vec::new(), tokens: 0, peak: 0.0 };
    let mut engine = Engine::new(models.clone(), pool(), EngineOptions::default()).expect("a pair that fits");
    let mut answers = Vec::new();
    for prompt in ids.iter().cycle().take(repeats * ids.len()) {
        let request = Request { speculation, ..Request::new(prompt.clone(), TOKENS) };
        engine.submit(request).expect("a request that fits");
        let mut rounds = Vec::new();
        while !engine.is_idle() {
            let start = Instant::now();
            let step = engine.step();
            let seconds = start.elapsed().as_secs_f64();
            // A step that also reads a prompt is no round alone.
            if let [round] = step.rounds.as_slice()
                && round.start > prompt.len()
            {
                samples.seconds.push(seconds);
                samples.tokens += round.tokens.len();
            }
            rounds.extend(step.rounds);
        }
        answers.push((prompt, rounds));
    }
    // After the clock has stopped, and once for each prompt: the same requests have the same rounds.
    let pool = pool();
    let works: Vec<Vec<Work>> = answers
        .iter()
        .take(ids.len())
        .map(|(prompt, rounds)| {
            let all = work::of_rounds(models, &pool, prompt, rounds);
            all.into_iter()
                .zip(rounds)
                .filter(|(_, round)| round.start > prompt.len())
                .map(|(work, _)| work)
                .collect()
        })
        .collect();
    samples.work = works.iter().cycle().take(answers.len()).flatten().cloned().collect();
    assert_eq!(samples.work.len(), samples.seconds.len(), "the rounds of a request repeat");
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
        let samples = run(&models, &pool, &ids, mode, 40);
        println!("{only}: median {:.1} µs a round", median(samples.seconds.iter().copied()) * 1e6);
        return;
    }
    // Modes take turns, so that what else the machine does meets all of them.
    let mut all: Vec<Samples> = Vec::new();
    for turn in 0..4 {
        for mode in 0..MODES.len() {
            let mut samples = run(&models, &pool, &ids, mode, 1);
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
        let bytes = median(s.work.iter().map(Work::bytes));
        let bandwidth = machine::bandwidth(&pool(), bytes as usize, 20);
        let limits = Limits { peak: s.peak, bandwidth };
        let share = |floor: fn(&Work, Limits) -> f64| {
            let shares = s.work.iter().zip(&s.seconds).map(|(w, seconds)| floor(w, limits) / seconds);
            (median(s.work.iter().map(|w| floor(w, limits))), median(shares))
        };
        let ((floor, share), (overlapped, share_overlapped)) = (share(Work::floor), share(Work::overlapped));
        let seconds = median(s.seconds.iter().copied());
        let work = median(s.work.iter().map(Work::multiply_adds));
        println!(
            "{:7}: {:5} rounds, median {:7.1} µs, floor {:6.1} µs, share {:4.1} % (overlapped {:6.1} µs, {:4.1} %); {:5.1} M multiply-adds at peak {:.1} G/s, {:4.1} MB at {:.1} GB/s, {:.2} tokens a round",
            s.name,
            s.seconds.len(),
            seconds * 1e6,
            floor * 1e6,
            share * 100.0,
            overlapped * 1e6,
            share_overlapped * 100.0,
            work / 1e6,
            s.peak / 1e9,
            bytes / 1e6,
            bandwidth / 1e9,
            s.tokens as f64 / s.seconds.len() as f64,
        );
        let samples: Vec<String> = s.seconds.iter().map(|x| format!("{:.0}", x * 1e6)).collect();
        json.push(format!(
            "{{\"mode\": \"{}\", \"median_us\": {:.1}, \"floor_us\": {:.1}, \"share\": {:.3}, \"overlapped_floor_us\": {:.1}, \"overlapped_share\": {:.3}, \"multiply_adds\": {:.0}, \"bytes\": {:.0}, \"peak_gmac_s\": {:.1}, \"read_gb_s\": {:.1}, \"tokens_a_round\": {:.2}, \"samples_us\": [{}]}}",
            s.name,
            seconds * 1e6,
            floor * 1e6,
            share,
            overlapped * 1e6,
            share_overlapped,
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
