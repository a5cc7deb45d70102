//! Prompt chunks of any size, and rounds that leave the drafter's reading for later.

use kd_engine::{EngineOptions, Event, Request, Speculation};
use kd_tests::drive::{Answer, Arrival, run};

use crate::{OPTIONS, engine, prompts, request};

/// Engines planned for other chunks give the same tokens, and the same drafts.
#[test]
fn chunks_of_any_size_give_the_same_tokens() {
    let test = "chunks_of_any_size_give_the_same_tokens";
    let requests: Vec<Arrival> = prompts(8)
        .into_iter()
        .map(|prompt| request(prompt, 1.0, Speculation::Tree { nodes: 8 }))
        // Some join while others generate.
        .enumerate()
        .map(|(i, request)| Arrival { joins: 3 * (i / 3), ..request.into() })
        .collect();
    let mut whole: Option<Vec<Answer>> = None;
    for (prefill_chunk, mixed_chunk) in [(4096, 4096), (4096, 33), (256, 256), (100, 7), (1, 1)] {
        let options = EngineOptions { prefill_chunk, mixed_chunk, ..OPTIONS };
        let Some(mut engine) = engine(test, 8, options) else { return };
        let answers = run(&mut engine, &requests);
        let Some(whole) = &whole else {
            whole = Some(answers);
            continue;
        };
        for (i, (answer, whole)) in answers.iter().zip(whole).enumerate() {
            let what = format!("chunks of {prefill_chunk} and {mixed_chunk}, prompt {i}");
            answer.assert_equals(whole, &what);
            assert_eq!(trees(answer), trees(whole), "{what}: drafts");
        }
    }
}

fn trees(answer: &Answer) -> Vec<(usize, kd_engine::Tree)> {
    answer.rounds.iter().map(|round| (round.start, round.tree.clone())).collect()
}

/// After rounds without drafts a stream drafts what it would have drafted there without them.
#[test]
fn the_drafter_reads_later_what_plain_rounds_committed() {
    let test = "the_drafter_reads_later_what_plain_rounds_committed";
    let Some(mut engine) = engine(test, 8, OPTIONS) else { return };
    let way = Speculation::Tree { nodes: 8 };
    let requests: Vec<Request> = prompts(5).into_iter().map(|prompt| request(prompt, 1.0, way)).collect();
    let straight = run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>());
    let ids: Vec<_> =
        requests.iter().map(|request| engine.submit(request.clone()).expect("a valid request")).collect();
    let mut compared = 0;
    for step in 0.. {
        if engine.is_idle() {
            break;
        }
        // All pause together; then the first one pauses alone, beside others that draft; one leaves with taps unread.
        let pause = |stream: usize| step % 16 < 9 || (stream == 0 && step % 16 < 13);
        for (stream, id) in ids.iter().enumerate() {
            let now = if pause(stream) { Speculation::Plain } else { way };
            engine.set_speculation(*id, now).expect("submitted with a budget");
        }
        if step == 20 {
            engine.cancel(ids[4]);
        }
        let done = engine.step();
        assert!(!done.events.iter().any(|event| matches!(event, Event::Failed { .. })));
        for round in done.rounds.iter().filter(|round| !round.tree.is_empty()) {
            let stream = ids.iter().position(|id| *id == round.id).expect("a stream");
            let other = straight[stream].rounds.iter().find(|other| other.start == round.start);
            let Some(other) = other.filter(|other| !other.tree.is_empty()) else { continue };
            assert_eq!(round.tree, other.tree, "stream {stream}, position {}", round.start);
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} drafts at the same positions");
}
