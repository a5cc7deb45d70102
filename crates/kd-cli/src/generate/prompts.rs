//! From flags and prompt files to requests.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use kd_engine::{Models, Request, SamplingParams, Speculation};
use serde::Deserialize;

use crate::UsageError;
use crate::args::{Bos, GenerateArgs, PromptArgs, SamplingArgs};
use crate::generate::{SAMPLE_PROMPT, needs_tokenizer};
use crate::models::eos_ids;

/// Budget until an automatic one exists.
const DEFAULT_BUDGET: usize = 16;

/// A request ready to be submitted.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) request: Request,
}

/// Sampling fields of one line of a prompts file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    max_tokens: Option<usize>,
    ignore_eos: Option<bool>,
    temperature: Option<f64>,
    stop_ids: Option<Vec<u32>>,
    seed: Option<u64>,
    budget: Option<u64>,
}

/// All requests of a `kd generate`.
pub(crate) fn prepare(args: &GenerateArgs, models: &Models) -> anyhow::Result<Vec<Prepared>> {
    let Some(path) = &args.prompts else {
        let ids = prompt_ids(&args.prompt, models)?;
        let request = defaults(&args.sampling, models, ids)?;
        let copy = |choice| Prepared { request: Request { choice, ..request.clone() } };
        let streams =
            u32::try_from(args.streams.get()).map_err(|_| UsageError("--streams is too large".into()))?;
        return Ok((0..streams).map(copy).collect());
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let requests: Vec<Prepared> =
        lines.map(|(i, line)| from_line(args, models, path, i + 1, line)).collect::<anyhow::Result<_>>()?;
    if requests.is_empty() {
        bail!("{} holds no prompts; write one JSON object a line", path.display());
    }
    Ok(requests)
}

fn from_line(
    args: &GenerateArgs,
    models: &Models,
    path: &Path,
    number: usize,
    line: &str,
) -> anyhow::Result<Prepared> {
    let place = || format!("{} line {number}", path.display());
    let line: Line = serde_json::from_str(line).with_context(place)?;
    let ids = match (line.prompt, line.prompt_ids) {
        (Some(text), None) => encode(&text, args.prompt.bos, models).with_context(place)?,
        (None, Some(ids)) => ids,
        _ => bail!("{}: give either prompt or prompt_ids", place()),
    };
    let flags = args.sampling.clone();
    let sampling = SamplingArgs {
        max_tokens: line.max_tokens.unwrap_or(flags.max_tokens),
        ignore_eos: line.ignore_eos.unwrap_or(flags.ignore_eos),
        temperature: line.temperature.unwrap_or(flags.temperature),
        stop_ids: line.stop_ids.unwrap_or(flags.stop_ids),
        seed: line.seed.or(flags.seed),
        budget: line.budget.or(flags.budget),
    };
    Ok(Prepared { request: defaults(&sampling, models, ids).with_context(place)? })
}

/// The prompt of the flags: ids, text, stdin, or the sample prompt.
pub(crate) fn prompt_ids(args: &PromptArgs, models: &Models) -> anyhow::Result<Vec<u32>> {
    if let Some(ids) = &args.prompt_ids {
        return Ok(ids.clone());
    }
    match args.prompt.as_deref() {
        Some("-") => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read the prompt from stdin")?;
            let text = String::from_utf8(bytes).context("the prompt on stdin is not UTF-8")?;
            encode(&text, args.bos, models)
        }
        Some(text) => encode(text, args.bos, models),
        None => encode(SAMPLE_PROMPT, args.bos, models),
    }
}

fn encode(text: &str, bos: Bos, models: &Models) -> anyhow::Result<Vec<u32>> {
    let tokenizer = models.tokenizer.as_ref().ok_or_else(needs_tokenizer)?;
    let mut ids = Vec::new();
    match (bos, tokenizer.bos_id()) {
        (Bos::Auto | Bos::On, Some(id)) => ids.push(id),
        (Bos::On, None) => bail!("--bos on, but the tokenizer names no BOS"),
        (Bos::Auto | Bos::Off, _) => {}
    }
    ids.extend(tokenizer.encode_ordinary(text)?);
    Ok(ids)
}

/// A request of the given prompt with everything else from the flags.
pub(crate) fn defaults(args: &SamplingArgs, models: &Models, prompt: Vec<u32>) -> anyhow::Result<Request> {
    let mut stop_ids = if args.ignore_eos { Vec::new() } else { eos_ids(models) };
    stop_ids.extend(&args.stop_ids);
    let params = SamplingParams {
        temperature: args.temperature,
        seed: args.seed.unwrap_or_else(rand::random),
        stop_ids,
        ..SamplingParams::default()
    };
    params.validate(models.target.config().vocab_size).map_err(|e| UsageError(e.to_string()))?;
    let budget = match (args.budget, &models.drafter) {
        (Some(nodes), _) => usize::try_from(nodes)?,
        (None, Some(_)) => DEFAULT_BUDGET,
        (None, None) => 0,
    };
    if budget > 0 && models.drafter.is_none() {
        let message = format!("--budget is {budget}, but there is no drafter; name one with --drafter DIR");
        return Err(UsageError(message).into());
    }
    let speculation = Speculation::Tree { nodes: budget };
    Ok(Request { params, speculation, ..Request::new(prompt, args.max_tokens) })
}
