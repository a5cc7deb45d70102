//! Flags and verbs. Every flag has an environment twin `KD_<FLAG>`, but for what `kd doctor --kernels` takes.

mod bench;
mod golden;
mod place;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kd_engine::MAX_NODES;

pub(crate) use bench::{
    Bench, BenchAttnArgs, BenchDenseArgs, BenchGenerateArgs, BenchMoeArgs, BenchOperationArgs,
    BenchPromptArgs, BenchStepArgs, Mode, OperationArgs, PlanArgs,
};

pub(crate) use golden::{Golden, GoldenArgs, GoldenText};
pub(crate) use place::{CacheArgs, ChunkArgs, CommonArgs, Device, RankArgs, cache_name, device};

/// Runs Kimi K2.6 with DDTree speculative decoding.
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
    /// Chat with the model.
    Chat(Box<ChatArgs>),
    /// Measure, against what the machine allows.
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Measure what passes of this machine cost, and which budgets are worth it.
    Plan(Box<PlanArgs>),
    /// Draw one round's draft tree and what the target accepted of it.
    Tree(Box<TreeArgs>),
    /// Look at a checkpoint: constants, tensors, memory per rank, and what would be refused.
    Inspect(InspectArgs),
    /// Look at this machine: CPU, memory, disk, driver, GPUs, kernels.
    Doctor(DoctorArgs),
    /// Write the engine's numbers for golden inputs.
    Golden(GoldenArgs),
}

/// One prompt.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromptArgs {
    /// The prompt as plain text, or `-` to read it from stdin.
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
    /// A conversation: an array of messages, or an object with `messages`, `tools` and `chat_template_kwargs`.
    #[arg(long, env = "KD_MESSAGES", value_name = "FILE.json", conflicts_with_all = ["prompt", "prompt_ids"])]
    pub(crate) messages: Option<PathBuf>,
    /// Wrap the prompt as one user turn of a chat.
    #[arg(long, env = "KD_CHAT", value_parser = BoolishValueParser::new())]
    pub(crate) chat: bool,
    /// Whether a raw prompt begins with the tokenizer's BOS; auto: if it has one.
    #[arg(long, env = "KD_BOS", value_enum, default_value_t = Bos::Auto)]
    pub(crate) bos: Bos,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
}

/// How conversations become prompts.
#[derive(Debug, Clone, Args)]
pub(crate) struct TemplateArgs {
    /// `native` for K2.6's own renderer, or a Jinja file [default: what the checkpoint asks for].
    #[arg(long, env = "KD_CHAT_TEMPLATE", value_name = "native|FILE")]
    pub(crate) chat_template: Option<String>,
    /// What control strings such as `<|im_end|>` in prompts and messages become.
    #[arg(long, env = "KD_CONTROL_STRINGS", value_enum, default_value_t = ControlStrings::Text)]
    pub(crate) control_strings: ControlStrings,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ControlStrings {
    /// Ordinary characters: no text can forge a turn.
    Text,
    /// Control ids, as the published tokenizer has it.
    Ids,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate [default: 128; in a chat, what the context has left].
    #[arg(long, env = "KD_MAX_TOKENS", value_name = "N")]
    pub(crate) max_tokens: Option<NonZeroUsize>,
    /// Tokens to generate before one may end the generation.
    #[arg(long, env = "KD_MIN_TOKENS", value_name = "N", default_value_t = 0)]
    pub(crate) min_tokens: usize,
    /// Go on after end-of-sequence tokens. Ids of --stop-ids still end the generation.
    #[arg(long, env = "KD_IGNORE_EOS", value_parser = BoolishValueParser::new())]
    pub(crate) ignore_eos: bool,
    /// Divides the logits; 0 takes the largest one.
    #[arg(
        long,
        env = "KD_TEMPERATURE",
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) temperature: f64,
    /// Keep the K most probable tokens; 0 = off.
    #[arg(long, env = "KD_TOP_K", value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Keep the most probable tokens that together reach this probability; 1 = off.
    #[arg(long, env = "KD_TOP_P", value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f64,
    /// Keep tokens at least this fraction as probable as the most probable one; 0 = off.
    #[arg(long, env = "KD_MIN_P", value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f64,
    /// Makes tokens of prompt and answer less likely; 1 = off.
    #[arg(
        long,
        env = "KD_REPETITION_PENALTY",
        value_name = "R",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(crate) repetition_penalty: f64,
    /// Subtracted from the logits of tokens in the answer; 0 = off.
    #[arg(
        long,
        env = "KD_PRESENCE_PENALTY",
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) presence_penalty: f64,
    /// Subtracted from the logits of tokens in the answer as often as they occur; 0 = off.
    #[arg(
        long,
        env = "KD_FREQUENCY_PENALTY",
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) frequency_penalty: f64,
    /// Added to the logits of single tokens.
    #[arg(long, env = "KD_LOGIT_BIAS", value_name = "ID=B,…", value_delimiter = ',', value_parser = logit_bias)]
    pub(crate) logit_bias: Vec<(u32, f64)>,
    /// Text that ends the generation and is left out; may be given several times.
    #[arg(long, env = "KD_STOP", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// More ids that end the generation.
    #[arg(long, env = "KD_STOP_IDS", value_name = "ID,…", value_delimiter = ',')]
    pub(crate) stop_ids: Vec<u32>,
    /// Key of the random draws [default: random, and reported].
    #[arg(long, env = "KD_SEED", value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Draft nodes a round and stream, 0 to 128, or `auto`; 0 is plain decoding. With auto, what each round is worth
    /// is estimated from the rounds before it, over all streams together [default: auto, or 0 without a drafter; 16 for a drawing].
    #[arg(long, env = "KD_BUDGET", value_name = "N|auto", value_parser = budget)]
    pub(crate) budget: Option<Budget>,
    /// Costs that `kd plan --calibrate` measured with these models and threads, for the automatic budget to start from.
    #[arg(long, env = "KD_CALIBRATION", value_name = "FILE.json")]
    pub(crate) calibration: Option<PathBuf>,
}

