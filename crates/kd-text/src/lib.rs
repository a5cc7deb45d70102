//! Kimi's tokenizer, prompt and output parser; knows no tensors.
#![forbid(unsafe_code)]

pub mod parser;
pub mod prompt;
