//! Speculation, company and chunking never change a token.

use std::collections::BTreeMap;

use kd_attn::KvCacheDtype;
use kd_engine::{Request, SamplingParams, Speculation};
use kd_tests::drive::{Answer, Arrival, run};

use crate::{OPTIONS, engine, engine_of, models_with, prompts, request};

const TEMPERATURES: [f64; 2] = [0.0, 1.0];

fn arrivals(requests: &[Request]) -> Vec<Arrival> {
    requests.iter().cloned().map(Arrival::from).collect()
}

fn with(speculation: Speculation, requests: &[Request]) -> Vec<Arrival> {
    let with = |request: &Request| Request { speculation, ..request.clone() };
    requests.iter().map(with).map(Arrival::from).collect()
}

fn assert_equal(answers: &[Answer], plain: &[Answer], what: &str) {
    assert_eq!(answers.len(), plain.len());
    for (i, (answer, plain)) in answers.iter().zip(plain).enumerate() {
        answer.assert_equals(plain, &format!("{what}, prompt {i}"));
    }
}

#[test]
fn every_budget_gives_the_tokens_of_plain_decoding() {
    let test = "every_budget_gives_the_tokens_of_plain_decoding";
    let Some(mut engine) = engine(test, 64, OPTIONS) else { return };
    for temperature in TEMPERATURES {
        let requests: Vec<Request> =
            prompts(64).into_iter().map(|p| request(p, temperature, Speculation::Plain)).collect();
        let plain = run(&mut engine, &arrivals(&requests));
        assert!(plain.iter().all(|answer| answer.end == Some(Ok(kd_engine::FinishReason::Length))));
        let ways = [1, 2, 7, 8, 16, 33, 64].map(|nodes| Speculation::Tree { nodes });
        for way in ways.into_iter().chain([Speculation::Chain, Speculation::Auto]) {
            let answers = run(&mut engine, &with(way, &requests));
            assert_equal(&answers, &plain, &format!("{way:?} at temperature {temperature}"));
            let accepted: f64 = answers.iter().map(Answer::accepted).sum();
            if let Speculation::Tree { nodes: 16.. } = way {
                assert!(
                    accepted > 64.0,
                    "{way:?} accepts {accepted} in 64 streams: the drafter is no drafter"
                );
            }
        }
    }
}

/// Streams that join one another, over pages that do not hold what was computed but what their codes give back.
#[test]
fn trees_and_chains_over_fp8_pages_give_the_tokens_of_plain_decoding() {
    let test = "trees_and_chains_over_fp8_pages_give_the_tokens_of_plain_decoding";
    let fp8 = || models_with(KvCacheDtype::Fp8);
    let Some(mut engine) = engine_of(test, fp8, |gpu| gpu.with_nodes(16), OPTIONS) else { return };
    for temperature in TEMPERATURES {
        let requests: Vec<Request> =
            prompts(20).into_iter().map(|p| request(p, temperature, Speculation::Plain)).collect();
        let plain = run(&mut engine, &arrivals(&requests));
        for way in [Speculation::Tree { nodes: 7 }, Speculation::Tree { nodes: 16 }, Speculation::Chain] {
            let join = |(i, arrival): (usize, Arrival)| Arrival { joins: 3 * i, ..arrival };
            let joining: Vec<Arrival> = with(way, &requests).into_iter().enumerate().map(join).collect();
            let answers = run(&mut engine, &joining);
            assert_equal(&answers, &plain, &format!("{way:?} at temperature {temperature}"));
            let accepted: f64 = answers.iter().map(Answer::accepted).sum();
            assert!(accepted > 0.0, "{way:?} accepts nothing, so nothing was compared with a draft");
        }
    }
}

/// Rounds of two trees of 41 rows have a graph for contexts up to 1,024 tokens and another one, whose attention takes other tiles.
#[test]
fn streams_that_outgrow_a_graphs_context_get_the_tokens_of_plain_decoding() {
    let test = "streams_that_outgrow_a_graphs_context_get_the_tokens_of_plain_decoding";
    let Some(mut engine) = engine(test, 40, OPTIONS) else { return };
    let text = prompts(8).concat();
    let long: Vec<u32> = text.iter().copied().cycle().take(700 + 960).collect();
    let requests: Vec<Request> =
        [0, 700].map(|at| request(long[at..at + 960].to_vec(), 1.0, Speculation::Plain)).into();
    let plain = run(&mut engine, &arrivals(&requests));
    assert!(plain.iter().all(|answer| answer.end == Some(Ok(kd_engine::FinishReason::Length))));
    let answers = run(&mut engine, &with(Speculation::Tree { nodes: 40 }, &requests));
    assert_equal(&answers, &plain, "trees of 40 nodes");
    // The longest context of each step of both streams, and its rows.
    let of = |answer: &Answer| -> BTreeMap<usize, (usize, usize)> {
        let sizes = answer.rounds.iter().map(|round| (round.start, round.tree.rows().len()));
        answer.steps.iter().copied().zip(sizes).collect()
    };
    let (first, second) = (of(&answers[0]), of(&answers[1]));
    let both = first.iter().filter_map(|(step, one)| Some((*one, *second.get(step)?)));
    let steps: Vec<(usize, usize)> = both.map(|(one, two)| (one.0.max(two.0), one.1 + two.1)).collect();
    // With 64 rows and fewer the tiles of both contexts are the same.
    for (side, inside) in [("within", true), ("beyond", false)] {
        let met = steps.iter().any(|&(context, rows)| rows > 64 && (context <= 1024) == inside);
        assert!(met, "no round of more than 64 rows {side} 1,024 tokens: {steps:?}");
    }
}

#[test]
fn one_stream_gives_the_tokens_of_sixteen() {
    let test = "one_stream_gives_the_tokens_of_sixteen";
    let Some(mut engine) = engine(test, 16, OPTIONS) else { return };
    for temperature in TEMPERATURES {
        let way = Speculation::Tree { nodes: 16 };
        let requests: Vec<Request> = prompts(16).into_iter().map(|p| request(p, temperature, way)).collect();
        let together = run(&mut engine, &arrivals(&requests));
        let alone: Vec<Answer> = requests
            .iter()
            .flat_map(|request| run(&mut engine, &with(Speculation::Plain, std::slice::from_ref(request))))
            .collect();
        assert_equal(&together, &alone, "sixteen streams");
    }
}

/// What the device cannot draw goes through the host's sampler, beside streams whose tokens it does draw.
#[test]
fn parameters_of_the_host_do_not_mind_the_tree() {
    let test = "parameters_of_the_host_do_not_mind_the_tree";
    let Some(mut engine) = engine(test, 32, OPTIONS) else { return };
    let params = [
        SamplingParams { temperature: 0.9, top_p: 0.8, seed: 3, ..SamplingParams::default() },
        SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() },
        SamplingParams { temperature: 1.0, top_k: 20, min_p: 0.02, seed: 5, ..SamplingParams::default() },
        SamplingParams { temperature: 1.0, seed: 9, ..SamplingParams::default() },
        SamplingParams { logprobs: Some(3), ..SamplingParams::default() },
    ];
    let requests: Vec<Request> = prompts(10)
        .into_iter()
        .enumerate()
        .map(|(i, prompt)| Request {
            params: params[i % params.len()].clone(),
            ..request(prompt, 0.0, Speculation::Plain)
        })
        .collect();
    let plain = run(&mut engine, &arrivals(&requests));
    for nodes in [8, 32] {
        let answers = run(&mut engine, &with(Speculation::Tree { nodes }, &requests));
        assert_equal(&answers, &plain, &format!("{nodes} nodes"));
    }
}
