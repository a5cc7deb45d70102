//! What speculation is worth on this GPU. Times go to the file that `KD_GPU_RESULTS` names, a JSON object a line.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

use kd_engine::{Engine, Event, Request, Speculation};

use crate::{OPTIONS, engine, prompts, request};

/// Runs of each way; the fastest counts, since nothing makes one too fast. One more says how long the device was busy, which
/// costs a little.
const RUNS: usize = 3;

/// Seconds of a run, by part.
#[derive(Default)]
struct Seconds {
    all: f64,
    /// From drafting to trees, and of verify passes up to commits, as the engine's rounds report them.
    draft: f64,
    verify: f64,
    /// Time of steps that ran rounds alone, and of graphs on the device in them, where it was taken.
    steps: f64,
    device: f64,
    rounds: usize,
    tokens: usize,
}

impl std::ops::AddAssign for Seconds {
    fn add_assign(&mut self, one: Self) {
        self.all += one.all;
        (self.draft, self.verify) = (self.draft + one.draft, self.verify + one.verify);
        (self.steps, self.device) = (self.steps + one.steps, self.device + one.device);
        (self.rounds, self.tokens) = (self.rounds + one.rounds, self.tokens + one.tokens);
    }
}

fn timed(engine: &mut Engine, requests: &[Request]) -> Seconds {
    let mut seconds = Seconds::default();
    for request in requests {
        engine.submit(request.clone()).expect("a valid request");
    }
    let begin = Instant::now();
    let (mut last, mut whole) = (0.0, false);
    while !engine.is_idle() {
        let step = engine.step();
        let now = begin.elapsed().as_secs_f64();
        // Steps that read prompts are left out: graphs are all that is timed.
        if let Some(device) = step.device.filter(|_| whole) {
            seconds.device += device.as_secs_f64();
            seconds.steps += now - last;
        }
        (last, whole) = (now, step.rounds.len() == requests.len());
        if let Some(outcome) = step.outcome {
            (seconds.draft, seconds.verify) =
                (seconds.draft + outcome.draft, seconds.verify + outcome.verify);
            seconds.rounds += 1;
        }
        for event in step.events {
            match event {
                Event::Tokens { tokens, .. } => seconds.tokens += tokens.len(),
                Event::Finished { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
    seconds.all = begin.elapsed().as_secs_f64();
    seconds
}

/// Tokens a second of all streams together: the best of [`RUNS`].
fn rate(engine: &mut Engine, streams: usize, way: Speculation) -> f64 {
    let chunks: Vec<Vec<Request>> = prompts(16)
        .chunks(streams)
        .map(|chunk| chunk.iter().map(|prompt| request(prompt.clone(), 0.0, way)).collect())
        .collect();
    let mut best = 0.0f64;
    for run in 0..=RUNS {
        engine.time_device(run == RUNS);
        let mut sum = Seconds::default();
        for chunk in &chunks {
            sum += timed(engine, chunk);
        }
        let rate = sum.tokens as f64 / sum.all;
        let micros = |seconds: f64| 1e6 * seconds / sum.rounds as f64;
        let idle = (run == RUNS).then(|| 1.0 - sum.device / sum.steps);
        let line = serde_json::json!({
            "streams": streams, "way": format!("{way:?}"), "tokens_per_second": rate, "rounds": sum.rounds,
            "tokens": sum.tokens, "us_per_round": micros(sum.all), "draft_us": micros(sum.draft),
            "verify_us": micros(sum.verify), "device_idle": idle,
        });
        println!(
            "{streams} streams, {way:?}: {rate:.0} tok/s; a round {:.0} us, draft {:.0}, verify {:.0}{}",
            micros(sum.all),
            micros(sum.draft),
            micros(sum.verify),
            idle.map_or(String::new(), |idle| format!(", the device idle {:.1} %", 100.0 * idle))
        );
        record(&line.to_string());
        if run < RUNS {
            best = best.max(rate);
        }
    }
    engine.time_device(false);
    best
}

fn record(line: &str) {
    let Some(path) = std::env::var_os("KD_GPU_RESULTS") else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| writeln!(file, "{line}")).expect("KD_GPU_RESULTS");
}

#[test]
fn trees_are_faster_than_plain_decoding_and_auto_is_never_slower() {
    let test = "trees_are_faster_than_plain_decoding_and_auto_is_never_slower";
    let Some(mut engine) = engine(test, 64, OPTIONS) else { return };
    for streams in [1, 4, 16] {
        let plain = rate(&mut engine, streams, Speculation::Plain);
        for way in [Speculation::Chain, Speculation::Tree { nodes: 8 }] {
            rate(&mut engine, streams, way);
        }
        let tree = rate(&mut engine, streams, Speculation::Tree { nodes: 16 });
        let auto = rate(&mut engine, streams, Speculation::Auto);
        assert!(auto >= plain, "{streams} streams: {auto} tokens/s with the automatic budget, {plain} plain");
        assert!(streams > 1 || tree >= 1.8 * plain, "{tree} tokens/s with trees, {plain} plain");
    }
}
