//! What the parser hands out: events while the answer streams, and the whole answer at its end.

use super::CallId;

/// A piece of the answer. Pieces are never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More of the thought.
    Reasoning(String),
    /// More of the answer's text.
    Content(String),
    /// A tool call begins; its arguments follow.
    ToolCallStart {
        /// Position among this answer's calls, from 0.
        index: usize,
        /// The call's id.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments, verbatim.
    ToolCallArguments {
        /// Position of the call.
        index: usize,
        /// The piece.
        delta: String,
    },
    /// A call is complete.
    ToolCallEnd {
        /// Position of the call.
        index: usize,
    },
    /// The answer is over.
    Finish(Finish),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn, or a stop string did.
    Stop,
    /// The limit of tokens was reached, or the turn ended within a call.
    Length,
    /// The model ended its turn with tool calls.
    ToolCalls,
    /// Generation failed.
    Error,
}

impl Finish {
    /// OpenAI's spelling; `error` is our own.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
            Finish::Error => "error",
        }
    }
}

/// A tool call of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedToolCall {
    /// The model's id without outer white space, or `functions.NAME:INDEX` if the model gave no index.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments verbatim, without outer white space. Not checked to be JSON.
    pub arguments: String,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedOutput {
    /// The thought, if not empty.
    pub reasoning: Option<String>,
    /// The text, if not empty.
    pub content: Option<String>,
    /// The calls in order.
    pub tool_calls: Vec<ParsedToolCall>,
    /// Calls that named no function and were left out.
    pub nameless_calls: usize,
    /// Why the answer ended.
    pub finish: Finish,
}

/// Writes events and the result side by side.
#[derive(Debug)]
pub(super) struct Recorder {
    events: Vec<Event>,
    reasoning: String,
    content: String,
    calls: Vec<ParsedToolCall>,
    nameless: usize,
    /// Whether the last call of `calls` is the one being written.
    open: bool,
    next_index: u64,
}

impl Recorder {
    pub(super) fn new(first_call_index: u64) -> Self {
        Self {
            events: Vec::new(),
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            nameless: 0,
            open: false,
            next_index: first_call_index,
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
        self.events.push(Event::Reasoning(text.to_owned()));
    }

    pub(super) fn content(&mut self, text: &str) {
        self.content.push_str(text);
        self.events.push(Event::Content(text.to_owned()));
    }

    /// Begins a call. One without a name cannot be executed: it is counted, and its arguments are dropped.
    pub(super) fn call(&mut self, id: &str) {
        let parsed = CallId::parse(id);
        if parsed.name.is_empty() {
            self.nameless += 1;
            return;
        }
        let index = parsed.index.unwrap_or(self.next_index);
        let id = match parsed.index {
            Some(_) => id.trim().to_owned(),
            None => format!("functions.{}:{index}", parsed.name),
        };
        self.next_index = self.next_index.max(index.saturating_add(1));
        let call = ParsedToolCall { id, name: parsed.name.to_owned(), arguments: String::new() };
        self.events.push(Event::ToolCallStart {
            index: self.calls.len(),
            id: call.id.clone(),
            name: call.name.clone(),
        });
        self.calls.push(call);
        self.open = true;
    }

    pub(super) fn arguments(&mut self, text: &str) {
        let index = self.calls.len().wrapping_sub(1);
        if let Some(call) = self.calls.last_mut().filter(|_| self.open) {
            call.arguments.push_str(text);
            self.events.push(Event::ToolCallArguments { index, delta: text.to_owned() });
        }
    }

    pub(super) fn end_call(&mut self) {
        if std::mem::take(&mut self.open) {
            self.events.push(Event::ToolCallEnd { index: self.calls.len() - 1 });
        }
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn finish(mut self, finish: Finish) -> (Vec<Event>, ParsedOutput) {
        self.events.push(Event::Finish(finish));
        let some = |text: String| Some(text).filter(|t| !t.is_empty());
        let output = ParsedOutput {
            reasoning: some(self.reasoning),
            content: some(self.content),
            tool_calls: self.calls,
            nameless_calls: self.nameless,
            finish,
        };
        (self.events, output)
    }
}
