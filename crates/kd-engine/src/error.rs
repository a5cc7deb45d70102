//! Why an engine, a request or a stream cannot go on.

use kd_model::ConfigProblem;
use kd_sample::{ParamError, SampleError, stop::StopError};
use kd_text::TokenizerError;
use thiserror::Error;

use crate::backend::DeviceError;

/// Models that an engine cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Drafter and target were not made for each other.
    #[error("the drafter does not fit the target: {0}; use the drafter that was trained for this target")]
    Drafter(ConfigProblem),
    /// Models and threads are made for different numbers of ranks.
    #[error(
        "the target is shared by {target} rank(s), the drafter by {drafter} and the threads by {pool}; they must agree"
    )]
    Ranks {
        /// Ranks of the target.
        target: usize,
        /// Ranks of the drafter; those of the target where there is none.
        drafter: usize,
        /// Ranks of the pool.
        pool: usize,
    },
    /// The caches do not fit in memory.
    #[error(transparent)]
    Memory(#[from] kd_attn::CacheError),
    /// No usable GPU, no kernels for the models, or too little memory there.
    #[error(transparent)]
    Cuda(#[from] kd_model::cuda::CudaError),
}

impl From<ConfigProblem> for EngineError {
    fn from(problem: ConfigProblem) -> Self {
        Self::Drafter(problem)
    }
}

/// A request that the engine does not take.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is nothing to continue.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A prompt token that the model does not have.
    #[error("prompt token {index} is {id}, but the vocabulary has {vocab} ids")]
    TokenId {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Nothing to generate.
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokens,
    /// Prompt and answer are longer than the model can see.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}, together more than the context of {limit}; \
         shorten the prompt or lower max_tokens"
    )]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_tokens: usize,
        /// `max_position_embeddings`.
        limit: usize,
    },
    /// Prompt and answer are longer than the whole cache.
    #[error("the request needs {needed} cache pages of 64 tokens, but the engine has {pages}")]
    Capacity {
        /// Pages that it needs.
        needed: usize,
        /// Pages that there are.
        pages: usize,
    },
    /// Too large a tree.
    #[error("the draft budget is {nodes} nodes, but must be at most {limit}")]
    Budget {
        /// Nodes asked for.
        nodes: usize,
        /// Most nodes of a tree.
        limit: usize,
    },
    /// Speculation without a drafter.
    #[error(
        "the request asks for speculation, but the engine has no drafter; set the budget to 0 or load one"
    )]
    NoDrafter,
    /// Speculation for a request that began without.
    #[error(
        "the request was submitted without speculation, so the drafter has not read it; submit it with a budget"
    )]
    Unread,
    /// Stop strings without a tokenizer.
    #[error("the request has stop strings, but the checkpoint has no tokenizer; use stop ids")]
    NoTokenizer,
    /// A sampling parameter out of its limits.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A stop string that cannot be used.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The device failed before.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What ended one stream while others go on.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No token could be chosen.
    #[error("no token can be chosen at position {position}: {reason}")]
    Sample {
        /// Absolute position of the token.
        position: usize,
        /// Why.
        reason: SampleError,
    },
    /// A generated token has no text.
    #[error("the generated token cannot be decoded: {0}")]
    Decode(String),
    /// The device failed, and every stream with it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<TokenizerError> for StreamError {
    fn from(error: TokenizerError) -> Self {
        Self::Decode(error.to_string())
    }
}
