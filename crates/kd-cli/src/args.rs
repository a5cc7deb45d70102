//! Flags and verbs. Every flag has an environment twin `KD_<FLAG>`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Serves Kimi K2.6 with DDTree speculative decoding.
///
/// Without a verb it generates text; without a model it runs the small demo pair.
#[derive(Debug, Parser)]
#[command(name = "kd", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    generate: GenerateArgs,
}

impl Cli {
    /// The verb, `generate` when none was given.
    pub(crate) fn verb(self) -> Verb {
        self.verb.unwrap_or(Verb::Generate(Box::new(self.generate)))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Generate text from prompts, streamed.
    Generate(Box<GenerateArgs>),
    /// Draw one round's draft tree and what the target accepted of it.
    Tree(Box<TreeArgs>),
    /// Write the engine's numbers for golden inputs.
    Golden(GoldenArgs),
}

/// What every verb that runs a model takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// Checkpoint folder of the target [default: the demo pair].
    #[arg(long, env = "KD_MODEL", value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Checkpoint folder of the DFlash drafter [default: the demo drafter for the demo target, else none].
    #[arg(long, env = "KD_DRAFTER", value_name = "DIR")]
    pub(crate) drafter: Option<PathBuf>,
    /// Where to run. This version runs on the CPU.
    #[arg(long, env = "KD_DEVICE", value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Worker threads [default: one for each CPU]. Results do not depend on it.
    #[arg(long, env = "KD_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print nothing but the result.
    #[arg(long, short, env = "KD_QUIET")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The best device that this version can use.
    Auto,
    /// The CPU.
    Cpu,
}

/// One prompt.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromptArgs {
    /// The prompt as plain text, or `-` to read it from stdin. Control strings in it are ordinary characters.
    #[arg(long, env = "KD_PROMPT", value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// The prompt as token ids, taken verbatim.
    #[arg(
        long,
        env = "KD_PROMPT_IDS",
        value_name = "ID,…",
        value_delimiter = ',',
        conflicts_with = "prompt"
    )]
    pub(crate) prompt_ids: Option<Vec<u32>>,
    /// Whether a raw prompt begins with the tokenizer's BOS; auto: if it has one.
    #[arg(long, env = "KD_BOS", value_enum, default_value_t = Bos::Auto)]
    pub(crate) bos: Bos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bos {
    /// On for a raw prompt when the tokenizer names a BOS.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate.
    #[arg(long, env = "KD_MAX_TOKENS", value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: usize,
    /// Go on after end-of-sequence tokens. Stop ids given by hand still end the generation.
    #[arg(long, env = "KD_IGNORE_EOS")]
    pub(crate) ignore_eos: bool,
    /// Divides the logits; 0 takes the largest one.
    #[arg(long, env = "KD_TEMPERATURE", value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// More ids that end the generation.
    #[arg(long, env = "KD_STOP_IDS", value_name = "ID,…", value_delimiter = ',')]
    pub(crate) stop_ids: Vec<u32>,
    /// Key of the random draws [default: random, and reported].
    #[arg(long, env = "KD_SEED", value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Draft nodes a round and stream, 0 to 128; 0 is plain decoding [default: 16, or 0 without a drafter].
    #[arg(long, env = "KD_BUDGET", value_name = "N", value_parser = clap::value_parser!(u64).range(0..=128))]
    pub(crate) budget: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// One stream a line: `prompt` or `prompt_ids`, plus any of `max_tokens`, `ignore_eos`, `temperature`, `stop_ids`,
    /// `seed` and `budget` in place of the flags.
    #[arg(long, env = "KD_PROMPTS", value_name = "FILE.jsonl", conflicts_with_all = ["prompt", "prompt_ids", "streams"])]
    pub(crate) prompts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Copies of the prompt, run together: choices 0 … N − 1 of one seed.
    #[arg(long, env = "KD_STREAMS", value_name = "N", default_value = "1")]
    pub(crate) streams: NonZeroUsize,
    /// Also run plain decoding, and show both.
    #[arg(long, env = "KD_COMPARE")]
    pub(crate) compare: bool,
    /// Print one JSON object a stream, in input order.
    #[arg(long, env = "KD_JSON")]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Which round to draw, counted from 1.
    #[arg(long, env = "KD_ROUND", value_name = "N", default_value = "1")]
    pub(crate) round: NonZeroUsize,
    /// Print the tree as one JSON object.
    #[arg(long, env = "KD_JSON")]
    pub(crate) json: bool,
}

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
    Sampling {
        /// Cases without their expected values.
        #[arg(long, value_name = "F.json")]
        cases: PathBuf,
        /// Where to write the cases with the engine's values.
        #[arg(long, value_name = "F.json")]
        out: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TensorFiles {
    /// Golden inputs.
    #[arg(long, value_name = "F.safetensors")]
    pub(crate) inputs: PathBuf,
    /// Where to write the engine's numbers.
    #[arg(long, value_name = "F.safetensors")]
    pub(crate) out: PathBuf,
    /// Where to run.
    #[arg(long, env = "KD_DEVICE", value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Worker threads [default: one for each CPU].
    #[arg(long, env = "KD_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
}
