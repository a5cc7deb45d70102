//! The automatic budget: whatever it decides, and whatever it was told, the tokens are those of plain decoding.

use kd_engine::budget::{Stored, StoredCell};
use kd_engine::{Engine, Request, Speculation};
use kd_tensor::Pool;
use kd_tests::demo_models;
use kd_tests::drive::{Answer, Arrival, OPTIONS, alone, plain, run};

use crate::pairs::{TEMPERATURES, WIDE, at, fixed, wide};

/// Costs by which `rows` rows take as long as one, and drafting next to nothing.
fn free_rows(rows: usize) -> Stored {
    let cell = |size, seconds| StoredCell { streams: 1, size, context: 200, seconds };
    Stored {
        verify: [1, 2, 4, 8, 16, rows].map(|size| cell(size, 10.0)).into(),
        draft: [1, 4, 16].map(|size| cell(size, 1e-6)).into(),
        read_token: Some(1e-9),
    }
}

/// Costs by which nothing is worth a draft.
fn dear_rows() -> Stored {
    let cell = |size: usize| StoredCell { streams: 1, size, context: 200, seconds: 10.0 * size as f64 };
    Stored { verify: [1, 2, 4, 64].map(cell).into(), draft: [1, 16].map(cell).into(), read_token: Some(1.0) }
}

fn auto(request: &Request) -> Request {
    Request { speculation: Speculation::Auto, ..request.clone() }
}

fn answers(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let arrivals: Vec<Arrival> = requests.iter().map(auto).map(Arrival::from).collect();
    run(engine, &arrivals)
}

#[test]
fn tokens_do_not_depend_on_what_rounds_are_said_to_cost() {
    let models = wide();
    for (i, stored) in [None, Some(free_rows(64)), Some(dear_rows())].iter().enumerate() {
        let mut engine = Engine::new(models.clone(), Pool::single(), OPTIONS).expect("a pair that fits");
        if let Some(stored) = stored {
            engine.budget_mut().seed(stored);
        }
        for temperature in TEMPERATURES {
            let requests: Vec<Request> =
                [1, 30, 64, 65].map(|len| at(temperature, fixed(len, WIDE, 40))).into();
            for (answer, request) in answers(&mut engine, &requests).iter().zip(&requests) {
                answer.assert_equals(
                    &plain(&models, request),
                    &format!("costs {i}, temperature {temperature}"),
                );
            }
        }
        let counts = engine.budget().counts();
        assert!(counts.plain > 0, "costs {i}: {counts:?}");
        assert!(i != 1 || counts.drafted + counts.looks > 0, "free rows were not used: {counts:?}");
    }
}

/// The drafter does nothing in plain rounds, and yet drafts afterwards as if it had read every token at once.
#[test]
fn after_plain_rounds_the_drafter_knows_the_whole_context() {
    let models = demo_models();
    let mut engine = Engine::new(models.clone(), Pool::single(), OPTIONS).expect("a pair that fits");
    // Nothing is calibrated then.
    engine.budget_mut().seed(&free_rows(64));
    let request = fixed(40, 4096, 120);
    let answer = answers(&mut engine, std::slice::from_ref(&request)).remove(0);
    let drafted: Vec<_> =
        answer.rounds.iter().enumerate().filter(|(_, round)| !round.tree.is_empty()).collect();
    assert!(!drafted.is_empty(), "nothing was drafted in {} rounds", answer.rounds.len());
    assert!(drafted[0].0 >= 4, "the first rounds show what plain decoding takes");
    let all: Vec<u32> = request.prompt.iter().copied().chain(answer.tokens()).collect();
    for (_, round) in drafted {
        // A fresh engine that reads everything up to the same place, and drafts at once.
        let prompt = all[..round.start].to_vec();
        let fresh = Request { speculation: Speculation::Chain, ..Request::new(prompt, 2) };
        let chain = alone(&models, &fresh).rounds.remove(0);
        assert_eq!((chain.start, chain.bonus), (round.start, round.bonus));
        let best = |round: &kd_engine::Round| round.tree.nodes()[0].token;
        assert_eq!(best(round), best(&chain), "the best draft at position {}", round.start);
        let spine: Vec<u32> = chain.tree.nodes().iter().map(|node| node.token).collect();
        let rows = round.tree.rows();
        let common =
            rows.map(|row| round.tree.path_tokens(row).zip(&spine).take_while(|(a, b)| a == *b).count());
        assert!(common.max() > Some(0), "no node of the spine at position {}", round.start);
    }
}

/// Rounds are timed for those alone that have a use for it: others neither wait nor see any of it, and whoever waits may leave.
#[test]
fn rounds_are_timed_only_while_all_wait_for_it() {
    let models = demo_models();
    let mut engine = Engine::new(models.clone(), Pool::single(), OPTIONS).expect("a pair that fits");
    let request = fixed(40, 4096, 60);
    let both = [request.clone(), auto(&request)];
    let arrivals: Vec<Arrival> = both.iter().cloned().map(Arrival::from).collect();
    let ids = both.map(|request| engine.submit(request).expect("a valid request"));
    let first = engine.step();
    assert_eq!(engine.running(), 2, "a request without a use for it waited");
    assert!(!first.events.is_empty() && !engine.budget().is_calibrated());
    assert!(ids.into_iter().all(|id| engine.cancel(id)));
    let free = engine.free_pages();

    let id = engine.submit(auto(&request)).expect("a valid request");
    let step = engine.step();
    assert!(engine.budget().is_calibrated(), "nothing was timed");
    assert!(step.events.is_empty() && step.rounds.is_empty() && step.outcome.is_none(), "{step:?}");
    assert_eq!((engine.running(), engine.free_pages()), (0, free), "streams or pages are left");
    assert!(engine.cancel(id) && engine.is_idle(), "who waits may leave");

    let answers = run(&mut engine, &arrivals);
    for answer in &answers {
        answer.assert_equals(&plain(&models, &request), "beside a calibration");
    }
    // What was begun goes on, and ends: the next answer begins within some steps, and the one after it at once.
    let mut steps = 0;
    engine.submit(auto(&request)).expect("a valid request");
    while engine.running() == 0 {
        engine.step();
        steps += 1;
        assert!(steps < 1000, "no end");
    }
    while !engine.is_idle() {
        engine.step();
    }
    engine.submit(auto(&request)).expect("a valid request");
    engine.step();
    assert_eq!(engine.running(), 1, "all that may pay was timed");
}
