//! From flags and prompt files to requests.

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use kd_engine::{Request, SamplingParams, Speculation};
use kd_text::prompt::{Conversation, Message, RenderOptions, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::UsageError;
use crate::args::{self, Bos, Budget, GenerateArgs, PromptArgs, SamplingArgs};
use crate::conversation;
use crate::generate::SAMPLE_PROMPT;
use crate::input;
use crate::models::{Loaded, eos_ids};

/// Tokens of an answer unless asked for otherwise.
const DEFAULT_MAX_TOKENS: usize = 128;

/// Most copies of a prompt.
const MAX_STREAMS: u32 = 65_536;

/// One line of a prompts file: a prompt in one of three forms, and sampling fields in place of the flags.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    messages: Option<Value>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
    max_tokens: Option<NonZeroUsize>,
    min_tokens: Option<usize>,
    ignore_eos: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<u32>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// As in OpenAI's API: an object from ids to biases.
    logit_bias: Option<Map<String, Value>>,
    stop: Option<Stop>,
    stop_ids: Option<Vec<u32>>,
    seed: Option<u64>,
    budget: Option<LineBudget>,
}

/// One stop string or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// As `--budget`: a number, or `"auto"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineBudget {
    Nodes(u64),
    Word(String),
}

impl LineBudget {
    fn parse(&self) -> anyhow::Result<Budget> {
        let text = match self {
            Self::Nodes(nodes) => nodes.to_string(),
            Self::Word(word) => word.clone(),
        };
        args::budget(&text).map_err(|problem| anyhow!("budget: {problem}"))
    }
}

/// All requests of a `kd generate`.
pub(crate) fn prepare(args: &GenerateArgs, loaded: &Loaded) -> anyhow::Result<Vec<Request>> {
    let Some(path) = &args.prompts else {
        let ids = prompt_ids(&args.prompt, loaded)?;
        let request = request(&args.sampling, loaded, ids)?;
        let streams =
            u32::try_from(args.streams.get()).ok().filter(|&n| n <= MAX_STREAMS).ok_or_else(|| {
                UsageError(format!("--streams is {}, but must be at most {MAX_STREAMS}", args.streams))
            })?;
        return Ok((0..streams).map(|choice| Request { choice, ..request.clone() }).collect());
    };
    let text = input::text(path)?;
    // One seed for all lines that name none, so that the one reported reproduces them all.
    let seed = args.sampling.seed.or_else(|| Some(rand::random()));
    let args = &GenerateArgs { sampling: SamplingArgs { seed, ..args.sampling.clone() }, ..args.clone() };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let requests: Vec<Request> = lines
        .map(|(i, line)| from_line(args, loaded, line).with_context(|| place(path, i + 1)))
        .collect::<anyhow::Result<_>>()?;
    if requests.is_empty() {
        bail!("{} holds no prompts; write one JSON object a line", path.display());
    }
    Ok(requests)
}

fn place(path: &Path, line: usize) -> String {
    format!("{} line {line}", path.display())
}

