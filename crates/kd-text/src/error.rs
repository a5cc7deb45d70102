//! What can go wrong in loading a tokenizer, encoding text and decoding ids.

use std::path::PathBuf;

/// An error of [`Tokenizer`](crate::Tokenizer) or [`StreamDecoder`](crate::StreamDecoder).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The checkpoint carries no tokenizer. It can still be run on token ids.
    #[error("{} does not exist: this checkpoint has no tokenizer; give token ids, or add the file", path.display())]
    Missing {
        /// Where the vocabulary was looked for.
        path: PathBuf,
    },
    /// A tokenizer file could not be read.
    #[error("cannot read {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A line of `tiktoken.model` is not `<base64 bytes> <rank>`, or contradicts another line.
    #[error("{}, line {line}: found {found:?}, expected {expected}", path.display())]
    VocabLine {
        /// The vocabulary file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The offending line or field, shortened.
        found: String,
        /// What should have stood there.
        expected: String,
    },
    /// The vocabulary cannot spell every text, because a single byte has no token.
    #[error("{}: no token for the single byte 0x{byte:02x}; a byte-level vocabulary has all 256", path.display())]
    VocabByte {
        /// The vocabulary file.
        path: PathBuf,
        /// The first byte without a token.
        byte: u8,
    },
    /// `tokenizer_config.json` is not valid JSON.
    #[error("{}: not valid JSON: {reason}", path.display())]
    ConfigJson {
        /// The configuration file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        reason: serde_json::Error,
    },
    /// A field of `tokenizer_config.json` has an unusable value.
    #[error("{}, {field}: found {found}, expected {expected}", path.display())]
    ConfigField {
        /// The configuration file.
        path: PathBuf,
        /// The field, with dots between levels.
        field: String,
        /// The value, shortened.
        found: String,
        /// What should have stood there.
        expected: String,
    },
    /// An id that no token has.
    #[error("token id {id} is out of range: the vocabulary has {vocab_size} ids, 0 to {}", vocab_size - 1)]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of ids, base and control together; never 0.
        vocab_size: usize,
    },
    /// A text longer than any context could hold.
    #[error("the text has {bytes} bytes, the limit is {limit}; shorten it or encode it in parts")]
    InputTooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// [`MAX_INPUT_BYTES`](crate::tokenizer::MAX_INPUT_BYTES).
        limit: usize,
    },
}

/// Cuts `text` to a length that fits an error message.
pub(crate) fn shorten(text: &str) -> String {
    const LIMIT: usize = 60;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
