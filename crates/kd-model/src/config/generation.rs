//! `generation_config.json`, which may add end-of-sequence ids.

use std::path::Path;

use serde_json::Value;

use super::section::{Section, load};
use crate::error::{ConfigError, ConfigProblem};

/// What this engine takes from `generation_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationConfig {
    /// Ids that end a generation.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationConfig {
    /// The name of the file.
    pub const FILE: &str = "generation_config.json";

    /// Reads `dir/generation_config.json`; a directory without one has no further ids.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is unreadable or an id is not below `vocab_size`.
    pub fn from_dir(dir: &Path, vocab_size: usize) -> Result<Self, ConfigError> {
        let file = dir.join(Self::FILE);
        let Some(value) = load(&file)? else { return Ok(Self::default()) };
        Self::parse(&value, vocab_size).map_err(|problem| ConfigError::Key { file, problem })
    }

    /// Reads the parsed file.
    ///
    /// # Errors
    /// [`ConfigProblem`] if an id is not a number below `vocab_size`.
    pub fn parse(value: &Value, vocab_size: usize) -> Result<Self, ConfigProblem> {
        Ok(Self { eos_token_ids: Section::root(value)?.tokens("eos_token_id", vocab_size)? })
    }
}
