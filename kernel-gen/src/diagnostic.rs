//! Errors that point into a declaration.

use std::fmt;

/// A place in a declaration file: one-based line and column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

impl From<proc_macro2::Span> for At {
    fn from(span: proc_macro2::Span) -> Self {
        let start = span.start();
        Self { line: start.line, column: start.column + 1 }
    }
}

/// What is wrong with a declaration, and where. Displays as `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostic {
    /// Declaration file, as it was named to the parser.
    pub file: String,
    /// Where in the file.
    pub at: At,
    /// What is wrong and what to do.
    pub message: String,
}

impl Diagnostic {
    pub(crate) fn new(file: &str, at: At, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at, message: message.into() }
    }

    pub(crate) fn from_syn(file: &str, error: &syn::Error) -> Self {
        Self::new(file, error.span().into(), error.to_string())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.at.line, self.at.column, self.message)
    }
}
