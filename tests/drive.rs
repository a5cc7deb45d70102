//! Running an engine from the first request to the last answer.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use kd_engine::{
    Choice, Engine, EngineOptions, Event, FinishReason, Models, Request, RequestId, Round, Speculation,
    StreamError, StreamStats,
};
use kd_tensor::Pool;

/// A request and when it comes and goes.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// What is asked for.
    pub request: Request,
    /// The step before which it is submitted.
    pub joins: usize,
    /// The step before which it is cancelled.
    pub leaves: Option<usize>,
}

impl From<Request> for Arrival {
    fn from(request: Request) -> Self {
        Self { request, joins: 0, leaves: None }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Its tokens, with whatever was reported about them.
    pub choices: Vec<Choice>,
    /// Its text.
    pub text: String,
    /// How it ended; `None` if it was cancelled.
    pub end: Option<Result<FinishReason, StreamError>>,
    /// Its counters.
    pub stats: StreamStats,
    /// Its rounds.
    pub rounds: Vec<Round>,
    /// The step of each of them.
    pub steps: Vec<usize>,
}

impl Answer {
    /// Its token ids.
    pub fn tokens(&self) -> Vec<u32> {
        self.choices.iter().map(|choice| choice.token).collect()
    }

    /// Accepted draft tokens a round.
    pub fn accepted(&self) -> f64 {
        self.stats.tokens_per_round().map_or(0.0, |tokens| tokens - 1.0)
    }

    /// Asserts that nothing that a caller sees differs from `plain`, and that it has ended.
    ///
    /// # Panics
    /// If something does.
    #[track_caller]
    pub fn assert_equals(&self, plain: &Answer, what: &str) {
        assert_eq!(self.choices, plain.choices, "{what}: tokens");
        assert_eq!(self.text, plain.text, "{what}: text");
        assert_eq!(self.end, plain.end, "{what}: end");
        assert!(self.end.is_some(), "{what}: no end");
    }
}

/// Room for the largest test.
pub const OPTIONS: EngineOptions =
    EngineOptions { max_streams: 16, cache_tokens: 16 * 256, prefill_chunk: 256, mixed_chunk: 256 };

/// Runs all requests to their ends, and checks that every page came back.
///
/// # Panics
/// If a request is refused, the engine does not come to an end, or pages are lost.
pub fn run(engine: &mut Engine, arrivals: &[Arrival]) -> Vec<Answer> {
    let free = engine.free_pages();
    let mut answers = vec![Answer::default(); arrivals.len()];
    let mut index: HashMap<RequestId, usize> = HashMap::new();
    let last = arrivals.iter().map(|a| a.joins.max(a.leaves.unwrap_or(0))).max().unwrap_or(0);
    for now in 0.. {
        assert!(now < 10_000, "the engine does not come to an end");
        for (i, arrival) in arrivals.iter().enumerate().filter(|(_, a)| a.joins == now) {
            let id = engine.submit(arrival.request.clone()).expect("a valid request");
            index.insert(id, i);
        }
        for (&id, _) in index.iter().filter(|&(_, &i)| arrivals[i].leaves == Some(now)) {
            engine.cancel(id);
        }
        let step = engine.step();
        step.events.into_iter().for_each(|event| record(&mut answers, &index, event));
        for round in step.rounds {
            let answer = &mut answers[index[&round.id]];
            answer.steps.push(now);
            answer.rounds.push(round);
        }
        if now >= last && engine.is_idle() {
            break;
        }
    }
    assert_eq!(engine.free_pages(), free, "pages were lost");
    answers
}

fn record(answers: &mut [Answer], index: &HashMap<RequestId, usize>, event: Event) {
    match event {
        Event::Tokens { id, tokens, text } => {
            let answer = &mut answers[index[&id]];
            assert!(answer.end.is_none(), "tokens after the end");
            answer.choices.extend(tokens);
            answer.text.push_str(&text);
        }
        Event::Finished { id, reason, stats } => {
            let answer = &mut answers[index[&id]];
            assert!(answer.end.replace(Ok(reason)).is_none(), "two ends");
            answer.stats = stats;
        }
        Event::Failed { id, error, stats } => {
            let answer = &mut answers[index[&id]];
            assert!(answer.end.replace(Err(error)).is_none(), "two ends");
            answer.stats = stats;
        }
    }
}

/// Runs the requests together in a new engine with one thread, or one thread a rank.
pub fn together(models: &Models, requests: impl IntoIterator<Item = Request>) -> Vec<Answer> {
    let mut engine = Engine::new(models.clone(), single(models), OPTIONS).expect("a pair that fits");
    let arrivals: Vec<Arrival> = requests.into_iter().map(Arrival::from).collect();
    run(&mut engine, &arrivals)
}

/// One thread, or one thread a rank.
///
/// # Panics
/// If the threads cannot be started.
pub fn single(models: &Models) -> Pool {
    let ranks = NonZeroUsize::new(models.target.ranks()).expect("at least one rank");
    Pool::with_ranks(NonZeroUsize::MIN, ranks).expect("threads")
}

/// Runs one request in a new engine.
pub fn alone(models: &Models, request: &Request) -> Answer {
    together(models, [request.clone()]).remove(0)
}

/// Plain decoding of one request alone: what every other way of running it must equal.
pub fn plain(models: &Models, request: &Request) -> Answer {
    alone(models, &Request { speculation: Speculation::Plain, ..request.clone() })
}
