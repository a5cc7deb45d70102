//! Strict reading of OpenAI-style JSON: every error names its field.
//!
//! Fields that do not bear on the prompt (`refusal`, `annotations`, `cache_control`, …) are ignored in messages, since
//! clients send back what servers gave them; fields that would change the prompt and are not supported are errors.

use serde_json::{Map, Value};

use super::{Arguments, Content, Conversation, Message, Part, PromptError, RenderOptions, Role, ToolCall};

type Result<T> = std::result::Result<T, PromptError>;

const REQUEST_KEYS: &str = "messages, tools, chat_template_kwargs, thinking and add_generation_prompt";
const KWARGS_KEYS: &str = "thinking, enable_thinking, preserve_thinking and add_generation_prompt";

impl Conversation {
    /// Reads a messages file: an array of messages, or an object with `messages`, `tools`, `chat_template_kwargs`,
    /// `thinking` and `add_generation_prompt`. Options start from their defaults.
    ///
    /// # Errors
    /// Names the field that is missing, unknown, of the wrong type or contradicted by another.
    pub fn from_json(json: &[u8]) -> Result<(Self, RenderOptions)> {
        match serde_json::from_slice(json)? {
            Value::Array(messages) => {
                let messages = read_messages(&messages)?;
                Ok((Self { messages, tools: Vec::new() }, RenderOptions::default()))
            }
            Value::Object(request) => {
                let known =
                    ["messages", "tools", "chat_template_kwargs", "thinking", "add_generation_prompt"];
                match request.keys().find(|k| !known.contains(&k.as_str())) {
                    Some(key) => Err(PromptError::Unknown { field: key.clone(), known: REQUEST_KEYS }),
                    None => Self::from_request(&request),
                }
            }
            other => Err(wrong("the file", "an array of messages or an object with `messages`", &other)),
        }
    }

    /// Reads the same keys of a request body and leaves all others to the caller.
    ///
    /// The off-switch is understood in each of its spellings: `chat_template_kwargs.thinking`, `.enable_thinking` and
    /// the vendor's `thinking: {"type": "disabled"}`; `keep: "all"` there means `preserve_thinking`.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json).
    pub fn from_request(request: &Map<String, Value>) -> Result<(Self, RenderOptions)> {
        let messages = match request.get("messages") {
            Some(Value::Array(list)) => read_messages(list)?,
            Some(other) => return Err(wrong("messages", "an array", other)),
            None => return Err(missing("messages".into(), "an array of messages")),
        };
        let tools = match request.get("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => {
                if let Some((i, bad)) = list.iter().enumerate().find(|(_, t)| !t.is_object()) {
                    return Err(wrong(&format!("tools[{i}]"), "an object", bad));
                }
                list.clone()
            }
            Some(other) => return Err(wrong("tools", "an array", other)),
        };
        Ok((Self { messages, tools }, read_options(request)?))
    }
}

/// A switch that several fields can set; they must agree.
#[derive(Default)]
struct Switch(Option<(bool, String)>);

impl Switch {
    fn set(&mut self, value: Option<bool>, field: &str) -> Result<()> {
        match (value, &self.0) {
            (None, _) => Ok(()),
            (Some(new), Some((old, first))) if new != *old => {
                Err(PromptError::Conflict { first: first.clone(), second: field.to_owned() })
            }
            (Some(new), _) => {
                self.0 = Some((new, field.to_owned()));
                Ok(())
            }
        }
    }

    fn or(self, default: bool) -> bool {
        self.0.map_or(default, |(value, _)| value)
    }
}

fn read_options(request: &Map<String, Value>) -> Result<RenderOptions> {
    let (mut thinking, mut preserve, mut generate) =
        (Switch::default(), Switch::default(), Switch::default());
    generate.set(boolean(request, "", "add_generation_prompt")?, "add_generation_prompt")?;
    match request.get("chat_template_kwargs") {
        None | Some(Value::Null) => {}
        Some(Value::Object(kwargs)) => {
            for key in kwargs.keys() {
                let field = format!("chat_template_kwargs.{key}");
                let switch = match key.as_str() {
                    "thinking" | "enable_thinking" => &mut thinking,
                    "preserve_thinking" => &mut preserve,
                    "add_generation_prompt" => &mut generate,
                    _ => return Err(PromptError::Unknown { field, known: KWARGS_KEYS }),
                };
                switch.set(boolean(kwargs, "chat_template_kwargs.", key)?, &field)?;
            }
        }
        Some(other) => return Err(wrong("chat_template_kwargs", "an object", other)),
    }
    match request.get("thinking") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(on)) => thinking.set(Some(*on), "thinking")?,
        Some(Value::Object(vendor)) => {
            let kind = match string(vendor, "thinking.", "type")?.as_deref() {
                Some("enabled") => true,
                Some("disabled") => false,
                _ => {
                    let found = vendor.get("type").unwrap_or(&Value::Null);
                    return Err(wrong("thinking.type", "\"enabled\" or \"disabled\"", found));
                }
            };
            thinking.set(Some(kind), "thinking.type")?;
            let keep = match string(vendor, "thinking.", "keep")?.as_deref() {
                None => None,
                Some("all") => Some(true),
                Some(_) => return Err(wrong("thinking.keep", "\"all\" or null", &vendor["keep"])),
            };
            preserve.set(keep, "thinking.keep")?;
        }
        Some(other) => return Err(wrong("thinking", "an object with `type`", other)),
    }
    let defaults = RenderOptions::default();
    Ok(RenderOptions {
        thinking: thinking.or(defaults.thinking),
        preserve_thinking: preserve.or(defaults.preserve_thinking),
        add_generation_prompt: generate.or(defaults.add_generation_prompt),
        ..defaults
    })
}

