//! Rounds of one launch: the device draws, walks, commits and drafts by itself, and nobody can tell.

use std::collections::HashMap;

use kd_engine::{Choice, Engine, Event, Request, RequestId, Round, SamplingParams, Speculation, Tree};
use kd_tests::drive::{Answer, Arrival, run};
use kd_tests::random::Numbers;

use crate::{OPTIONS, TOKENS, engine, prompts, request};

const TREE: Speculation = Speculation::Tree { nodes: 16 };

/// Tokens and trees of each request, and the graphs of each step that ran rounds.
#[derive(Default)]
struct Seen {
    tokens: HashMap<RequestId, Vec<Choice>>,
    trees: HashMap<RequestId, Vec<Tree>>,
    graphs: Vec<u64>,
}

impl Seen {
    fn step(&mut self, engine: &mut Engine) {
        let step = engine.step();
        if !step.rounds.is_empty() {
            self.graphs.push(step.graphs);
        }
        for Round { id, tree, .. } in step.rounds {
            self.trees.entry(id).or_default().push(tree);
        }
        for event in step.events {
            match event {
                Event::Tokens { id, tokens, .. } => self.tokens.entry(id).or_default().extend(tokens),
                Event::Finished { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
}

impl Seen {
    /// Whether every round had the host between its launches; the last one has nothing to commit.
    fn of_the_host(&self) -> bool {
        self.graphs.split_last().is_some_and(|(_, graphs)| graphs.iter().all(|&graphs| graphs > 1))
    }
}

/// Runs these requests together to their ends.
fn all(engine: &mut Engine, requests: &[Request]) -> (Vec<RequestId>, Seen) {
    let ids = requests.iter().map(|r| engine.submit(r.clone()).expect("a valid request")).collect();
    let mut seen = Seen::default();
    while !engine.is_idle() {
        seen.step(engine);
    }
    (ids, seen)
}

/// One that needs the host's sampler, and is beside the others for as long as they live.
fn of_the_host() -> Request {
    let params = SamplingParams { logprobs: Some(1), ..SamplingParams::default() };
    Request { params, ..request(prompts(9).remove(8), 0.0, Speculation::Plain) }
}

#[test]
fn a_round_is_one_launch() {
    let Some(mut engine) = engine("a_round_is_one_launch", 64, OPTIONS) else { return };
    for (streams, temperature) in [(1, 0.0), (3, 1.0), (16, 0.0)] {
        let requests = |way| -> Vec<Request> {
            prompts(streams).into_iter().map(|prompt| request(prompt, temperature, way)).collect()
        };
        let (_, plain) = all(&mut engine, &requests(Speculation::Plain));
        assert!(plain.graphs.iter().all(|&graphs| graphs == 1), "plain rounds: {:?}", plain.graphs);
        for way in [Speculation::Chain, TREE, Speculation::Tree { nodes: 64 }] {
            let (_, seen) = all(&mut engine, &requests(way));
            // The first round has nothing that was drafted before it; the last ones have streams that will not draft again.
            let (first, rest) = seen.graphs.split_first().expect("rounds");
            let more = rest.iter().filter(|&&graphs| graphs > 1).count();
            let most = if streams == 1 { 2 } else { rest.len() / 3 };
            assert!(*first == 2 && more <= most, "{streams} streams, {way:?}: {:?}", seen.graphs);
        }
    }
    let mut requests = vec![of_the_host()];
    requests.extend(prompts(2).into_iter().map(|prompt| request(prompt, 0.0, TREE)));
    let (_, seen) = all(&mut engine, &requests);
    assert!(seen.of_the_host(), "rounds with the host's sampler: {:?}", seen.graphs);
}

/// Beside a stream of the host's sampler every round is several launches with the host's walk between them.
#[test]
fn one_launch_gives_the_tokens_and_trees_of_several() {
    let test = "one_launch_gives_the_tokens_and_trees_of_several";
    let Some(mut engine) = engine(test, 64, OPTIONS) else { return };
    for temperature in [0.0, 1.0] {
        for nodes in [1, 7, 16, 64] {
            let way = Speculation::Tree { nodes };
            let own: Vec<Request> =
                prompts(5).into_iter().map(|prompt| request(prompt, temperature, way)).collect();
            let (ids, alone) = all(&mut engine, &own);
            let with: Vec<Request> = own.iter().cloned().chain([of_the_host()]).collect();
            let (others, beside) = all(&mut engine, &with);
            assert!(beside.of_the_host(), "{:?}", beside.graphs);
            for (id, other) in ids.iter().zip(&others) {
                let what = format!("{nodes} nodes at temperature {temperature}");
                assert_eq!(alone.tokens[id].len(), TOKENS, "{what}");
                assert_eq!(alone.tokens[id], beside.tokens[other], "{what}");
                assert_eq!(alone.trees[id], beside.trees[other], "{what}");
            }
        }
    }
}

/// In every round another set of streams, other pages, lengths, budgets, seeds and temperatures in the places of the last one.
#[test]
fn a_replay_sees_nothing_of_the_round_before() {
    let test = "a_replay_sees_nothing_of_the_round_before";
    let Some(mut engine) = engine(test, 64, OPTIONS) else { return };
    let mut n = Numbers(11);
    let (mut seen, mut live, mut left) = (Seen::default(), Vec::new(), Vec::new());
    let mut requests: HashMap<RequestId, Request> = HashMap::new();
    let ways = [
        Speculation::Chain,
        Speculation::Tree { nodes: 2 },
        TREE,
        Speculation::Tree { nodes: 64 },
        Speculation::Plain,
        Speculation::Auto,
    ];
    let prompts = prompts(48);
    for round in 0..160 {
        if round < 120 && round % 3 < 2 && live.len() < 12 {
            let prompt = prompts[n.below(prompts.len())].clone();
            let params = SamplingParams {
                temperature: n.pick(&[0.0, 0.6, 1.0, 1.7]),
                seed: n.below(1000) as u64,
                ..SamplingParams::default()
            };
            let max_tokens = 2 + n.below(60);
            let request =
                Request { params, max_tokens, choice: n.below(3) as u32, ..request(prompt, 0.0, TREE) };
            let id = engine.submit(request.clone()).expect("a valid request");
            live.push(id);
            requests.insert(id, request);
        }
        if n.below(8) == 0 && !live.is_empty() {
            let id = live.swap_remove(n.below(live.len()));
            engine.cancel(id);
            left.push(id);
        }
        // In most rounds everybody drafts.
        let ways = if n.below(4) == 0 { &ways[..] } else { &ways[..4] };
        for &id in &live {
            engine.set_speculation(id, n.pick(ways)).expect("submitted with a budget");
        }
        seen.step(&mut engine);
        let complete = |id: &RequestId| {
            seen.tokens.get(id).is_some_and(|tokens| tokens.len() == requests[id].max_tokens)
        };
        live.retain(|id| !complete(id));
    }
    while !engine.is_idle() {
        seen.step(&mut engine);
    }
    let one = seen.graphs.iter().filter(|&&graphs| graphs == 1).count();
    assert!(one > seen.graphs.len() / 5, "rounds of one launch: {:?}", seen.graphs);
    let mut compared = 0;
    for (id, request) in &requests {
        let plain = Arrival::from(Request { speculation: Speculation::Plain, ..request.clone() });
        let plain: Answer = run(&mut engine, &[plain]).remove(0);
        let tokens = seen.tokens.get(id).map_or(&[][..], Vec::as_slice);
        if left.contains(id) {
            assert!(plain.choices.starts_with(tokens), "{id:?} before it left");
        } else {
            assert_eq!(tokens, plain.choices, "{id:?}");
        }
        compared += tokens.len();
    }
    assert!(compared > 1000, "only {compared} tokens");
}
