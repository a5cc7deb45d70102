//! Flags of the measurements of single operations: one grammar on the CPU and on a GPU.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use kd_engine::MAX_NODES;
use kd_moe::bench::RoutingKind;
use kd_moe::gpu::{Arithmetic, MOST_ROWS};

use super::OutArgs;
use crate::UsageError;
use crate::args::{CacheArgs, Device, device};

/// Rows on the CPU unless others are asked for.
const CPU_ROWS: [usize; 4] = [1, 8, 33, 128];
/// Seconds of each operation on the CPU unless others are asked for.
const CPU_SECONDS: f64 = 2.0;
/// The longest context of a measurement: that of Kimi K2.6.
const MOST_CONTEXT: usize = 1 << 18;
/// The most streams of a measurement.
const MOST_STREAMS: usize = 1024;

/// What the measurement of an operation on the CPU takes.
#[derive(Debug, Clone)]
pub(crate) struct BenchOperationArgs {
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) rows: Vec<NonZeroUsize>,
    pub(crate) seconds: f64,
    pub(crate) out: OutArgs,
}

/// What every measurement of an operation takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct OperationArgs {
    /// Where to run; auto takes the first GPU if it and its kernels can be used, else the CPU.
    #[arg(long, env = "KD_DEVICE", value_name = "auto|cpu|cuda[:N]", value_parser = device, default_value = "auto")]
    pub(crate) device: Device,
    /// On a GPU: the model shape [default: k26-tp8, for moe k26-tp1].
    #[arg(long, env = "KD_PROFILE", value_name = "NAME")]
    pub(crate) profile: Option<String>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}

/// What one takes on the CPU besides.
#[derive(Debug, Clone, Args)]
pub(crate) struct CpuArgs {
    /// On the CPU: worker threads [default: one for each CPU].
    #[arg(long, env = "KD_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// On the CPU: seconds spent on each operation and number of rows [default: 2].
    #[arg(long, env = "KD_SECONDS", value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchDenseArgs {
    #[command(flatten)]
    pub(crate) on: OperationArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    /// Numbers of rows [default: 1,8,33,128 on the CPU, 1,8,16,33,64,132,264,528 on a GPU].
    #[arg(long, visible_alias = "rows", env = "KD_M", value_name = "M,…", value_delimiter = ',', value_parser = rows)]
    pub(crate) m: Option<Vec<NonZeroUsize>>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchMoeArgs {
    #[command(flatten)]
    pub(crate) on: OperationArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    /// Numbers of rows [default: 1,8,33,128 on the CPU, 1,2,4,8,16,33,64,128,264,330,512,1024,2048 on a GPU].
    #[arg(long, visible_alias = "rows", env = "KD_M", value_name = "M,…", value_delimiter = ',', value_parser = rows)]
    pub(crate) m: Option<Vec<NonZeroUsize>>,
    /// On a GPU: take so many experts of the layer, which fit beside a running service [default: all].
    #[arg(long, env = "KD_EXPERTS", value_name = "N")]
    pub(crate) experts: Option<NonZeroUsize>,
    /// On a GPU: how rows choose experts [default: uniform].
    #[arg(long, env = "KD_ROUTING", value_enum)]
    pub(crate) routing: Option<RoutingName>,
    /// On a GPU: how products sum [default: both, the faster for each number of rows].
    #[arg(long, env = "KD_ARITHMETIC", value_enum)]
    pub(crate) arithmetic: Option<ArithmeticName>,
    /// On a GPU: times of other implementations to compare with, as {"name": {"rows": microseconds}}.
    #[arg(long, env = "KD_PEER_JSON", value_name = "FILE.json")]
    pub(crate) peer_json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchAttnArgs {
    #[command(flatten)]
    pub(crate) on: OperationArgs,
    /// Numbers of streams.
    #[arg(long, env = "KD_STREAMS", value_name = "N,…", value_delimiter = ',', default_value = "1,8,16", value_parser = streams)]
    pub(crate) streams: Vec<usize>,
    /// Rows of each stream's tree, its root included.
    #[arg(long, env = "KD_NODES", value_name = "N,…", value_delimiter = ',', default_value = "1,9,33,65,129", value_parser = nodes)]
    pub(crate) nodes: Vec<usize>,
    /// Committed tokens of each stream.
    #[arg(
        long,
        env = "KD_CONTEXT",
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "0,1024,8192,32768,131072",
        value_parser = context
    )]
    pub(crate) context: Vec<usize>,
    /// This variant of the kernel [default: what the launcher takes].
    #[arg(long, env = "KD_VARIANT", value_name = "NAME")]
    pub(crate) variant: Option<String>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Passes follow each other on one context, which lies in the L2 if it fits, instead of one that comes from memory.
    #[arg(long, env = "KD_WARM", value_parser = BoolishValueParser::new())]
    pub(crate) warm: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchStepArgs {
    #[command(flatten)]
    pub(crate) on: OperationArgs,
    /// Layers of the target, the first one dense.
    #[arg(long, env = "KD_LAYERS", value_name = "N", default_value = "61", value_parser = layers)]
    pub(crate) layers: usize,
    /// Numbers of streams.
    #[arg(long, env = "KD_STREAMS", value_name = "N,…", value_delimiter = ',', default_value = "1,4,8,16", value_parser = streams)]
    pub(crate) streams: Vec<usize>,
    /// Rows of each stream's tree, its root included.
    #[arg(long, env = "KD_NODES", value_name = "N,…", value_delimiter = ',', default_value = "1,9,33", value_parser = nodes)]
    pub(crate) nodes: Vec<usize>,
    /// Committed tokens of each stream.
    #[arg(long, env = "KD_CONTEXT", value_name = "N,…", value_delimiter = ',', default_value = "1024,8192", value_parser = context)]
    pub(crate) context: Vec<usize>,
    /// Tokens of a prompt that is read in chunks, for the time to the first token; 0 leaves it out.
    #[arg(long, env = "KD_PROMPT_TOKENS", value_name = "N", default_value = "8192", value_parser = context)]
    pub(crate) prompt_tokens: usize,
    /// Rows of those chunks.
    #[arg(long, env = "KD_CHUNK", value_name = "N,…", value_delimiter = ',', default_value = "256,1024,4096", value_parser = chunk)]
    pub(crate) chunk: Vec<usize>,
    /// Also read it in the passes of rounds, as `kd generate --deterministic` does.
    #[arg(long, env = "KD_DETERMINISTIC", value_parser = BoolishValueParser::new())]
    pub(crate) deterministic: bool,
    /// How much of their embedding all tokens share, from 0 to 1: rows that resemble each other choose the same experts.
    #[arg(long, env = "KD_CORRELATION", value_name = "C", default_value_t = 0.0, value_parser = share)]
    pub(crate) correlation: f32,
    /// Rounds of host and device together, for the gap between passes.
    #[arg(long, env = "KD_ROUNDS", value_name = "N", default_value = "500")]
    pub(crate) rounds: NonZeroUsize,
    /// Most seconds of those rounds in each cell.
    #[arg(long, env = "KD_SECONDS", value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    pub(crate) seconds: f64,
}

/// Names of [`RoutingKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutingName {
    /// Every expert as likely as any other.
    Uniform,
    /// A few experts are busy, most seldom.
    Skewed,
    /// A row keeps about half of the experts of the row before it.
    Correlated,
    /// Every second row goes to the same experts, the others to any.
    Crowded,
}

