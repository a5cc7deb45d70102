//! Speculation, company and chunking never change a token.

use kd_engine::{Engine, EngineOptions, Models, Request, Speculation};
use kd_tensor::Pool;
use kd_tests::demo_models;
use kd_tests::drive::{Arrival, OPTIONS, alone, plain, run, together};
use kd_tests::random::Numbers;

use crate::pairs::{BUDGETS, NARROW, TEMPERATURES, WIDE, at, fixed, narrow, request, tree, wide};

#[test]
fn every_budget_and_temperature_gives_the_tokens_of_plain_decoding() {
    let models = narrow();
    for temperature in TEMPERATURES {
        let requests: Vec<Request> =
            [1, 63, 64, 65].map(|len| at(temperature, fixed(len, NARROW, 20))).into();
        let expected: Vec<_> = requests.iter().map(|r| plain(&models, r)).collect();
        for budget in BUDGETS {
            let answers = together(&models, requests.iter().map(|r| tree(budget, r)));
            for (answer, (request, plain)) in answers.iter().zip(requests.iter().zip(&expected)) {
                let what =
                    format!("budget {budget}, temperature {temperature}, prompt {}", request.prompt.len());
                answer.assert_equals(plain, &what);
                assert!(
                    answer.rounds.iter().all(|round| round.tree.len() <= budget),
                    "{what}: tree over budget"
                );
                if budget >= 63 {
                    assert!(answer.accepted() > 1.0, "{what}: {} accepted a round", answer.accepted());
                }
            }
        }
    }
}

#[test]
fn a_chain_gives_the_tokens_of_plain_decoding() {
    for (models, vocab) in [(narrow(), NARROW), (wide(), WIDE)] {
        for temperature in TEMPERATURES {
            let requests = [1, 64].map(|len| at(temperature, fixed(len, vocab, 24)));
            let chain = |r: &Request| Request { speculation: Speculation::Chain, ..r.clone() };
            for (answer, request) in together(&models, requests.iter().map(chain)).iter().zip(&requests) {
                answer.assert_equals(&plain(&models, request), "chain");
                assert!(answer.rounds.iter().all(|r| r.tree.len() == 7 && r.tree.max_depth() == 7));
            }
        }
    }
}

/// Streams with their own random parameters come, go, wait for room and are dropped half-way.
pub(crate) fn random_company(models: &Models, vocab: usize, streams: usize, seed: u64) {
    let mut n = Numbers(seed);
    let mut arrivals: Vec<Arrival> = (0..streams)
        .map(|_| {
            let joins = n.below(6);
            let leaves = (n.below(5) == 0).then(|| joins + 1 + n.below(8));
            Arrival { request: request(&mut n, vocab), joins, leaves }
        })
        .collect();
    n.shuffle(&mut arrivals);
    let options = EngineOptions {
        max_streams: n.pick(&[2, 5, 16]),
        cache_tokens: n.pick(&[3 * 64, 40 * 64]),
        prefill_chunk: n.pick(&[1, 7, 256]),
        mixed_chunk: n.pick(&[1, 5, 256]),
    };
    let threads = n.pick(&[1, 2]).try_into().expect("threads");
    let ranks = models.target.ranks().try_into().expect("ranks");
    let pool = Pool::with_ranks(threads, ranks).expect("a pool");
    let mut engine = Engine::new(models.clone(), pool, options).expect("a pair that fits");
    for (i, (answer, arrival)) in run(&mut engine, &arrivals).iter().zip(&arrivals).enumerate() {
        let plain = plain(models, &arrival.request);
        let what = format!("stream {i} of {streams}, seed {seed}");
        if answer.end.is_some() {
            answer.assert_equals(&plain, &what);
        } else {
            assert!(arrival.leaves.is_some(), "{what} was not ended");
            assert!(plain.choices.starts_with(&answer.choices), "{what}: tokens before it left");
            assert!(plain.text.starts_with(&answer.text), "{what}: text before it left");
        }
    }
}

#[test]
fn random_streams_with_accepted_drafts_come_and_go() {
    for (seed, streams) in [1, 2, 3, 4, 8, 16, 16, 16].into_iter().enumerate() {
        random_company(&narrow(), NARROW, streams, seed as u64);
    }
}

#[test]
fn random_streams_with_rejected_drafts_come_and_go() {
    for (seed, streams) in [1, 3, 8, 16].into_iter().enumerate() {
        random_company(&wide(), WIDE, streams, 100 + seed as u64);
    }
}

