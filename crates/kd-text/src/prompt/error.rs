//! What can be wrong with a conversation or a chat template.

use std::error::Error;
use std::path::PathBuf;

/// Why no prompt could be made.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The text is not JSON (a lone surrogate escape is not, either).
    #[error("not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A field has the wrong type or value.
    #[error("{field}: expected {expected}, found {found}")]
    Field {
        /// Where, as `messages[2].content`.
        field: String,
        /// What may stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A required field is absent.
    #[error("{field} is missing: {expected} is required")]
    Missing {
        /// Where, as `messages[2].content`.
        field: String,
        /// What must stand there.
        expected: &'static str,
    },
    /// A key that is not known where it stands.
    #[error("{field} is not known here; known are {known}")]
    Unknown {
        /// The key with its place.
        field: String,
        /// The keys that are accepted there.
        known: &'static str,
    },
    /// Two fields ask for opposite things.
    #[error("{first} and {second} contradict each other; send one of them")]
    Conflict {
        /// One field.
        first: String,
        /// The other.
        second: String,
    },
    /// A picture or film, which a text engine cannot see.
    #[error("{field}: {kind} input is not supported by this text-only engine; send text parts only")]
    Media {
        /// The content part.
        field: String,
        /// `image` or `video`.
        kind: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// The chat template does not compile, failed, or refused the conversation.
    #[error("chat template {}, line {line}: {message}", path.display())]
    Template {
        /// The template's file.
        path: PathBuf,
        /// Line in that file, 0 if unknown.
        line: usize,
        /// What the template engine says.
        message: String,
    },
    /// The chat template did more work than its input justifies.
    #[error("chat template {} used up its limit of {fuel} units of work for this conversation", path.display())]
    OutOfFuel {
        /// The template's file.
        path: PathBuf,
        /// The limit, as minijinja counts: about one unit an instruction or 64 bytes.
        fuel: u64,
    },
    /// The template's markers cannot be told from a message's text.
    #[error(
        "chat template {} changes or compares characters of control strings inside message text, so its markers cannot \
         be told from that text; remove such characters from the messages, or allow control strings in user text",
        path.display()
    )]
    Inseparable {
        /// The template's file.
        path: PathBuf,
    },
    /// The tokenizer has no such control token.
    #[error("the prompt needs the control token {name}, which this tokenizer does not have")]
    UnknownControl {
        /// Its name.
        name: String,
    },
    /// The tokenizer refused the text.
    #[error("the prompt cannot be tokenised: {0}")]
    Encode(Box<dyn Error + Send + Sync>),
}
