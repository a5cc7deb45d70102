//! The same models on the CPU: where tokens may differ, and how much is accepted.

use kd_engine::{Engine, Request, Speculation};
use kd_kernels::testing::kernels_or_skip;
use kd_tensor::Pool;
use kd_tests::demo_models;
use kd_tests::drive::{Answer, Arrival, run};

use crate::teacher::{Row, Teacher};
use crate::{OPTIONS, engine, prompts, request};

/// Most relative error of a row's logits where the same experts were chosen (`tests/golden/check.py --bf16`).
const RELATIVE: f64 = 0.08;
/// The same of any row, other experts or not: far under that of logits which have nothing to do with each other. NaN is over it.
const EXCHANGED: f64 = 0.5;
/// How many standard deviations of the difference of two logits of its row a flip may lie from even.
const DEVIATIONS: f64 = 5.0;
/// Least lead of an expert, as the router scores it, that bf16 may not turn round.
const LEAD: f32 = 0.03;

fn on_cpu(requests: &[Request]) -> Vec<Answer> {
    let threads = std::thread::available_parallelism().expect("processors");
    let pool = Pool::new(threads).expect("threads");
    let mut engine = Engine::new(demo_models(), pool, OPTIONS).expect("a pair that fits");
    run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>())
}

/// Of all rows that both sides compute over the same text, those with the same experts have logits within the limits of bf16.
/// And where the GPU's largest logit is another one, the lead that it had is explained: by the rounding errors of its own
/// row's logits, measured over the whole vocabulary. Other experts are chosen where the router's choice was close.
#[test]
fn tokens_differ_from_the_cpus_only_where_they_are_nearly_equal() {
    let test = "tokens_differ_from_the_cpus_only_where_they_are_nearly_equal";
    let Some(mut engine) = engine(test, 0, OPTIONS) else { return };
    let requests: Vec<Request> =
        prompts(16).into_iter().map(|p| request(p, 0.0, Speculation::Plain)).collect();
    let arrivals: Vec<Arrival> = requests.iter().cloned().map(Arrival::from).collect();
    let gpu = run(&mut engine, &arrivals);
    drop(engine);
    let cpu = on_cpu(&requests);
    let (device, kernels) = kernels_or_skip(test, "demo-tp1").expect("the device of the engine");
    let teacher = Teacher::new(demo_models().target, device, kernels);
    let rows: Vec<Vec<Row>> = requests
        .iter()
        .zip(&cpu)
        .map(|(request, cpu)| {
            let ([prompt @ .., last], tokens) = (&request.prompt[..], cpu.tokens()) else {
                panic!("a prompt")
            };
            // The row of each token gives the next one.
            teacher.read(prompt, &[&[*last], &tokens[..tokens.len() - 1]].concat())
        })
        .collect();
    let all = || rows.iter().flatten();
    let same = || all().filter(|row| row.exchanged.is_empty());
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let lead = most(&mut all().filter_map(|row| row.exchanged.first()).map(|lead| f64::from(*lead)));
    let relative = most(&mut same().map(|row| row.relative));
    println!(
        "{} rows, {} with the same experts: relative error up to {relative:.4}; other experts at leads up to {lead:.4}; {} flips",
        all().count(),
        same().count(),
        all().filter(|row| row.flips).count()
    );
    for row in all().filter(|row| row.flips) {
        println!("{row:?}, {:.2} deviations", row.deviations());
    }
    assert!(4 * same().count() >= all().count(), "too few rows with the same experts to compare");
    let others = all().map(|row| row.relative);
    assert!(
        others.clone().all(|error| error <= EXCHANGED),
        "a row far from the CPU's: {:?}",
        most(&mut { others })
    );
    assert!(relative <= RELATIVE, "relative error {relative}, at most {RELATIVE}");
    for row in all() {
        // The first exchange moves all that comes after it.
        assert!(row.exchanged.first().is_none_or(|first| *first < LEAD), "an expert in no doubt: {row:?}");
        assert!(!row.flips || row.deviations() <= DEVIATIONS, "a flip that nothing explains: {row:?}");
    }
    let mut equal = 0;
    for (i, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
        let (gpu, expected) = (gpu.tokens(), cpu.tokens());
        let at = gpu.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        equal += at;
        if at < expected.len() {
            let row = &rows[i][at];
            println!("prompt {i}: token {at} is {} instead of {}; {row:?}", gpu[at], expected[at]);
            assert!(row.deviations() <= DEVIATIONS, "prompt {i}: token {at} differs, {row:?}");
        }
    }
    // A pass that is wrong everywhere would differ at once, at whatever margin.
    assert!(equal > requests.len() * 20, "only {equal} tokens of {} prompts are the same", requests.len());
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
