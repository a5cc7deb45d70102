//! The same models on the CPU: where tokens may differ, and how much is accepted.

use kd_engine::{Engine, Request, SamplingParams, Speculation};
use kd_tensor::Pool;
use kd_tests::demo_models;
use kd_tests::drive::{Answer, Arrival, run};

use crate::{OPTIONS, engine, prompts, request};

/// Lead of the largest logit over the second, in the CPU's f32 pass, below which bf16 may choose the other one.
const MARGIN: f64 = 0.1;

fn on_cpu(requests: &[Request]) -> Vec<Answer> {
    let threads = std::thread::available_parallelism().expect("processors");
    let pool = Pool::new(threads).expect("threads");
    let mut engine = Engine::new(demo_models(), pool, OPTIONS).expect("a pair that fits");
    run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>())
}

#[test]
fn tokens_differ_from_the_cpus_only_where_they_are_nearly_equal() {
    let test = "tokens_differ_from_the_cpus_only_where_they_are_nearly_equal";
    let Some(mut engine) = engine(test, 0, OPTIONS) else { return };
    let requests: Vec<Request> =
        prompts(16).into_iter().map(|p| request(p, 0.0, Speculation::Plain)).collect();
    let arrivals: Vec<Arrival> = requests.iter().cloned().map(Arrival::from).collect();
    let gpu = run(&mut engine, &arrivals);
    let report = |request: &Request| Request {
        params: SamplingParams { logprobs: Some(2), ..request.params.clone() },
        ..request.clone()
    };
    let cpu = on_cpu(&requests.iter().map(report).collect::<Vec<_>>());
    let mut same = 0;
    for (i, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
        let (gpu, expected) = (gpu.tokens(), cpu.tokens());
        let at = gpu.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        same += at;
        if at < expected.len() {
            let top = &cpu.choices[at].top_logprobs;
            let margin = top[0].1 - top[1].1;
            println!("prompt {i}: token {at} is {} instead of {}, margin {margin:.4}", gpu[at], expected[at]);
            assert!(margin < MARGIN, "prompt {i}: token {at} differs at a margin of {margin}");
        }
    }
    // A pass that is wrong everywhere would differ at once, at whatever margin.
    assert!(same > requests.len() * 20, "only {same} tokens of {} prompts are the same", requests.len());
}

#[test]
fn as_much_is_accepted_as_on_the_cpu() {
    let Some(mut engine) = engine("as_much_is_accepted_as_on_the_cpu", 16, OPTIONS) else { return };
    let requests: Vec<Request> =
        prompts(32).into_iter().map(|p| request(p, 0.0, Speculation::Tree { nodes: 16 })).collect();
    let gpu = run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>());
    let mean = |answers: &[Answer]| {
        let tokens: u64 = answers.iter().map(|answer| answer.stats.round_tokens).sum();
        let rounds: u64 = answers.iter().map(|answer| answer.stats.rounds).sum();
        tokens as f64 / rounds as f64
    };
    let (gpu, cpu) = (mean(&gpu), mean(&on_cpu(&requests)));
    println!("tokens a round: {gpu:.3} on the GPU, {cpu:.3} on the CPU");
    assert!((gpu / cpu - 1.0).abs() <= 0.02, "{gpu} tokens a round on the GPU, {cpu} on the CPU");
}
