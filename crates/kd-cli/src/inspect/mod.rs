//! `kd inspect`: what a checkpoint is, what it needs, and what would be refused. No weight is read.

mod memory;
mod report;
mod table;
mod tensors;

use std::io::{Write, stdout};
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{bail, ensure};
use kd_model::checkpoint::Checkpoint;
use kd_model::config::{DrafterConfig, TargetConfig};
use kd_text::prompt::ChatTemplate;
use kd_text::{Tokenizer, TokenizerError};

use crate::UsageError;
use crate::args::InspectArgs;
use report::{Constants, Model, Report, TextFiles};

/// Ten times the tensors of K2.6.
const MOST_TENSORS: usize = 2_000_000;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    if !(args.card_gb > 0.0 && args.card_gb <= 1e6) {
        return Err(UsageError(format!("--card-gb is {}, expected GiB above 0", args.card_gb)).into());
    }
    ensure!(args.dir.is_dir(), "{} is no folder; name the folder of a checkpoint", args.dir.display());
    let report = inspect(args);
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        table::write(&mut out, &report)?;
    }
    match report.refused.len() {
        0 => Ok(()),
        1 => bail!("{}: would be refused: {}", args.dir.display(), report.refused[0]),
        n => bail!("{}: would be refused for {n} reasons, listed above", args.dir.display()),
    }
}

fn inspect(args: &InspectArgs) -> Report {
    let dir = &args.dir;
    let mut report = Report { dir: dir.clone(), ..Report::default() };
    let checkpoint = match Checkpoint::open(dir) {
        Ok(checkpoint) => Some(checkpoint),
        Err(error) => {
            report.refused.push(error.to_string());
            None
        }
    };
    if let Some(checkpoint) = &checkpoint {
        report.tensors = tensors::groups(checkpoint);
    }
    if is_drafter(dir) {
        match DrafterConfig::from_dir(dir) {
            Ok(config) => {
                report.constants = Some(Constants::of_drafter(&config));
                report.model = Some(Model::of_drafter(&config));
                // A drafter's vectors are small: loading it reads those alone.
                if checkpoint.is_some()
                    && let Err(error) = kd_model::Drafter::load(dir)
                {
                    report.refused.push(error.to_string());
                }
            }
            Err(error) => report.refused.push(error.to_string()),
        }
        return report;
    }
    match TargetConfig::from_dir(dir) {
        Ok(config) => {
            report.constants = Some(Constants::of_target(&config, args.cache.dtype()));
            report.model = Some(Model::of_target(&config));
            against_target(&config, checkpoint.as_ref(), args, &mut report);
        }
        Err(error) => report.refused.push(error.to_string()),
    }
    text_files(dir, &mut report);
    report
}

fn against_target(
    config: &TargetConfig,
    checkpoint: Option<&Checkpoint>,
    args: &InspectArgs,
    report: &mut Report,
) {
    let count = config.tensor_count();
    if count > MOST_TENSORS {
        let problem = format!("the configuration calls for {count} tensors, at most {MOST_TENSORS} expected");
        report.refused.push(problem);
        return;
    }
    let specs = config.tensors(checkpoint.map_or("", Checkpoint::target_prefix));
    if let Some(checkpoint) = checkpoint {
        tensors::compare(checkpoint, &specs, report);
    }
    let rank = |tp: &NonZeroUsize| memory::rank(config, &specs, tp.get(), args.card_gb, args.cache.dtype());
    report.ranks = args.tp.iter().map(rank).collect();
}

/// Only a drafter's configuration has `dflash_config`.
fn is_drafter(dir: &Path) -> bool {
    let bytes = kd_tensor::file::read_limited(&dir.join("config.json"), 16 << 20);
    let value = bytes.ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    value.is_some_and(|value| value.get("dflash_config").is_some())
}

fn text_files(dir: &Path, report: &mut Report) {
    let tokenizer = match Tokenizer::from_dir(dir) {
        Ok(tokenizer) => Some(tokenizer.vocab_size()),
        Err(TokenizerError::Missing { .. }) => None,
        Err(error) => {
            report.refused.push(error.to_string());
            None
        }
    };
    let template = match ChatTemplate::from_dir(dir) {
        Ok(template) => template.describe(),
        Err(error) => {
            report.refused.push(error.to_string());
            "unusable".to_owned()
        }
    };
    report.text = Some(TextFiles { tokenizer, template });
}
