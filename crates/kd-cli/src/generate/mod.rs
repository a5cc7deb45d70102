//! `kd generate`: text from prompts, streamed.

mod output;
mod prompts;
pub(crate) mod run;

use anyhow::bail;
use kd_engine::{Engine, EngineOptions, Models, PAGE_TOKENS, Request, Speculation};

use crate::args::{ChunkArgs, GenerateArgs};
use crate::place::Place;
use crate::{calibration, interrupt, models};

pub(crate) use output::summary;
pub(crate) use prompts::{prompt_ids, request};
pub(crate) use run::Outcome;

/// What is continued when nothing was asked for.
const SAMPLE_PROMPT: &str = "// itoa/src/lib.rs\n/// Writes an integer";

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    let requests = prompts::prepare(args, &loaded)?;
    let place = Place::of(&args.common, &loaded.models)?;
    if !args.common.quiet {
        say!("kd: {} {}", models::describe(&loaded.models), place.describe());
    }
    let calibrated = place.calibrated();
    let mut engine = engine(loaded.models, place, &requests, args.chunks, args.common.quiet)?;
    calibration::seed(&mut engine, &calibrated, args.sampling.calibration.as_deref())?;
    interrupt::heed();
    let printer = output::Printer::new(args, &requests, &engine);
    printer.prompt(&engine)?;
    let mut outcomes = Vec::new();
    let ran = run::run_into(&mut engine, &requests, &mut outcomes, |text| printer.text(text));
    let mut compare = || args.compare.then(|| run_plain(&mut engine, &requests)).transpose();
    let plain = match ran.and_then(|()| compare()) {
        Ok(plain) => plain,
        Err(error) => {
            printer.cut_short(&outcomes)?;
            return Err(error);
        }
    };
    printer.finish(&outcomes, plain.as_deref())?;

    let errors: Vec<&str> = outcomes.iter().filter_map(|o| o.error.as_deref()).collect();
    match errors[..] {
        [] => {}
        [error] if outcomes.len() == 1 => bail!("{error}"),
        _ => bail!("{} of {} streams failed", errors.len(), outcomes.len()),
    }
    plain.map_or(Ok(()), |plain| output::require_equal(&outcomes, &plain))
}

/// An engine with room for all the requests at once.
pub(crate) fn engine(
    models: Models,
    place: Place,
    requests: &[Request],
    chunks: ChunkArgs,
    quiet: bool,
) -> anyhow::Result<Engine> {
    // Nothing longer than the context is ever admitted, so nothing longer needs room.
    let longest = models.target.config().max_position_embeddings;
    let tokens =
        |r: &Request| r.prompt.len().saturating_add(r.max_tokens).min(longest).next_multiple_of(PAGE_TOKENS);
    let options = EngineOptions {
        max_streams: requests.len(),
        cache_tokens: requests.iter().map(tokens).sum(),
        prefill_chunk: requests.iter().map(|request| request.prompt.len()).sum(),
        ..EngineOptions::default()
    };
    let nodes = requests.iter().map(|request| request.speculation.most_nodes()).max().unwrap_or(0);
    place.engine(models, options, nodes, chunks, quiet)
}

fn run_plain(engine: &mut Engine, requests: &[Request]) -> anyhow::Result<Vec<Outcome>> {
    let plain: Vec<Request> =
        requests.iter().map(|r| Request { speculation: Speculation::Plain, ..r.clone() }).collect();
    run::run(engine, &plain)
}
