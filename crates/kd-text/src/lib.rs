//! Kimi's tokenizer, prompt and output parser; knows no tensors.
#![forbid(unsafe_code)]

mod error;
mod file;
pub mod parser;
pub mod prompt;
pub mod tokenizer;

pub use error::TokenizerError;
pub use tokenizer::{StreamDecoder, Tokenizer};
