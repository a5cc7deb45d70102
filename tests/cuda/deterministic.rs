//! [`Gpu::deterministic`]: a token has the same logits whether it is read or generated.

use kd_attn::KvCacheDtype;
use kd_engine::cuda::Gpu;
use kd_engine::{Engine, EngineOptions, Request, SamplingParams, Speculation};
use kd_tests::drive::{Answer, Arrival, run};

use crate::{OPTIONS, TOKENS, engine_of, models_with, prompts, request};

/// An engine for trees of up to `nodes` nodes over such pages.
fn engine(test: &str, nodes: usize, dtype: KvCacheDtype, options: EngineOptions) -> Option<Engine> {
    let plan = |gpu: Gpu| gpu.with_nodes(nodes).deterministic(true);
    engine_of(test, || models_with(dtype), plan, options)
}

/// A request whose answer has the log-probabilities of its tokens, which differ as soon as a bit of a row of logits does.
fn scored(prompt: Vec<u32>, max_tokens: usize, speculation: Speculation) -> Request {
    let request = request(prompt, 1.0, speculation);
    let params = SamplingParams { logprobs: Some(20), ..request.params };
    Request { params, max_tokens, ..request }
}

/// Pieces of any size; stopped anywhere and continued as a prompt, plain or with trees, in engines with and without trees and over
/// pages of both formats: the answer of one generation, to the bit.
#[test]
fn what_is_read_has_the_bits_of_what_is_generated() {
    let test = "what_is_read_has_the_bits_of_what_is_generated";
    let prompts = prompts(8);
    let generate = |engine: &mut Engine, requests: Vec<Request>| {
        run(engine, &requests.into_iter().map(Arrival::from).collect::<Vec<_>>())
    };
    let plans = [(8, 4096, 4096), (8, 100, 7), (0, 100, 33), (8, 1, 1)];
    for (dtype, plans) in [(KvCacheDtype::Auto, &plans[..]), (KvCacheDtype::Fp8, &plans[..3])] {
        let mut whole: Vec<Answer> = Vec::new();
        let mut compared = 0;
        for &(nodes, prefill_chunk, mixed_chunk) in plans {
            let options = EngineOptions { prefill_chunk, mixed_chunk, ..OPTIONS };
            let Some(mut engine) = engine(test, nodes, dtype, options) else { return };
            let what = format!("{dtype:?}, {nodes} nodes, chunks of {prefill_chunk} and {mixed_chunk}");
            let plain = |prompt: &Vec<u32>| scored(prompt.clone(), TOKENS, Speculation::Plain);
            let answers = generate(&mut engine, prompts.iter().map(plain).collect());
            if whole.is_empty() {
                whole = answers;
            } else {
                answers.iter().zip(&whole).for_each(|(answer, whole)| answer.assert_equals(whole, &what));
            }
            let ways =
                [(1, Speculation::Plain), (40, Speculation::Tree { nodes: 8 }), (101, Speculation::Chain)];
            for (cut, way) in ways {
                // An engine without trees has plain decoding alone.
                let way = if nodes == 0 { Speculation::Plain } else { way };
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
        assert!(compared > 1000, "only {compared} tokens were compared over pages of {dtype:?}");
    }
}

/// Drawn on the device, beside streams that generate: the tokens of an engine that reads with other kernels may differ, these not.
#[test]
fn streams_that_join_read_in_the_passes_of_others() {
    let test = "streams_that_join_read_in_the_passes_of_others";
    let options = EngineOptions { mixed_chunk: 33, ..OPTIONS };
    for dtype in [KvCacheDtype::Auto, KvCacheDtype::Fp8] {
        let Some(mut engine) = engine(test, 8, dtype, options) else { return };
        let way = Speculation::Tree { nodes: 8 };
        let requests: Vec<Request> =
            prompts(12).into_iter().map(|prompt| request(prompt, 1.0, way)).collect();
        let join = |(i, request): (usize, &Request)| Arrival { joins: 3 * i, ..request.clone().into() };
        let together = run(&mut engine, &requests.iter().enumerate().map(join).collect::<Vec<_>>());
        for (i, (answer, request)) in together.iter().zip(&requests).enumerate() {
            let plain = Request { speculation: Speculation::Plain, ..request.clone() };
            let alone = run(&mut engine, &[plain.into()]).remove(0);
            answer.assert_equals(&alone, &format!("pages of {dtype:?}, prompt {i}"));
        }
    }
}
