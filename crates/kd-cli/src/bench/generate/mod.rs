//! `kd bench generate`: plain decoding, chains, trees and the automatic budget against each other.

mod cells;
mod report;

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, bail};
use kd_engine::cuda::MOST_CHUNK;
use kd_engine::{Engine, EngineOptions, Models, PAGE_TOKENS, Request, SamplingParams, Speculation};
use serde::Deserialize;
use serde_json::Value;

use super::work;
use crate::args::{BenchGenerateArgs, BenchPromptArgs, ChunkArgs, Mode};
use crate::models::Loaded;
use crate::place::Place;
use crate::{UsageError, input, interrupt, models};
use cells::{Bench, Cell};

/// Key of all draws.
const SEED: u64 = 1;

pub(super) fn run(args: &BenchGenerateArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    if loaded.models.drafter.is_none() {
        let message = "there is no drafter, so nothing competes; name one with --drafter DIR";
        return Err(UsageError(message.to_owned()).into());
    }
    if !args.budgets.contains(&Mode::Nodes(0)) {
        let message = "--budgets lacks 0, plain decoding, which everything is compared with";
        return Err(UsageError(message.to_owned()).into());
    }
    let prompts = prompts(&args.prompts, &loaded)?;
    let place = Place::of(&args.common, &loaded.models)?;
    let floors = place.floors(work::weight_bytes(&loaded.models) as usize)?;
    if !args.common.quiet {
        say!("kd: {} {}", models::describe(&loaded.models), place.describe());
        say!("kd: {}", floors.describe());
    }
    let mut record = place.record(
        "generated tokens a second: plain decoding, chains and trees of fixed budgets, and the automatic budget",
    );
    interrupt::heed();
    report::describe(args, &floors, &mut record);
    let earlier = record.earlier(args.out.as_deref(), report::CELLS);
    let cells: Vec<Cell> = earlier.and_then(|cells| serde_json::from_value(cells).ok()).unwrap_or_default();
    if !cells.is_empty() && !args.common.quiet {
        say!("kd: goes on after {} cells that were measured before", cells.len());
    }
    let mut bench = Bench::new(args, &loaded.models, place, prompts)?;
    let cells = bench.run(cells, |cells| report::write(args, cells, record.clone()))?;
    report::print(args, &loaded.models, &floors, &cells)?;
    bench.budget().map_or(Ok(()), report::learnt)
}

/// Prompts of a measurement by name: those of the file, or those of the demo pair.
pub(crate) fn prompts(args: &BenchPromptArgs, loaded: &Loaded) -> anyhow::Result<Vec<(String, Vec<u32>)>> {
    match &args.prompts {
        Some(path) => from_file(path, loaded),
        None => demo_prompts(loaded),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
}

fn from_file(path: &Path, loaded: &Loaded) -> anyhow::Result<Vec<(String, Vec<u32>)>> {
    let text = input::text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<(String, Vec<u32>)> = lines
        .map(|(i, line)| {
            let read = || match serde_json::from_str(line)? {
                Line { prompt: None, prompt_ids: Some(ids) } => Ok(ids),
                Line { prompt: Some(text), prompt_ids: None } => loaded.raw_ids(&text),
                _ => bail!("give one of prompt and prompt_ids"),
            };
            let ids = read().with_context(|| format!("{} line {}", path.display(), i + 1))?;
            Ok((format!("line {}", i + 1), ids))
        })
        .collect::<anyhow::Result<_>>()?;
    if prompts.is_empty() {
        bail!("{} holds no prompts; write one JSON object a line", path.display());
    }
    Ok(prompts)
}

fn demo_prompts(loaded: &Loaded) -> anyhow::Result<Vec<(String, Vec<u32>)>> {
    let demo = models::demo_pair().filter(|_| loaded.is_demo);
    let Some(demo) = demo else {
        let message = "there are prompts for the demo pair only; name a file with --prompts FILE.jsonl";
        return Err(UsageError(message.to_owned()).into());
    };
    let path = demo.join("golden/golden.json");
    let read = || -> anyhow::Result<Vec<(String, Vec<u32>)>> {
        let golden: Value = serde_json::from_slice(&input::bytes(&path)?)?;
        let cases = golden["cases"].as_array().context("no cases")?;
        let case = |(i, case): (usize, &Value)| -> anyhow::Result<(String, Vec<u32>)> {
            let kind = case["kind"].as_str().unwrap_or("case");
            Ok((format!("{kind} {}", i + 1), serde_json::from_value(case["prompt"].clone())?))
        };
        cases.iter().enumerate().map(case).collect()
    };
    read().with_context(|| format!("cannot read the prompts of {}", path.display()))
}

/// As many requests as streams, of one prompt and seed.
pub(crate) fn requests(
    prompt: &[u32],
    streams: usize,
    temperature: f64,
    max_tokens: usize,
    speculation: Speculation,
) -> Vec<Request> {
    // No stop ids: every answer has the same length, whatever it says.
    let params = SamplingParams { temperature, seed: SEED, ..SamplingParams::default() };
    let request = |choice| Request {
        params: params.clone(),
        choice,
        speculation,
        ..Request::new(prompt.to_vec(), max_tokens)
    };
    (0..streams as u32).map(request).collect()
}

/// An engine with room for streams of `tokens` tokens and trees of `nodes` nodes, which reads all prompts in one pass, or as many
/// at once as a GPU can: streams of a measurement begin together.
pub(crate) fn engine(
    models: &Models,
    place: Place,
    [streams, nodes, tokens]: [usize; 3],
) -> anyhow::Result<Engine> {
    let longest = models.target.config().max_position_embeddings;
    let rows = (streams * tokens).min(MOST_CHUNK);
    let chunk = NonZeroUsize::new(rows);
    let chunks = ChunkArgs { prefill_chunk: chunk, mixed_chunk: chunk, ..ChunkArgs::default() };
    let options = EngineOptions {
        max_streams: streams,
        cache_tokens: streams * tokens.min(longest).next_multiple_of(PAGE_TOKENS),
        prefill_chunk: rows,
        mixed_chunk: rows,
    };
    place.engine(models.clone(), options, nodes, chunks, true)
}
