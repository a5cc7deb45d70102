//! Streams that come and go, and what an engine leaves behind.

use kd_engine::{EngineOptions, Request, Speculation};
use kd_kernels::Device;
use kd_tests::drive::{Arrival, run};
use kd_tests::random::Numbers;

use crate::{OPTIONS, engine, prompts, request};

#[test]
fn streams_come_and_go() {
    // Room for fewer streams than there are, in slots or in pages; small chunks.
    for (seed, (max_streams, pages, prefill_chunk, mixed_chunk)) in
        [(16, 64, 256, 40), (5, 64, 7, 7), (16, 12, 33, 256)].into_iter().enumerate()
    {
        let options = EngineOptions { max_streams, cache_tokens: 64 * pages, prefill_chunk, mixed_chunk };
        let Some(mut engine) = engine("streams_come_and_go", 64, options) else { return };
        let mut n = Numbers(seed as u64);
        let arrivals: Vec<Arrival> = prompts(24)
            .into_iter()
            .map(|prompt| {
                let way = n.pick(&[
                    Speculation::Plain,
                    Speculation::Chain,
                    Speculation::Auto,
                    Speculation::Tree { nodes: 5 },
                    Speculation::Tree { nodes: 64 },
                ]);
                let joins = n.below(20);
                let leaves = (n.below(5) == 0).then(|| joins + 1 + n.below(20));
                let max_tokens = 1 + n.below(80);
                let request = Request { max_tokens, ..request(prompt, n.pick(&[0.0, 1.0]), way) };
                Arrival { request, joins, leaves }
            })
            .collect();
        let answers = run(&mut engine, &arrivals);
        for (i, (answer, arrival)) in answers.iter().zip(&arrivals).enumerate() {
            let plain = Request { speculation: Speculation::Plain, ..arrival.request.clone() };
            let plain = run(&mut engine, &[plain.into()]).remove(0);
            let what = format!("stream {i}, seed {seed}");
            if answer.end.is_some() {
                answer.assert_equals(&plain, &what);
            } else {
                assert!(arrival.leaves.is_some(), "{what} was not ended");
                assert!(plain.choices.starts_with(&answer.choices), "{what}: tokens before it left");
            }
        }
    }
}

#[test]
fn rounds_leave_memory_and_pages_as_they_were() {
    let Some(mut engine) = engine("rounds_leave_memory_and_pages_as_they_were", 16, OPTIONS) else { return };
    let device = Device::open(0).expect("the device that was there");
    let free = || device.context().mem_get_info().expect("free memory").0;
    let requests: Vec<Arrival> = prompts(16)
        .into_iter()
        .map(|prompt| request(prompt, 1.0, Speculation::Tree { nodes: 16 }).into())
        .collect();
    let mut memory = Vec::new();
    let mut rounds = 0;
    while rounds < 10_000 {
        // Pages are counted by `run`.
        rounds += run(&mut engine, &requests).iter().map(|answer| answer.rounds.len()).sum::<usize>();
        memory.push(free());
    }
    assert!(memory.iter().all(|&bytes| bytes == memory[0]), "free memory: {memory:?}");
}
