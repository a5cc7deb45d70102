//! What can be wrong with a model directory.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The configuration is unreadable, wrong or beyond what this engine implements.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights are unreadable or are not those that the configuration calls for.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {reason}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        reason: std::io::Error,
    },
    /// There is no such file.
    #[error("{} does not exist; name the folder of a checkpoint", file.display())]
    Absent {
        /// The file.
        file: PathBuf,
    },
    /// The file is not JSON.
    #[error("{}: malformed JSON: {reason}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why parsing stopped.
        reason: serde_json::Error,
    },
    /// A key of the file stands in the way.
    #[error("{}: {problem}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The key, its value and what was expected.
        problem: ConfigProblem,
    },
}

/// What is wrong with one key of a configuration. Keys are dotted paths from the top of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// A key that has no default is absent or null.
    #[error("`{key}` is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// What should be there.
        expected: String,
    },
    /// A value of the wrong type, or outside its range.
    #[error("`{key}` is {found}, expected {expected}")]
    Invalid {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A value with a meaning that this engine does not implement.
    #[error("`{key}` = {found} is not supported; supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// Every value that is implemented.
        supported: String,
    },
    /// Two places of one setting that disagree.
    #[error("`{key}` is {found}, but `{other_key}` is {other}: they must agree")]
    Conflict {
        /// The first key.
        key: String,
        /// Its value.
        found: String,
        /// The second key.
        other_key: String,
        /// Its value.
        other: String,
    },
}
