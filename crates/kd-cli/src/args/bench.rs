//! Flags of `kd bench` and `kd plan`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use super::CommonArgs;

mod operation;

pub(crate) use operation::{
    BenchAttnArgs, BenchDenseArgs, BenchMoeArgs, BenchOperationArgs, BenchStepArgs, OperationArgs,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Text generation: plain decoding, chains, trees of fixed budgets and the automatic budget against each other.
    Generate(Box<BenchGenerateArgs>),
    /// Dense products of Kimi K2.6's sizes.
    Dense(BenchDenseArgs),
    /// Routed INT4 experts: on a GPU one layer of a profile from grouping to combine, on the CPU eight experts of Kimi K2.6.
    Moe(BenchMoeArgs),
    /// Tree-verify attention of a profile, on a GPU.
    Attn(BenchAttnArgs),
    /// Rounds of one rank at full shape with random weights, on a GPU: verify pass, commit and draft, whole and by phase.
    Step(BenchStepArgs),
}

/// Where results go.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutArgs {
    /// Write the result file: command, commit, machine, date, floors and every sample. Of a GPU's measurement a picture is
    /// written beside it, as FILE.svg.
    #[arg(long, env = "KD_OUT", value_name = "FILE.json", value_parser = result_file)]
    pub(crate) out: Option<PathBuf>,
}

/// A name whose picture beside it is another file.
fn result_file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension().is_some_and(|extension| extension == "svg") {
        true => Err("a result file is JSON, its picture is written beside it; name it FILE.json".to_owned()),
        false => Ok(path),
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchGenerateArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) prompts: BenchPromptArgs,
    /// Numbers of streams.
    #[arg(long, env = "KD_STREAMS", value_name = "N,…", value_delimiter = ',', default_value = "1,4,16")]
    pub(crate) streams: Vec<NonZeroUsize>,
    /// Temperatures.
    #[arg(long, env = "KD_TEMPERATURE", value_name = "T,…", value_delimiter = ',', default_value = "0,1")]
    pub(crate) temperature: Vec<f64>,
    /// What competes: node budgets (0 is plain decoding), `chain`, `auto`, and `cold`: auto that knows nothing at the
    /// beginning of every run.
    #[arg(
        long,
        env = "KD_BUDGETS",
        value_name = "B,…",
        value_delimiter = ',',
        default_value = "0,chain,8,16,32,auto,cold",
        value_parser = mode
    )]
    pub(crate) budgets: Vec<Mode>,
    /// Tokens of each answer.
    #[arg(long, env = "KD_MAX_TOKENS", value_name = "N", default_value = "64")]
    pub(crate) max_tokens: NonZeroUsize,
    /// Repetitions; in each, everything that competes runs once, in turns. A fixed budget whose first run was 30 % slower
    /// than the fastest is not run again.
    #[arg(long, env = "KD_REPEAT", value_name = "N", default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
    /// Write the result file, after each prompt. A run of the same command and commit that was cut short goes on where its
    /// file ends.
    #[arg(long, env = "KD_OUT", value_name = "FILE.json")]
    pub(crate) out: Option<PathBuf>,
}

/// Prompts of a measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchPromptArgs {
    /// One JSON object a line: `prompt` or `prompt_ids` [default: the eight prompts of the demo pair].
    #[arg(long, env = "KD_PROMPTS", value_name = "FILE.jsonl")]
    pub(crate) prompts: Option<PathBuf>,
}

/// What competes in `kd bench generate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Mode {
    /// So many nodes a stream.
    Nodes(usize),
    /// The best token of each draft row.
    Chain,
    /// The automatic budget, as it is in a process that has run for a while.
    Auto,
    /// The automatic budget in a new process.
    Cold,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nodes(0) => f.pad("plain"),
            Self::Nodes(nodes) => f.pad(&format!("tree {nodes}")),
            Self::Chain => f.pad("chain"),
            Self::Auto => f.pad("auto"),
            Self::Cold => f.pad("cold"),
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> String {
        mode.to_string()
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("tree ") {
            None if text == "plain" => Ok(Self::Nodes(0)),
            rest => mode(rest.unwrap_or(&text)),
        }
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "chain" => Ok(Mode::Chain),
        "cold" => Ok(Mode::Cold),
        _ => match super::budget(text).map_err(|problem| format!("{problem} (or chain, cold)"))? {
            super::Budget::Auto => Ok(Mode::Auto),
            super::Budget::Nodes(nodes) => Ok(Mode::Nodes(nodes)),
        },
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) prompts: BenchPromptArgs,
    /// Numbers of streams.
    #[arg(long, env = "KD_STREAMS", value_name = "N,…", value_delimiter = ',', default_value = "1,4,16")]
    pub(crate) streams: Vec<NonZeroUsize>,
    /// Contexts at which passes are timed, in tokens; longer ones than the model has are left out.
    #[arg(long, env = "KD_CONTEXTS", value_name = "N,…", value_delimiter = ',', default_value = "128,1024")]
    pub(crate) contexts: Vec<NonZeroUsize>,
    /// Largest pass in rows.
    #[arg(long, env = "KD_MAX_ROWS", value_name = "M", default_value = "256")]
    pub(crate) max_rows: NonZeroUsize,
    /// Write the cost curves as an SVG picture.
    #[arg(long, env = "KD_PLOT", value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write what was measured for `--calibration` of generate and chat, whose automatic budget then starts from it.
    #[arg(long, env = "KD_CALIBRATE", value_name = "FILE.json")]
    pub(crate) calibrate: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}
