//! `kd generate`: text from prompts, streamed.

mod output;
mod prompts;
mod run;

use std::time::Duration;

use anyhow::{anyhow, bail};
use kd_engine::{Engine, EngineOptions, Models, Request, Speculation};
use kd_tensor::Pool;

use crate::args::GenerateArgs;
use crate::{interrupt, models};

pub(crate) use prompts::{Prepared, defaults, prompt_ids};
pub(crate) use run::Outcome;

/// What is continued when nothing was asked for.
pub(crate) const SAMPLE_PROMPT: &str = "// itoa/src/lib.rs\n/// Writes an integer";

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    interrupt::install()?;
    let models = models::load(&args.common)?;
    let prepared = prompts::prepare(args, &models)?;
    let pool = models::pool(args.common.threads)?;
    if !args.common.quiet {
        eprintln!("kd: {} on the CPU with {} threads", output::describe(&models), pool.threads());
    }
    let mut engine = engine(models, pool, &prepared)?;
    let mut printer = output::Printer::new(args, &prepared);
    if !args.json && prepared.len() == 1 && !args.common.quiet {
        printer.prompt(&engine, &prepared[0])?;
    }
    let outcomes = run::run(&mut engine, &prepared, |stream, text| printer.text(stream, text))?;
    let plain = args.compare.then(|| run_plain(&mut engine, &prepared)).transpose()?;
    printer.finish(&prepared, &outcomes, plain.as_deref())?;

    let failed = outcomes.iter().filter(|o| o.error.is_some()).count();
    if failed > 0 {
        bail!("{failed} of {} streams failed", outcomes.len());
    }
    if let Some(plain) = plain {
        output::require_equal(&outcomes, &plain)?;
    }
    Ok(())
}

/// An engine with room for all the requests at once.
pub(crate) fn engine(models: Models, pool: Pool, prepared: &[Prepared]) -> anyhow::Result<Engine> {
    let pages = |r: &Request| r.prompt.len().saturating_add(r.max_tokens).div_ceil(kd_engine::PAGE_TOKENS);
    let longest = models.target.config().max_position_embeddings;
    let tokens = prepared
        .iter()
        .map(|p| {
            pages(&p.request).saturating_mul(kd_engine::PAGE_TOKENS).min(longest + kd_engine::PAGE_TOKENS)
        })
        .sum();
    let options =
        EngineOptions { max_streams: prepared.len(), cache_tokens: tokens, ..EngineOptions::default() };
    Ok(Engine::new(models, pool, options)?)
}

fn run_plain(engine: &mut Engine, prepared: &[Prepared]) -> anyhow::Result<Vec<Outcome>> {
    let plain: Vec<Prepared> = prepared
        .iter()
        .map(|p| Prepared { request: Request { speculation: Speculation::Plain, ..p.request.clone() } })
        .collect();
    run::run(engine, &plain, |_, _| Ok(()))
}

/// Tokens a second of several streams that ran together.
pub(crate) fn rate(tokens: u64, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

/// A model without tokenizer can only continue ids.
pub(crate) fn needs_tokenizer() -> anyhow::Error {
    anyhow!("the checkpoint has no tokenizer (tiktoken.model); give the prompt as ids with --prompt-ids")
}
