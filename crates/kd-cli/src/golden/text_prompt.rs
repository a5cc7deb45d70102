//! `kd golden text chat|parser`: prompts and parsed answers for golden inputs, by K2.6's own renderer and parser.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kd_text::parser::{Finish, OutputParser, ParserOptions};
use kd_text::prompt::{Conversation, Media, RenderOptions, render_native, render_text};
use serde_json::{Map, Value, json};

use super::json_file;

/// Renders every case of a `chat.inputs.json` and writes the cases with their `text`.
///
/// # Errors
/// If a file cannot be read or written, or a case is malformed; the error names the case.
pub(super) fn chat(cases: &Path, out: &Path) -> Result<()> {
    fill(cases, out, |case| {
        let request = ["messages", "tools"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), case.get(key)?.clone())));
        let (conversation, _) = Conversation::from_request(&request.collect())?;
        let defaults = RenderOptions::default();
        let options = RenderOptions {
            thinking: flag(case, "thinking", defaults.thinking)?,
            preserve_thinking: flag(case, "preserve_thinking", defaults.preserve_thinking)?,
            add_generation_prompt: flag(case, "add_generation_prompt", defaults.add_generation_prompt)?,
            // The published text has placeholders for pictures.
            media: Media::Placeholder,
            ..defaults
        };
        case.insert("text".into(), render_text(&render_native(&conversation, &options)?).into());
        Ok(())
    })
}

/// Parses every case of a `parser.inputs.json` and writes the cases with `reasoning`, `content`, `tool_calls` and
/// `finish_reason_at_eos`.
///
/// # Errors
/// As [`chat`].
pub(super) fn parser(cases: &Path, out: &Path) -> Result<()> {
    fill(cases, out, |case| {
        let Some(Value::String(raw)) = case.get("raw") else { bail!("`raw` must be a string") };
        let thinking = flag(case, "thinking", true)?;
        let mut parser = OutputParser::new(ParserOptions { thinking, ..ParserOptions::default() });
        parser.push(raw);
        let (_, output) = parser.finish(Finish::Stop);
        let call = |c| {
            let kd_text::parser::ParsedToolCall { id, name, arguments } = c;
            json!({"id": id, "name": name, "arguments": arguments})
        };
        case.insert("reasoning".into(), output.reasoning.into());
        case.insert("content".into(), output.content.into());
        case.insert("tool_calls".into(), output.tool_calls.into_iter().map(call).collect());
        case.insert("finish_reason_at_eos".into(), output.finish.as_str().into());
        Ok(())
    })
}

/// Reads an array of cases, completes each and writes the array.
fn fill(cases: &Path, out: &Path, complete: impl Fn(&mut Map<String, Value>) -> Result<()>) -> Result<()> {
    let mut list: Vec<Map<String, Value>> = json_file::read(cases)?;
    ensure!(!list.is_empty(), "{} holds no cases", cases.display());
    for (i, case) in list.iter_mut().enumerate() {
        let name =
            case.get("name").and_then(Value::as_str).map_or_else(|| format!("number {i}"), str::to_owned);
        complete(case).with_context(|| format!("{}: case {name}", cases.display()))?;
    }
    json_file::write(out, &list)
}

fn flag(case: &Map<String, Value>, key: &str, default: bool) -> Result<bool> {
    match case.get(key) {
        None => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => bail!("`{key}` must be true or false, not {other}"),
    }
}
