//! What can be wrong with rows, trees and budgets handed in from outside.

use thiserror::Error;

/// Why a list of tokens and log-probabilities is not a draft row.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum RowError {
    /// The two lists differ in length.
    #[error("a draft row has {tokens} tokens but {logprobs} log-probabilities; give one for each token")]
    Length {
        /// Number of tokens.
        tokens: usize,
        /// Number of log-probabilities.
        logprobs: usize,
    },
    /// A log-probability is NaN or infinite.
    #[error(
        "log-probability {value} at rank {rank} of a draft row is not finite; drop the entry or refuse the row"
    )]
    NotFinite {
        /// Index in the row.
        rank: usize,
        /// The offending value.
        value: f32,
    },
    /// The row is not sorted best first.
    #[error(
        "log-probability {value} at rank {rank} of a draft row exceeds {previous} before it; sort the row best first"
    )]
    NotDescending {
        /// Index in the row.
        rank: usize,
        /// The offending value.
        value: f32,
        /// The value one rank earlier.
        previous: f32,
    },
}

/// Why a list of nodes is not a draft tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TreeError {
    /// More nodes than an ancestor mask has bits.
    #[error("a draft tree of {nodes} nodes exceeds the limit of {limit}; use a smaller budget")]
    TooManyNodes {
        /// Number of nodes asked for, or the first number that is too large.
        nodes: usize,
        /// [`MAX_NODES`](crate::MAX_NODES).
        limit: usize,
    },
    /// The token and parent lists differ in length.
    #[error("a draft tree has {tokens} tokens but {parents} parents; give one parent for each token")]
    Length {
        /// Number of tokens.
        tokens: usize,
        /// Number of parents.
        parents: usize,
    },
    /// A parent is neither -1 nor the index of a node.
    #[error(
        "node {node} names parent {parent}; a tree of {nodes} nodes allows -1 (a child of the root) up to the last index"
    )]
    Parent {
        /// Index of the node.
        node: usize,
        /// The parent it names.
        parent: i64,
        /// Number of nodes.
        nodes: usize,
    },
    /// Following parents from a node never reaches the root.
    #[error("node {node} is on or below a cycle of parents; every node must lead to the root (-1)")]
    Cycle {
        /// Smallest index of such a node.
        node: usize,
    },
}

/// Why a tree or forest cannot be built as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BuildError {
    /// A budget or per-stream cap is above what one tree can hold.
    #[error("stream {stream}: budget of {budget} nodes exceeds the limit of {limit} for one tree; lower it")]
    Budget {
        /// Index of the stream (0 for a single tree).
        stream: usize,
        /// Nodes asked for.
        budget: usize,
        /// [`MAX_NODES`](crate::MAX_NODES).
        limit: usize,
    },
    /// A stream is promised more nodes than it may have.
    #[error(
        "stream {stream}: floor of {floor} nodes is above its cap of {cap}; raise the cap or lower the floor"
    )]
    Floor {
        /// Index of the stream.
        stream: usize,
        /// Nodes promised.
        floor: usize,
        /// Nodes allowed.
        cap: usize,
    },
    /// Scorers and limits differ in number.
    #[error("{scorers} scorers but {limits} stream limits; give one of each for every stream")]
    Streams {
        /// Number of scorers.
        scorers: usize,
        /// Number of limits.
        limits: usize,
    },
    /// More streams than the order's stream field can number.
    #[error("{streams} streams exceed the limit of {limit} for one forest; build several forests")]
    TooManyStreams {
        /// Number of streams.
        streams: usize,
        /// [`MAX_STREAMS`](crate::MAX_STREAMS).
        limit: usize,
    },
}