fn from_line(args: &GenerateArgs, loaded: &Loaded, line: &str) -> anyhow::Result<Request> {
    if !line.trim_start().starts_with('{') {
        bail!("expected a JSON object, as {{\"prompt\": \"…\"}}");
    }
    let line: Line = serde_json::from_str(line)?;
    if line.messages.is_none() && (line.tools.is_some() || line.chat_template_kwargs.is_some()) {
        bail!("tools and chat_template_kwargs need messages");
    }
    let ids = match (line.prompt, line.prompt_ids, line.messages) {
        (Some(text), None, None) => wrapped_ids(text, &args.prompt, loaded)?,
        (None, Some(ids), None) => ids,
        (None, None, Some(messages)) => {
            let fields = [("tools", line.tools), ("chat_template_kwargs", line.chat_template_kwargs)];
            let mut body = Map::from_iter([("messages".to_owned(), messages)]);
            body.extend(fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
            let (conversation, options) = Conversation::from_request(&body)?;
            loaded.renderer(&args.prompt.template)?.ids(&conversation, options)?
        }
        _ => bail!("give one of prompt, prompt_ids and messages"),
    };
    let flags = args.sampling.clone();
    let sampling = SamplingArgs {
        max_tokens: line.max_tokens.or(flags.max_tokens),
        min_tokens: line.min_tokens.unwrap_or(flags.min_tokens),
        ignore_eos: line.ignore_eos.unwrap_or(flags.ignore_eos),
        temperature: line.temperature.unwrap_or(flags.temperature),
        top_k: line.top_k.unwrap_or(flags.top_k),
        top_p: line.top_p.unwrap_or(flags.top_p),
        min_p: line.min_p.unwrap_or(flags.min_p),
        repetition_penalty: line.repetition_penalty.unwrap_or(flags.repetition_penalty),
        presence_penalty: line.presence_penalty.unwrap_or(flags.presence_penalty),
        frequency_penalty: line.frequency_penalty.unwrap_or(flags.frequency_penalty),
        logit_bias: line.logit_bias.map_or(Ok(flags.logit_bias), biases)?,
        stop: line.stop.map_or(flags.stop, |stop| match stop {
            Stop::One(text) => vec![text],
            Stop::Several(texts) => texts,
        }),
        stop_ids: line.stop_ids.unwrap_or(flags.stop_ids),
        seed: line.seed.or(flags.seed),
        budget: line.budget.map(|budget| budget.parse()).transpose()?.or(flags.budget),
        calibration: flags.calibration,
    };
    request(&sampling, loaded, ids)
}

fn biases(object: Map<String, Value>) -> anyhow::Result<Vec<(u32, f64)>> {
    let entry = |(id, bias): (String, Value)| {
        let bias =
            bias.as_f64().with_context(|| format!("logit_bias of {id} is {bias}, which is no number"))?;
        let id = id.parse().with_context(|| format!("logit_bias names {id:?}, which is no token id"))?;
        Ok((id, bias))
    };
    object.into_iter().map(entry).collect()
}

/// The prompt of the flags: ids, a conversation, text, stdin, or the sample prompt.
pub(crate) fn prompt_ids(args: &PromptArgs, loaded: &Loaded) -> anyhow::Result<Vec<u32>> {
    // Not a conflict of flags: the environment may say that it is off.
    if args.chat && (args.prompt_ids.is_some() || args.messages.is_some()) {
        let message = "--chat wraps a text; it cannot be used with --prompt-ids or --messages";
        return Err(UsageError(message.to_owned()).into());
    }
    if let Some(ids) = &args.prompt_ids {
        return Ok(ids.clone());
    }
    if let Some(path) = &args.messages {
        let (conversation, options) = conversation::read(path)?;
        return loaded.renderer(&args.template)?.ids(&conversation, options);
    }
    let text = match args.prompt.as_deref() {
        Some("-") => {
            let mut bytes = Vec::new();
            let limit = kd_text::tokenizer::MAX_INPUT_BYTES as u64;
            let mut stdin = std::io::stdin().lock().take(limit + 1);
            stdin.read_to_end(&mut bytes).context("cannot read the prompt from stdin")?;
            String::from_utf8(bytes).context("the prompt on stdin is not UTF-8")?
        }
        Some(text) => text.to_owned(),
        None => SAMPLE_PROMPT.to_owned(),
    };
    wrapped_ids(text, args, loaded)
}

/// The ids of a text: raw, or as one user turn.
fn wrapped_ids(text: String, args: &PromptArgs, loaded: &Loaded) -> anyhow::Result<Vec<u32>> {
    if !args.chat {
        return text_ids(&text, args, loaded);
    }
    let messages = vec![Message::new(Role::User, text)];
    let conversation = Conversation { messages, ..Conversation::default() };
    loaded.renderer(&args.template)?.ids(&conversation, RenderOptions::default())
}

fn text_ids(text: &str, args: &PromptArgs, loaded: &Loaded) -> anyhow::Result<Vec<u32>> {
    let renderer = loaded.renderer(&args.template)?;
    let mut ids = Vec::new();
    match (args.bos, renderer.tokenizer().bos_id()) {
        (Bos::Auto | Bos::On, Some(id)) => ids.push(id),
        (Bos::On, None) => bail!("--bos on, but the tokenizer names no BOS"),
        (Bos::Auto | Bos::Off, _) => {}
    }
    ids.extend(renderer.raw_ids(text)?);
    Ok(ids)
}

/// A request of the given prompt with everything else from the flags.
pub(crate) fn request(args: &SamplingArgs, loaded: &Loaded, prompt: Vec<u32>) -> anyhow::Result<Request> {
    let mut stop_ids = if args.ignore_eos { Vec::new() } else { eos_ids(&loaded.models) };
    stop_ids.extend(&args.stop_ids);
    let params = SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.clone(),
        min_tokens: args.min_tokens,
        stop_ids,
        seed: args.seed.unwrap_or_else(rand::random),
        ..SamplingParams::default()
    };
    let config = loaded.models.target.config();
    params.validate(config.vocab_size).map_err(|e| UsageError(e.to_string()))?;
    if args.stop.iter().any(String::is_empty) {
        return Err(UsageError("--stop is empty; give the text that ends the generation".to_owned()).into());
    }
    let speculation = match (args.budget, &loaded.models.drafter) {
        (Some(Budget::Nodes(nodes)), None) if nodes > 0 => {
            let message =
                format!("the budget is {nodes}, but there is no drafter; name one with --drafter DIR");
            return Err(UsageError(message).into());
        }
        (Some(Budget::Nodes(nodes)), _) => Speculation::Tree { nodes },
        (None, None) => Speculation::Plain,
        (Some(Budget::Auto) | None, _) => Speculation::Auto,
    };
    let max_tokens = args.max_tokens.map_or(DEFAULT_MAX_TOKENS, NonZeroUsize::get);
    Ok(Request { params, speculation, stop: args.stop.clone(), ..Request::new(prompt, max_tokens) })
}
