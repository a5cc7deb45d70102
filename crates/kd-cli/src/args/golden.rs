//! Flags of `kd golden`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{CacheArgs, Device, RankArgs};

#[derive(Debug, Args)]
pub(crate) struct GoldenArgs {
    #[command(subcommand)]
    pub(crate) what: Golden,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Golden {
    /// A target's logits, hidden states, latents, router choices, greedy tokens and trees.
    Model {
        /// Checkpoint folder of the target.
        #[arg(long, env = "KD_MODEL", value_name = "DIR")]
        model: PathBuf,
        #[command(flatten)]
        cache: CacheArgs,
        #[command(flatten)]
        files: TensorFiles,
    },
    /// A drafter's logits, context keys and values.
    Drafter {
        /// Checkpoint folder of the drafter.
        #[arg(long, env = "KD_DRAFTER", value_name = "DIR")]
        drafter: PathBuf,
        #[command(flatten)]
        files: TensorFiles,
    },
    /// Noise, chosen tokens and log-probabilities.
    Sampling(CaseFiles),
    /// Token ids, prompts and parsed answers.
    Text {
        #[command(subcommand)]
        what: GoldenText,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GoldenText {
    /// Encoding and decoding with a checkpoint's tokenizer.
    Tokenizer {
        /// Folder of the tokenizer's files.
        #[arg(long, env = "KD_MODEL", value_name = "DIR")]
        model: PathBuf,
        #[command(flatten)]
        files: CaseFiles,
    },
    /// Prompts of K2.6's native renderer.
    Chat(AnyModel),
    /// Answers through K2.6's parser.
    Parser(AnyModel),
}

#[derive(Debug, Args)]
pub(crate) struct AnyModel {
    /// Accepted for uniformity: renderer and parser are K2.6's own, whatever the model.
    #[arg(long, env = "KD_MODEL", value_name = "DIR")]
    _model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) files: CaseFiles,
}

#[derive(Debug, Args)]
pub(crate) struct CaseFiles {
    /// Cases without their expected values.
    #[arg(long, env = "KD_CASES", value_name = "F.json")]
    pub(crate) cases: PathBuf,
    /// Where to write the cases with the engine's values.
    #[arg(long, env = "KD_OUT", value_name = "F.json")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct TensorFiles {
    /// Golden inputs.
    #[arg(long, env = "KD_INPUTS", value_name = "F.safetensors")]
    pub(crate) inputs: PathBuf,
    /// Where to write the engine's numbers.
    #[arg(long, env = "KD_OUT", value_name = "F.safetensors")]
    pub(crate) out: PathBuf,
    /// Where to run. `auto` is the CPU here, since the limits that results are held to depend on it; GPUs compute in bf16.
    #[arg(long, env = "KD_DEVICE", value_name = "auto|cpu|cuda[:N]", value_parser = super::device, default_value = "auto")]
    pub(crate) device: Device,
    /// Worker threads [default: one for each CPU].
    #[arg(long, env = "KD_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
}
