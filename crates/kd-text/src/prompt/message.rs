//! Conversations as plain data.

use serde_json::Value;

/// Messages and the tools that the model may call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The turns, oldest first.
    pub messages: Vec<Message>,
    /// Tool declarations: JSON objects in OpenAI's form, otherwise arbitrary.
    pub tools: Vec<Value>,
}

impl Conversation {
    /// The index that the next tool call of this conversation gets: calls are counted from its start.
    #[must_use]
    pub fn next_call_index(&self) -> u64 {
        self.messages.iter().map(|m| m.tool_calls.len() as u64).sum()
    }
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// `system`.
    System,
    /// `user`.
    User,
    /// `assistant`.
    Assistant,
    /// `tool`: the result of a call.
    Tool,
    /// Any other role, as `developer`; K2.6 renders it under the system tag.
    Other(String),
}

impl Role {
    /// The role's name in JSON and in the prompt.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Other(name) => name,
        }
    }
}

/// One turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// Speaker's name, shown instead of the role; empty counts as absent.
    pub name: Option<String>,
    /// What is said; `None` is JSON's null.
    pub content: Option<Content>,
    /// The thought before an assistant's turn; wins over `reasoning_content` unless empty.
    pub reasoning: Option<String>,
    /// The same under its older name.
    pub reasoning_content: Option<String>,
    /// The assistant's tool calls.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message with text and nothing else.
    #[must_use]
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            name: None,
            content: Some(Content::Text(text.into())),
            reasoning: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// Name for the prompt: the speaker's, else the role's.
    #[must_use]
    pub fn speaker(&self) -> &str {
        self.name.as_deref().filter(|n| !n.is_empty()).unwrap_or(self.role.as_str())
    }

    /// The thought, empty if there is none.
    #[must_use]
    pub fn thought(&self) -> &str {
        let reasoning = self.reasoning.as_deref().filter(|r| !r.is_empty());
        reasoning.or(self.reasoning_content.as_deref()).unwrap_or("")
    }
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts in order.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A picture (`image`, `image_url`).
    Image,
    /// A film (`video`, `video_url`).
    Video,
}

/// A call that the assistant made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Its id, verbatim in the prompt; K2.6's own look like `functions.NAME:INDEX`.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments.
    pub arguments: Arguments,
}

/// Arguments of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// Text that is meant to be JSON, verbatim in the prompt.
    Text(String),
    /// A JSON value, printed as Python prints it.
    Json(Value),
}