/// Names of [`Arithmetic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArithmeticName {
    /// By groups of 32, over segments of K: what drafts are verified with.
    Grouped,
    /// With scales folded into the weights, straight through K: what prompts are read with.
    Folded,
}

impl From<ArithmeticName> for Arithmetic {
    fn from(name: ArithmeticName) -> Self {
        match name {
            ArithmeticName::Grouped => Self::Grouped,
            ArithmeticName::Folded => Self::Folded,
        }
    }
}

impl From<RoutingName> for RoutingKind {
    fn from(name: RoutingName) -> Self {
        match name {
            RoutingName::Uniform => Self::Uniform,
            RoutingName::Skewed => Self::Skewed,
            RoutingName::Correlated => Self::Correlated,
            RoutingName::Crowded => Self::Crowded,
        }
    }
}

impl CpuArgs {
    /// What the CPU is measured with; `for_a_gpu` are the other flags and whether they were given.
    pub(crate) fn resolve(
        &self,
        on: &OperationArgs,
        m: Option<&[NonZeroUsize]>,
        for_a_gpu: &[(&str, bool)],
    ) -> Result<BenchOperationArgs, UsageError> {
        let profile = ("--profile", on.profile.is_some());
        if let Some((flag, _)) = for_a_gpu.iter().chain([&profile]).find(|(_, given)| *given) {
            return Err(UsageError(format!("{flag} is for a GPU, and this measures the CPU (--device cpu)")));
        }
        let rows = m.map_or_else(|| CPU_ROWS.into_iter().filter_map(NonZeroUsize::new).collect(), Vec::from);
        let (threads, seconds) = (self.threads, self.seconds.unwrap_or(CPU_SECONDS));
        Ok(BenchOperationArgs { threads, rows, seconds, out: on.out.clone() })
    }

    /// Refuses what only the CPU is measured with. Threads may be set for all of a shell.
    pub(crate) fn none(&self) -> Result<(), UsageError> {
        match self.seconds {
            Some(_) => {
                let message = "--seconds is for the CPU, and this measures a GPU (--device cuda)";
                Err(UsageError(message.to_owned()))
            }
            None => Ok(()),
        }
    }
}

fn rows(text: &str) -> Result<NonZeroUsize, String> {
    let rows = within(text, 1, MOST_ROWS, "the rows that a pass can have")?;
    NonZeroUsize::new(rows).ok_or_else(|| "0 is no number of rows".to_owned())
}

fn streams(text: &str) -> Result<usize, String> {
    within(text, 1, MOST_STREAMS, "the streams of a measurement")
}

fn nodes(text: &str) -> Result<usize, String> {
    within(text, 1, 1 + MAX_NODES, "the rows of a tree with its root")
}

fn context(text: &str) -> Result<usize, String> {
    within(text, 0, MOST_CONTEXT, "the tokens of a context")
}

fn chunk(text: &str) -> Result<usize, String> {
    within(text, 1, MOST_ROWS, "the rows of a prompt chunk")
}

fn layers(text: &str) -> Result<usize, String> {
    within(text, 1, 256, "the layers of a target")
}

fn within(text: &str, least: usize, most: usize, what: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected {least} to {most}, {what}, found {text:?}"))
}

fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("expected a share, 0 to 1, found {text:?}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("expected a number of seconds, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_their_range_are_refused_with_it() {
        assert_eq!((rows("4096").map(NonZeroUsize::get), context("0")), (Ok(4096), Ok(0)));
        for (refused, contains) in [
            (rows("0").map(drop), "1 to 4096"),
            (rows("4097").map(drop), "1 to 4096"),
            (nodes("130").map(drop), "1 to 129"),
            (streams("-1").map(drop), "1 to 1024"),
            (context("99999999999999999999").map(drop), "0 to 262144"),
            (seconds("inf").map(drop), "inf"),
            (seconds("-1").map(drop), "-1"),
            (share("1.5").map(drop), "0 to 1"),
        ] {
            let message = refused.expect_err(contains);
            assert!(message.contains(contains), "{message}");
        }
    }
}
