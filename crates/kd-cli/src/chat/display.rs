//! How an answer looks in the terminal while it comes.

use std::io::{IsTerminal, Write, stdout};

use kd_text::parser::Event;

/// Prints an answer's events: thoughts dimmed, calls on lines of their own.
pub(super) struct Display {
    color: bool,
    /// What was printed last, to know where a line must end.
    last: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nothing,
    Thought,
    Text,
    Call,
}

impl Display {
    pub(super) fn new() -> Self {
        Self { color: stdout().is_terminal(), last: Kind::Nothing }
    }

    pub(super) fn events(&mut self, events: &[Event]) -> std::io::Result<()> {
        for event in events {
            match event {
                Event::Reasoning(text) => self.piece(Kind::Thought, text)?,
                Event::Content(text) => self.piece(Kind::Text, text)?,
                Event::ToolCallStart { id, .. } => {
                    self.end_line()?;
                    self.piece(Kind::Call, &format!("{id} "))?;
                }
                Event::ToolCallArguments { delta, .. } => self.piece(Kind::Call, delta)?,
                Event::ToolCallEnd { .. } => self.end_line()?,
                Event::Finish(_) => {}
            }
        }
        stdout().flush()
    }

    /// Ends the line that the answer left open, if it did.
    pub(super) fn end_line(&mut self) -> std::io::Result<()> {
        if self.last != Kind::Nothing {
            writeln!(stdout())?;
        }
        self.last = Kind::Nothing;
        Ok(())
    }

    fn piece(&mut self, kind: Kind, text: &str) -> std::io::Result<()> {
        if self.last != kind {
            self.end_line()?;
            self.last = kind;
        }
        let (on, off) = match kind {
            _ if !self.color => ("", ""),
            Kind::Thought => ("\x1b[2m", "\x1b[0m"),
            Kind::Call => ("\x1b[36m", "\x1b[0m"),
            Kind::Text | Kind::Nothing => ("", ""),
        };
        write!(stdout(), "{on}{text}{off}")
    }
}
