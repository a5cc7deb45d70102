//! Finding and loading what the flags name.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use kd_engine::Models;
use kd_model::{Drafter, Target};
use kd_tensor::Pool;
use kd_text::{Tokenizer, TokenizerError};

use crate::args::{CommonArgs, RankArgs, TemplateArgs};
use crate::conversation::Renderer;

/// Models, and where the target came from.
pub(crate) struct Loaded {
    pub(crate) models: Models,
    pub(crate) target_dir: PathBuf,
    /// Whether the target is the demo pair's.
    pub(crate) is_demo: bool,
}

impl Loaded {
    /// The checkpoint's tokenizer and template, for prompts that are not ids.
    pub(crate) fn renderer(&self, args: &TemplateArgs) -> anyhow::Result<Renderer> {
        let missing = || {
            anyhow!(
                "the checkpoint has no tokenizer (tiktoken.model); give the prompt as ids with --prompt-ids"
            )
        };
        let tokenizer = self.models.tokenizer.clone().ok_or_else(missing)?;
        Renderer::new(args, tokenizer, &self.target_dir)
    }

    /// The ids of a raw text, after the BOS if the tokenizer names one.
    pub(crate) fn raw_ids(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let tokenizer =
            self.models.tokenizer.as_ref().context("the checkpoint has no tokenizer; use prompt_ids")?;
        let mut ids: Vec<u32> = tokenizer.bos_id().into_iter().collect();
        ids.extend(tokenizer.encode_ordinary(text)?);
        Ok(ids)
    }
}

/// Worker threads as asked for, or one for each CPU, divided among the ranks.
pub(crate) fn pool(threads: Option<NonZeroUsize>, ranks: RankArgs) -> anyhow::Result<Pool> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    Ok(Pool::with_ranks(threads.unwrap_or(NonZeroUsize::MIN), ranks.tp)?)
}

/// Loads target, drafter and tokenizer.
pub(crate) fn load(args: &CommonArgs) -> anyhow::Result<Loaded> {
    let demo = demo_pair();
    let target_dir = match (&args.model, &demo) {
        (Some(dir), _) => dir.clone(),
        (None, Some(demo)) => demo.join("target"),
        (None, None) => {
            bail!("the demo pair (models/demo) was not found; name a checkpoint with --model DIR")
        }
    };
    let is_demo = demo.as_ref().is_some_and(|demo| same_folder(&demo.join("target"), &target_dir));
    let demo_drafter = demo.filter(|_| is_demo).map(|demo| demo.join("drafter"));
    let drafter_dir = args.drafter.clone().or(demo_drafter);
    let target = Target::load_sharded(&target_dir, args.ranks.tp)?.with_kv_cache_dtype(args.cache.dtype());
    let skipped = target.skipped().tensors;
    if skipped > 0 && !args.quiet {
        say!("kd: skipped {skipped} vision tensors: text only");
    }
    let drafter = match drafter_dir {
        Some(dir) => Some(Drafter::load_sharded(&dir, args.ranks.tp)?),
        None => None,
    };
    let tokenizer = match Tokenizer::from_dir(&target_dir) {
        Ok(tokenizer) => Some(tokenizer),
        Err(TokenizerError::Missing { .. }) => None,
        Err(error) => return Err(error).context("cannot load the tokenizer"),
    };
    let models = Models { target: Arc::new(target), drafter: drafter.map(Arc::new), tokenizer };
    Ok(Loaded { models, target_dir, is_demo })
}

/// The folder of the demo pair: beside the executable or above it, or above the current folder.
pub(crate) fn demo_pair() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok();
    let current = std::env::current_dir().ok();
    let starts = executable.iter().chain(&current);
    starts
        .flat_map(|start| start.ancestors())
        .map(|folder| folder.join("models/demo"))
        .find(|demo| demo.join("target/config.json").is_file())
}

fn same_folder(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Every id that ends a generation: those of the configurations, and the tokenizer's `[EOS]` and `<|im_end|>`.
pub(crate) fn eos_ids(models: &Models) -> Vec<u32> {
    let mut ids = models.target.config().eos_token_ids.clone();
    if let Some(tokenizer) = &models.tokenizer {
        ids.extend(["[EOS]", "<|im_end|>"].into_iter().filter_map(|name| tokenizer.token_id(name)));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The models in a few words.
pub(crate) fn describe(models: &Models) -> String {
    let t = models.target.config();
    let target =
        format!("target {} layers x {}, {} experts", t.num_hidden_layers, t.hidden_size, t.n_routed_experts);
    match &models.drafter {
        Some(drafter) => format!("{target}; drafter block {}", drafter.config().block_size),
        None => format!("{target}; no drafter"),
    }
}

/// What they run on.
pub(crate) fn describe_pool(pool: &Pool) -> String {
    let threads = format!("{} threads", pool.threads());
    if pool.ranks() == 1 { threads } else { format!("{threads} for {} ranks", pool.ranks()) }
}
