//! From the model's raw output to reasoning, content and tool calls, while it streams.
//!
//! The text may arrive in any pieces: the events, joined, and the result are the same. Only the beginning of a marker
//! is ever held back, at most a few dozen bytes, so no marker and no part of one reaches a client.

mod call_id;
mod markers;
mod output;

#[cfg(test)]
mod tests;

pub use call_id::{CallId, function_name};
pub use output::{Event, Finish, ParsedOutput, ParsedToolCall};

use markers::{Found, Marker, find};
use output::Recorder;

/// What the parser has to know about the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParserOptions {
    /// Whether the prompt ended inside the thought, as it does unless thinking was off.
    pub thinking: bool,
    /// Index of the conversation's next tool call ([`next_call_index`](crate::prompt::Conversation::next_call_index)),
    /// for a call to which the model gives no index.
    pub first_call_index: u64,
}

impl Default for ParserOptions {
    fn default() -> Self {
        Self { thinking: true, first_call_index: 0 }
    }
}

/// Where in the output the parser stands.
#[derive(Debug)]
enum State {
    /// In the thought; at its very start a repeated `<think>` is dropped.
    Reasoning {
        start: bool,
    },
    Content,
    /// Between the calls of a section.
    Section,
    /// In a call's id.
    Id(String),
    /// In a call's arguments. White space is held back, as it is dropped at both ends.
    Arguments {
        started: bool,
        spaces: String,
    },
    /// Behind the end of the turn, which may have cut a call short.
    Done {
        cut: bool,
    },
}

/// A streaming parser of one answer.
#[derive(Debug)]
pub struct OutputParser {
    state: State,
    /// The beginning of what may become a marker.
    held: String,
    record: Recorder,
}

impl OutputParser {
    /// A parser at the start of an answer.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        let state = if options.thinking { State::Reasoning { start: true } } else { State::Content };
        Self { state, held: String::new(), record: Recorder::new(options.first_call_index) }
    }

    /// Takes the next piece of output and returns what can be sent on.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        let text = std::mem::take(&mut self.held) + piece;
        let mut rest = text.as_str();
        while !rest.is_empty() {
            match find(rest, self.allowed()) {
                Found::Nothing => {
                    self.text(rest);
                    rest = "";
                }
                Found::Beginning { at } => {
                    self.text(&rest[..at]);
                    self.held.push_str(&rest[at..]);
                    rest = "";
                }
                Found::Marker { at, marker } => {
                    self.text(&rest[..at]);
                    rest = &rest[at + marker.text().len()..];
                    self.marker(marker);
                }
            }
        }
        self.record.take_events()
    }

    /// Ends the answer: releases what was held back and returns the last events and the whole result.
    ///
    /// `finish` is why generation ended. [`Finish::Stop`] becomes [`Finish::ToolCalls`] if there are calls, or
    /// [`Finish::Length`] if a call was cut short: its arguments are delivered as far as they came, and a call without
    /// a complete id is not delivered.
    #[must_use]
    pub fn finish(mut self, finish: Finish) -> (Vec<Event>, ParsedOutput) {
        let held = std::mem::take(&mut self.held);
        self.text(&held);
        let cut = self.in_call();
        let finish = match finish {
            Finish::Stop if cut => Finish::Length,
            Finish::Stop if self.record.has_calls() => Finish::ToolCalls,
            other => other,
        };
        self.record.finish(finish)
    }

    fn in_call(&self) -> bool {
        matches!(self.state, State::Id(_) | State::Arguments { .. } | State::Done { cut: true })
    }

    /// The markers that mean something here. Elsewhere their text is ordinary.
    fn allowed(&self) -> &'static [Marker] {
        match self.state {
            State::Reasoning { start: true } => markers::IN_REASONING_START,
            State::Reasoning { start: false } => markers::IN_REASONING,
            State::Content | State::Section | State::Id(_) | State::Arguments { .. } => markers::OUTSIDE,
            State::Done { .. } => &[],
        }
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.state {
            State::Reasoning { start } => {
                *start = false;
                self.record.reasoning(text);
            }
            State::Content => self.record.content(text),
            State::Id(id) => id.push_str(text),
            State::Arguments { started, spaces } => {
                let text = if *started { text } else { text.trim_start() };
                let solid = text.trim_end();
                if !solid.is_empty() {
                    *started = true;
                    spaces.push_str(solid);
                    self.record.arguments(spaces);
                    spaces.clear();
                }
                if *started {
                    spaces.push_str(&text[solid.len()..]);
                }
            }
            State::Section | State::Done { .. } => {}
        }
    }

    fn marker(&mut self, marker: Marker) {
        match marker {
            Marker::Think => self.state = State::Reasoning { start: false },
            Marker::ThinkEnd => self.state = State::Content,
            Marker::TurnEnd => self.state = State::Done { cut: self.in_call() },
            Marker::SectionBegin => {
                self.close_call();
                self.state = State::Section;
            }
            Marker::SectionEnd => {
                self.close_call();
                if matches!(self.state, State::Section) {
                    self.state = State::Content;
                }
            }
            // A call outside a section is still a call.
            Marker::CallBegin => {
                self.close_call();
                self.state = State::Id(String::new());
            }
            Marker::ArgumentBegin => {
                if let State::Id(id) = &self.state {
                    self.record.call(id);
                    self.state = State::Arguments { started: false, spaces: String::new() };
                }
            }
            Marker::CallEnd => self.close_call(),
        }
    }

    /// Ends the call that is open, if any; a call without an argument marker gets empty arguments.
    fn close_call(&mut self) {
        match &self.state {
            State::Id(id) => {
                self.record.call(id);
                self.record.end_call();
            }
            State::Arguments { .. } => self.record.end_call(),
            _ => return,
        }
        self.state = State::Section;
    }
}
