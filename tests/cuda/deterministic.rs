//! [`Gpu::deterministic`]: a token has the same logits whether it is read or generated.

use kd_engine::cuda::Gpu;
use kd_engine::{Engine, EngineOptions, Request, SamplingParams, Speculation};
use kd_kernels::testing::kernels_or_skip;
use kd_tests::demo_models;
use kd_tests::drive::{Answer, Arrival, run};

use crate::{OPTIONS, TOKENS, prompts, request};

fn engine(test: &str, options: EngineOptions) -> Option<Engine> {
    kernels_or_skip(test, "demo-tp1")?;
    let models = demo_models();
    let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair");
    let gpu = gpu.with_nodes(8).deterministic(true);
    Some(Engine::on_gpu(models, gpu, options, |_| {}).expect("room for the demo pair"))
}

/// A request whose answer has the log-probabilities of its tokens, which differ as soon as a bit of a row of logits does.
fn scored(prompt: Vec<u32>, max_tokens: usize, speculation: Speculation) -> Request {
    let request = request(prompt, 1.0, speculation);
    let params = SamplingParams { logprobs: Some(20), ..request.params };
    Request { params, max_tokens, ..request }
}

/// Pieces of any size; stopped anywhere and continued as a prompt, plain or with trees: the answer of one generation, to the bit.
#[test]
fn what_is_read_has_the_bits_of_what_is_generated() {
    let test = "what_is_read_has_the_bits_of_what_is_generated";
    let prompts = prompts(8);
    let generate = |engine: &mut Engine, requests: Vec<Request>| {
        run(engine, &requests.into_iter().map(Arrival::from).collect::<Vec<_>>())
    };
    let mut whole: Vec<Answer> = Vec::new();
    let mut compared = 0;
    for (prefill_chunk, mixed_chunk) in [(4096, 4096), (100, 7), (1, 1)] {
        let options = EngineOptions { prefill_chunk, mixed_chunk, ..OPTIONS };
        let Some(mut engine) = engine(test, options) else { return };
        let what = format!("chunks of {prefill_chunk} and {mixed_chunk}");
        let plain = |prompt: &Vec<u32>| scored(prompt.clone(), TOKENS, Speculation::Plain);
        let answers = generate(&mut engine, prompts.iter().map(plain).collect());
        if whole.is_empty() {
            whole = answers;
        } else {
            answers.iter().zip(&whole).for_each(|(answer, whole)| answer.assert_equals(whole, &what));
        }
        for (cut, way) in
            [(1, Speculation::Plain), (40, Speculation::Tree { nodes: 8 }), (101, Speculation::Chain)]
        {
            let others: Vec<_> =
                prompts.iter().zip(&whole).filter(|(_, whole)| whole.choices.len() > cut).collect();
            let read = |(prompt, whole): &(&Vec<u32>, &Answer)| {
                let prompt = [&prompt[..], &whole.tokens()[..cut]].concat();
                scored(prompt, TOKENS - cut, way)
            };
            let continued = generate(&mut engine, others.iter().map(read).collect());
            for (answer, (_, whole)) in continued.iter().zip(&others) {
                assert_eq!(answer.choices, whole.choices[cut..], "{what}, continued after {cut} tokens");
                compared += answer.choices.len();
            }
        }
    }
    assert!(compared > 1000, "only {compared} tokens were compared");
}

/// Drawn on the device, beside streams that generate: the tokens of an engine that reads with other kernels may differ, these not.
#[test]
fn streams_that_join_read_in_the_passes_of_others() {
    let test = "streams_that_join_read_in_the_passes_of_others";
    let Some(mut engine) = engine(test, EngineOptions { mixed_chunk: 33, ..OPTIONS }) else { return };
    let way = Speculation::Tree { nodes: 8 };
    let requests: Vec<Request> = prompts(12).into_iter().map(|prompt| request(prompt, 1.0, way)).collect();
    let join = |(i, request): (usize, &Request)| Arrival { joins: 3 * i, ..request.clone().into() };
    let together = run(&mut engine, &requests.iter().enumerate().map(join).collect::<Vec<_>>());
    for (i, (answer, request)) in together.iter().zip(&requests).enumerate() {
        let plain = Request { speculation: Speculation::Plain, ..request.clone() };
        let alone = run(&mut engine, &[plain.into()]).remove(0);
        answer.assert_equals(&alone, &format!("prompt {i}"));
    }
}