fn read_messages(list: &[Value]) -> Result<Vec<Message>> {
    list.iter().enumerate().map(|(i, value)| read_message(value, &format!("messages[{i}]"))).collect()
}

fn read_message(value: &Value, at: &str) -> Result<Message> {
    let Value::Object(map) = value else { return Err(wrong(at, "an object", value)) };
    let dot = format!("{at}.");
    let role = match string(map, &dot, "role")? {
        None => return Err(missing(format!("{at}.role"), "a string")),
        Some(role) => match role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            "" => return Err(wrong(&format!("{at}.role"), "a non-empty string", &Value::String(role))),
            _ => Role::Other(role),
        },
    };
    refuse_unsupported(map, at)?;
    let content = match map.get("content") {
        Some(content) => read_content(content, &format!("{at}.content"))?,
        None if role == Role::Assistant => None,
        None => return Err(missing(format!("{at}.content"), "a string, an array of parts or null")),
    };
    let tool_calls = match map.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) if calls.is_empty() || role == Role::Assistant => {
            let at = |i| format!("{at}.tool_calls[{i}]");
            calls.iter().enumerate().map(|(i, call)| read_call(call, &at(i))).collect::<Result<_>>()?
        }
        Some(other) => {
            return Err(wrong(&format!("{at}.tool_calls"), "an array, in an assistant's message", other));
        }
    };
    let tool_call_id = string(map, &dot, "tool_call_id")?;
    if role == Role::Tool && tool_call_id.is_none() {
        return Err(missing(format!("{at}.tool_call_id"), "the id of the call that this message answers"));
    }
    Ok(Message {
        name: string(map, &dot, "name")?,
        content,
        reasoning: string(map, &dot, "reasoning")?,
        reasoning_content: string(map, &dot, "reasoning_content")?,
        tool_calls,
        tool_call_id,
        role,
    })
}

/// Fields that other servers honour and that would be lost here.
fn refuse_unsupported(map: &Map<String, Value>, at: &str) -> Result<()> {
    for (key, expected) in [
        ("function_call", "null (use `tool_calls`)"),
        ("audio", "null (audio is not supported)"),
        ("partial", "false (continuing a partial message is not supported)"),
    ] {
        match map.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(other) => return Err(wrong(&format!("{at}.{key}"), expected, other)),
        }
    }
    Ok(())
}

fn read_content(value: &Value, at: &str) -> Result<Option<Content>> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(Content::Text(text.clone()))),
        Value::Array(parts) => {
            let part = |(i, p)| read_part(p, &format!("{at}[{i}]"));
            Ok(Some(Content::Parts(parts.iter().enumerate().map(part).collect::<Result<_>>()?)))
        }
        other => Err(wrong(at, "a string, an array of parts or null", other)),
    }
}

fn read_part(value: &Value, at: &str) -> Result<Part> {
    let map = match value {
        Value::String(text) => return Ok(Part::Text(text.clone())),
        Value::Object(map) => map,
        other => return Err(wrong(at, "an object with `type`, or a string", other)),
    };
    match string(map, &format!("{at}."), "type")?.as_deref() {
        Some("text" | "input_text" | "output_text") => match string(map, &format!("{at}."), "text")? {
            Some(text) => Ok(Part::Text(text)),
            None => Err(missing(format!("{at}.text"), "a string")),
        },
        Some("image" | "image_url" | "input_image") => Ok(Part::Image),
        Some("video" | "video_url" | "input_video") => Ok(Part::Video),
        Some(_) => Err(wrong(&format!("{at}.type"), "`text`, `image_url` or `video_url`", &map["type"])),
        None => Err(missing(format!("{at}.type"), "`text`, `image_url` or `video_url`")),
    }
}

fn read_call(value: &Value, at: &str) -> Result<ToolCall> {
    let Value::Object(map) = value else { return Err(wrong(at, "an object", value)) };
    if let Some(kind) = map.get("type").filter(|kind| *kind != "function") {
        return Err(wrong(&format!("{at}.type"), "\"function\"", kind));
    }
    let id = string(map, &format!("{at}."), "id")?.ok_or_else(|| missing(format!("{at}.id"), "a string"))?;
    let function = match map.get("function") {
        Some(Value::Object(function)) => function,
        Some(other) => return Err(wrong(&format!("{at}.function"), "an object", other)),
        None => return Err(missing(format!("{at}.function"), "an object with `name` and `arguments`")),
    };
    let dot = format!("{at}.function.");
    let name = string(function, &dot, "name")?.ok_or_else(|| missing(format!("{dot}name"), "a string"))?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => Arguments::Text(text.clone()),
        Some(json @ Value::Object(_)) => Arguments::Json(json.clone()),
        Some(other) => return Err(wrong(&format!("{dot}arguments"), "a string or an object", other)),
        None => return Err(missing(format!("{dot}arguments"), "a string or an object")),
    };
    Ok(ToolCall { id, name, arguments })
}

/// An optional string; null counts as absent.
fn string(map: &Map<String, Value>, prefix: &str, key: &str) -> Result<Option<String>> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(wrong(&format!("{prefix}{key}"), "a string", other)),
    }
}

/// An optional boolean; null counts as absent.
fn boolean(map: &Map<String, Value>, prefix: &str, key: &str) -> Result<Option<bool>> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(wrong(&format!("{prefix}{key}"), "true or false", other)),
    }
}

fn missing(field: String, expected: &'static str) -> PromptError {
    PromptError::Missing { field, expected }
}

fn wrong(field: &str, expected: &'static str, found: &Value) -> PromptError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("{text:?}"),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Array(list) => format!("an array of {}", list.len()),
        Value::Object(map) => format!("an object of {} keys", map.len()),
    };
    PromptError::Field { field: field.to_owned(), expected, found }
}