/// Draft nodes a round and stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    /// What is fastest.
    Auto,
    /// So many; 0 is plain decoding.
    Nodes(usize),
}

/// `auto`, or a number of nodes that a tree can hold.
pub(crate) fn budget(text: &str) -> Result<Budget, String> {
    if text == "auto" {
        return Ok(Budget::Auto);
    }
    let nodes: usize =
        text.parse().map_err(|_| format!("expected auto or 0 to {MAX_NODES}, found {text:?}"))?;
    if nodes > MAX_NODES {
        return Err(format!("{nodes} is not in 0..={MAX_NODES}, the nodes that a tree can hold"));
    }
    Ok(Budget::Nodes(nodes))
}

fn logit_bias(text: &str) -> Result<(u32, f64), String> {
    let (id, bias) = text.split_once('=').ok_or("expected ID=BIAS, as in 42=-1.5")?;
    let id = id.trim().parse().map_err(|e| format!("{id:?} is no token id: {e}"))?;
    let bias = bias.trim().parse().map_err(|e| format!("{bias:?} is no number: {e}"))?;
    Ok((id, bias))
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// One JSON object a line and stream: `prompt`, `prompt_ids` or `messages` (with `tools` and `chat_template_kwargs`),
    /// plus any sampling field, named as its flag, in the flag's place.
    #[arg(
        long,
        env = "KD_PROMPTS",
        value_name = "FILE.jsonl",
        conflicts_with_all = ["prompt", "prompt_ids", "messages", "streams"]
    )]
    pub(crate) prompts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Copies of the prompt, run together: choices 0 … N − 1 of one seed.
    #[arg(long, env = "KD_STREAMS", value_name = "N", default_value = "1")]
    pub(crate) streams: NonZeroUsize,
    #[command(flatten)]
    pub(crate) chunks: ChunkArgs,
    /// Also run plain decoding, and show both.
    #[arg(long, env = "KD_COMPARE", value_parser = BoolishValueParser::new())]
    pub(crate) compare: bool,
    /// Print one JSON object a stream, in input order.
    #[arg(long, env = "KD_JSON", value_parser = BoolishValueParser::new())]
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
    #[arg(long, env = "KD_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Where the conversation begins: an array of messages, or an object with `messages`, `tools` and
    /// `chat_template_kwargs`.
    #[arg(long, env = "KD_MESSAGES", value_name = "FILE.json")]
    pub(crate) messages: Option<PathBuf>,
    /// Tools that the model may call: an array in OpenAI's form. You are asked for the results of its calls.
    #[arg(long, env = "KD_TOOLS", value_name = "FILE.json")]
    pub(crate) tools: Option<PathBuf>,
    /// A system message before everything else.
    #[arg(long, env = "KD_SYSTEM", value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer without thinking first.
    #[arg(long, env = "KD_NO_THINKING", value_parser = BoolishValueParser::new())]
    pub(crate) no_thinking: bool,
    /// Keep earlier thoughts in the prompt.
    #[arg(long, env = "KD_PRESERVE_THINKING", value_parser = BoolishValueParser::new())]
    pub(crate) preserve_thinking: bool,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) chunks: ChunkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Checkpoint folder of a target or a drafter.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Ranks to compute the memory for.
    #[arg(
        long,
        visible_alias = "tensor-parallel-size",
        env = "KD_TP",
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2,4,8"
    )]
    pub(crate) tp: Vec<NonZeroUsize>,
    /// Memory of one card in GiB.
    #[arg(long, env = "KD_CARD_GB", value_name = "GB", default_value_t = 96.0)]
    pub(crate) card_gb: f64,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Print one JSON object.
    #[arg(long, env = "KD_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Model folder whose disk is measured [default: the demo pair].
    #[arg(long, env = "KD_MODEL", value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Run every kernel image for this GPU against its CPU operation, or those of the named checks (KD_KERNELS names the
    /// bundles' folder).
    #[arg(
        long,
        value_name = "CHECK,…",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all"
    )]
    pub(crate) kernels: Option<Vec<String>>,
    /// Rows of the launches that --kernels checks: by default one, a tile that is not full, and several tiles.
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_value = "1,7,33", requires = "kernels")]
    pub(crate) rows: Vec<NonZeroUsize>,
    /// Print one JSON object.
    #[arg(long, env = "KD_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}