#[test]
fn accepted_paths_cross_pages() {
    let models = narrow();
    let mut crossed = [0, 0];
    for (i, temperature) in TEMPERATURES.into_iter().enumerate() {
        // From shortly before the page end at 64 over the one at 128.
        let request = at(temperature, fixed(59 + i, NARROW, 80));
        let answer = alone(&models, &tree(128, &request));
        answer.assert_equals(&plain(&models, &request), "over page ends");
        for (crossed, end) in crossed.iter_mut().zip([64, 128]) {
            *crossed +=
                answer.rounds.iter().filter(|r| r.start < end && r.start + r.rows.len() > end).count();
        }
    }
    assert!(crossed.iter().all(|&n| n > 0), "no accepted path crossed a page end: {crossed:?}");
}

#[test]
fn prompt_chunks_do_not_matter() {
    for (models, vocab) in [(narrow(), NARROW), (wide(), WIDE)] {
        let requests: Vec<Arrival> =
            [1, 64, 65, 130].map(|len| Arrival::from(tree(16, &at(0.7, fixed(len, vocab, 8))))).into();
        let with_chunk = |prefill_chunk, mixed_chunk| {
            let options = EngineOptions { prefill_chunk, mixed_chunk, ..OPTIONS };
            let mut engine = Engine::new(models.clone(), Pool::single(), options).expect("a pair that fits");
            let answers = run(&mut engine, &requests);
            // The trees depend on the drafter's context, which comes from the same chunks.
            answers.into_iter().map(|a| (a.choices, a.text, a.rounds)).collect::<Vec<_>>()
        };
        let whole = with_chunk(256, 256);
        for (chunk, mixed) in [(1, 256), (7, 3), (64, 64), (256, 10)] {
            assert_eq!(with_chunk(chunk, mixed), whole, "chunks of {chunk}, beside others {mixed}");
        }
    }
}

/// A prompt is read in large chunks while nobody waits, and in small ones beside a stream that generates.
#[test]
fn chunks_are_small_only_while_a_stream_generates() {
    let options = EngineOptions { prefill_chunk: 100, mixed_chunk: 30, ..OPTIONS };
    let mut engine = Engine::new(narrow(), Pool::single(), options).expect("a pair that fits");
    let long = || Request::new(fixed(150, NARROW, 3).prompt, 1);
    // Rows of prompts in each step until all is done; a round has one row.
    let steps = |engine: &mut Engine| {
        let layers = engine.models().target.config().num_hidden_layers as u64;
        let mut rows = Vec::new();
        while !engine.is_idle() {
            let before = engine.ops().attention_rows;
            let rounds = engine.step().rounds.len() as u64;
            rows.push((engine.ops().attention_rows - before) / layers - rounds);
        }
        rows
    };
    engine.submit(long()).expect("a valid request");
    assert_eq!(steps(&mut engine), [100, 50]);
    engine.submit(Request::new(fixed(20, NARROW, 3).prompt, 4)).expect("a valid request");
    assert_eq!(engine.step().rounds.len(), 1, "the short prompt is read, and generates");
    engine.submit(long()).expect("a valid request");
    // Two more rounds, then nobody generates.
    assert_eq!(steps(&mut engine), [30, 30, 90]);
}

#[test]
fn the_demo_pair_is_lossless_where_drafts_are_good() {
    let models = demo_models();
    let tokenizer = models.tokenizer.as_ref().expect("a tokenizer");
    let prompts = ["// itoa/src/lib.rs\n/// Writes an integer", "use std::collections::HashMap;\n\nimpl"];
    let mut requests = Vec::new();
    for (i, temperature) in TEMPERATURES.into_iter().enumerate() {
        let prompt = tokenizer.encode_ordinary(prompts[i % 2]).expect("ids");
        let mut request = at(temperature, Request::new(prompt, 24));
        if i == 1 {
            (request.params.top_p, request.params.repetition_penalty) = (0.95, 1.1);
            (request.params.logprobs, request.stop) = (Some(2), vec!["impossible stop".to_owned()]);
        }
        requests.push(request);
    }
    let expected: Vec<_> = requests.iter().map(|r| plain(&models, r)).collect();
    for speculation in [Speculation::Chain, Speculation::Tree { nodes: 16 }, Speculation::Tree { nodes: 65 }]
    {
        let answers = together(&models, requests.iter().map(|r| Request { speculation, ..r.clone() }));
        answers.iter().zip(&expected).for_each(|(answer, plain)| answer.assert_equals(plain, "demo"));
        let rounds: u64 = answers.iter().map(|a| a.stats.rounds).sum();
        let tokens: u64 = answers.iter().map(|a| a.stats.round_tokens).sum();
        assert!(
            2 * tokens > 3 * rounds,
            "{speculation:?}: {tokens} tokens in {rounds} rounds: drafts are not accepted"
        );
    }
}
