//! Running requests to their end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kd_engine::{Engine, Event, FinishReason, Request, StreamStats};

use crate::interrupt;

/// How one stream ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) output_ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) error: Option<String>,
    pub(crate) stats: StreamStats,
    /// From the first submission to this stream's end.
    pub(crate) elapsed: Duration,
}

impl Outcome {
    /// Whether the stream ended, well or not.
    pub(crate) fn is_final(&self) -> bool {
        self.reason.is_some() || self.error.is_some()
    }
}

/// As [`run_into`], for those who have no use for a part.
pub(crate) fn run(engine: &mut Engine, requests: &[Request]) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    run_into(engine, requests, &mut outcomes, |_| Ok(())).map(|()| outcomes)
}

/// Submits all requests and steps until all have ended; `on_text` hears of text as it comes, whichever stream it belongs to.
/// `outcomes` has one for each request, also after an error: those of streams that had ended are final.
pub(crate) fn run_into(
    engine: &mut Engine,
    requests: &[Request],
    outcomes: &mut Vec<Outcome>,
    mut on_text: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    *outcomes = vec![Outcome::default(); requests.len()];
    let mut index = HashMap::new();
    for (i, request) in requests.iter().enumerate() {
        match engine.submit(request.clone()) {
            Ok(id) => _ = index.insert(id, i),
            // Like a stream that fails later: the others finish.
            Err(error) => outcomes[i].error = Some(error.to_string()),
        }
    }
    while !engine.is_idle() {
        interrupt::check()?;
        for event in engine.step().events {
            match event {
                Event::Tokens { id, tokens, text } => {
                    let i = index[&id];
                    outcomes[i].output_ids.extend(tokens.iter().map(|t| t.token));
                    outcomes[i].text.push_str(&text);
                    on_text(&text)?;
                }
                Event::Finished { id, reason, stats } => {
                    let outcome = &mut outcomes[index[&id]];
                    (outcome.reason, outcome.stats, outcome.elapsed) = (Some(reason), stats, begin.elapsed());
                }
                Event::Failed { id, error, stats } => {
                    let outcome = &mut outcomes[index[&id]];
                    outcome.error = Some(error.to_string());
                    (outcome.stats, outcome.elapsed) = (stats, begin.elapsed());
                }
            }
        }
    }
    Ok(())
}
