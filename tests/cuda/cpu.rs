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

/// Counted over rounds that lie in what both have generated: behind a flip they accept other tokens of other texts.
#[test]
fn as_much_is_accepted_as_on_the_cpu() {
    let Some(mut engine) = engine("as_much_is_accepted_as_on_the_cpu", 16, OPTIONS) else { return };
    let way = Speculation::Tree { nodes: 16 };
    let requests: Vec<Request> = [0.0, 1.0]
        .into_iter()
        .flat_map(|temperature| prompts(64).into_iter().map(move |p| request(p, temperature, way)))
        .collect();
    let gpu = run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>());
    let cpu = on_cpu(&requests);
    let mut found = [[0; 2]; 2];
    for ((request, gpu), cpu) in requests.iter().zip(&gpu).zip(&cpu) {
        let same = gpu.tokens().iter().zip(cpu.tokens()).take_while(|(a, b)| **a == *b).count();
        let end = request.prompt.len() + same;
        for ([tokens, rounds], answer) in found.iter_mut().zip([gpu, cpu]) {
            for round in answer.rounds.iter().filter(|round| round.start + round.tokens.len() < end) {
                (*tokens, *rounds) = (*tokens + round.tokens.len(), *rounds + 1);
            }
        }
    }
    let [gpu, cpu] = found.map(|[tokens, rounds]| tokens as f64 / rounds as f64);
    println!("tokens a round: {gpu:.3} on the GPU, {cpu:.3} on the CPU; {found:?}");
    assert!(found.iter().all(|[_, rounds]| *rounds > 1000), "too few rounds to compare: {found:?}");
    assert!((gpu / cpu - 1.0).abs() <= 0.02, "{gpu} tokens a round on the GPU, {cpu} on the CPU");
}
