//! What a template gets to see.

use std::borrow::Cow;
use std::path::Path;

use minijinja::Value as Jinja;
use serde_json::{Map, Value, json};

use super::JinjaTemplate;
use super::convert::{each_text, from_json};
use crate::prompt::{
    Arguments, Content, Conversation, Media, Message, Part, PromptError, RenderOptions, pyjson, tools_ts,
};

/// The variables of one rendering; `texts` holds everything that came from the conversation.
pub(super) struct Variables {
    texts: Map<String, Value>,
    options: RenderOptions,
}

/// Gathers the variables for `template`.
///
/// # Errors
/// [`PromptError::Media`] for pictures and films that are to be refused.
pub(super) fn collect(
    conversation: &Conversation,
    options: &RenderOptions,
    template: &JinjaTemplate,
) -> Result<Variables, PromptError> {
    let mut texts = Map::new();
    let messages = conversation.messages.iter().enumerate();
    let messages = messages.map(|(i, m)| message(m, i, options.media)).collect::<Result<Vec<_>, _>>()?;
    texts.insert("messages".into(), Value::Array(messages));
    let mut tools = conversation.tools.clone();
    if template.reads("tools_ts_str") {
        // Kimi's tokenizer code sorts the keys before it hands tools to its template.
        tools = tools.iter().map(pyjson::sorted).collect();
        if let Ok(Some(text)) = tools_ts::typescript(&tools) {
            texts.insert("tools_ts_str".into(), Value::String(text));
        }
    }
    texts.insert("tools".into(), if tools.is_empty() { Value::Null } else { Value::Array(tools) });
    Ok(Variables { texts, options: *options })
}

impl Variables {
    /// Calls `f` with every string of the conversation, keys included.
    pub(super) fn each_text(&self, f: &mut impl FnMut(&str)) {
        self.texts.values().for_each(|value| each_text(value, f));
    }

    /// Bytes of all strings.
    pub(super) fn bytes(&self) -> u64 {
        let mut bytes = 0u64;
        self.each_text(&mut |text| bytes = bytes.saturating_add(text.len() as u64));
        bytes
    }

    /// The context of a rendering, every string of the conversation passed through `map`.
    pub(super) fn context<'t>(
        &'t self,
        template: &JinjaTemplate,
        map: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Jinja {
        let o = &self.options;
        let texts = self.texts.iter().map(|(key, value)| (key.clone(), from_json(value, &map)));
        let flags = [
            ("thinking", o.thinking),
            ("enable_thinking", o.thinking),
            ("preserve_thinking", o.preserve_thinking),
            ("add_generation_prompt", o.add_generation_prompt),
        ];
        let flags = flags.into_iter().map(|(key, value)| (key.to_owned(), Jinja::from(value)));
        let tokens =
            template.special_tokens.iter().map(|(key, value)| (key.clone(), Jinja::from(value.as_str())));
        Jinja::from_pairs(tokens.chain(flags).chain(texts))
    }
}

/// A message as templates know it: absent fields are absent, not null, but `content` is always there.
fn message(m: &Message, index: usize, media: Media) -> Result<Value, PromptError> {
    let mut out = Map::new();
    out.insert("role".into(), m.role.as_str().into());
    let content = match &m.content {
        None => Value::Null,
        Some(Content::Text(text)) => text.as_str().into(),
        Some(Content::Parts(parts)) => {
            let at = |i| format!("messages[{index}].content[{i}]");
            parts.iter().enumerate().map(|(i, p)| part(p, || at(i), media)).collect::<Result<_, _>>()?
        }
    };
    out.insert("content".into(), content);
    for (key, value) in [
        ("name", &m.name),
        ("reasoning", &m.reasoning),
        ("reasoning_content", &m.reasoning_content),
        ("tool_call_id", &m.tool_call_id),
    ] {
        if let Some(value) = value {
            out.insert(key.into(), value.as_str().into());
        }
    }
    if !m.tool_calls.is_empty() {
        let call = |call: &crate::prompt::ToolCall| {
            let arguments = match &call.arguments {
                Arguments::Text(text) => text.as_str().into(),
                Arguments::Json(value) => value.clone(),
            };
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        };
        out.insert("tool_calls".into(), m.tool_calls.iter().map(call).collect());
    }
    Ok(Value::Object(out))
}

fn part(part: &Part, at: impl Fn() -> String, media: Media) -> Result<Value, PromptError> {
    let kind = match part {
        Part::Text(text) => return Ok(json!({"type": "text", "text": text})),
        Part::Image => "image",
        Part::Video => "video",
    };
    match media {
        Media::Refuse => Err(PromptError::Media { field: at(), kind }),
        Media::Placeholder => Ok(json!({ "type": kind })),
    }
}

/// `bos_token`, `eos_token`, … from `tokenizer_config.json`; none if there is no such file.
pub(super) fn special_tokens(model_dir: &Path) -> Result<Vec<(String, String)>, PromptError> {
    let path = model_dir.join("tokenizer_config.json");
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(reason) => return Err(PromptError::Read { path, reason }),
    };
    let config: Value = serde_json::from_slice(&text).map_err(|e| PromptError::Template {
        path,
        line: e.line(),
        message: format!("not valid JSON: {e}"),
    })?;
    let token = |key: &str| {
        let value = config.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        Some((key.to_owned(), text.to_owned()))
    };
    Ok(["bos_token", "eos_token", "pad_token", "unk_token"].into_iter().filter_map(token).collect())
}
