//! Errors: parameters out of their limits, and rows that allow no token.

use thiserror::Error;

/// A sampling parameter outside its limits.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ParamError {
    /// A number outside its range, or not a number.
    #[error("{field} is {value}, but must be {limit}")]
    Range {
        /// Name of the parameter.
        field: &'static str,
        /// The values that are allowed, in words.
        limit: &'static str,
        /// The refused value.
        value: f64,
    },
    /// A bias outside its range, or not a number.
    #[error("logit_bias of token {id} is {value}, but must be {limit}")]
    Bias {
        /// The token whose bias is refused.
        id: u32,
        /// The values that are allowed, in words.
        limit: &'static str,
        /// The refused value.
        value: f64,
    },
    /// A token id that the vocabulary does not have.
    #[error("{field} names token {id}, but must name ids below the vocabulary size {vocab}")]
    Id {
        /// Name of the parameter.
        field: &'static str,
        /// The refused id.
        id: u32,
        /// Number of ids.
        vocab: usize,
    },
}

/// Why no token was chosen.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SampleError {
    /// The row holds NaN or +inf, or no finite entry is left in it.
    #[error("no finite maximum")]
    NoFiniteMaximum,
    /// A parameter is out of its limits.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// A penalty is to be applied to a token that the row does not have.
    #[error("the history holds token {id}, but the row has only {vocab} entries")]
    HistoryId {
        /// The token of the history.
        id: u32,
        /// Entries of the row.
        vocab: usize,
    },
    /// The row has more entries than there are 32-bit token ids.
    #[error("the row has {len} entries, but token ids have 32 bits")]
    RowTooLong {
        /// Entries of the row.
        len: usize,
    },
}
