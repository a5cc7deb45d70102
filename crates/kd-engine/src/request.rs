//! What callers ask for and what they hear back.

use kd_sample::{Choice, SamplingParams};

use crate::{StreamError, StreamStats};

/// Names a request within its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a stream drafts in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculation {
    /// Nothing: plain decoding.
    Plain,
    /// The most probable token of each draft row.
    Chain,
    /// The best-first tree of at most this many nodes.
    Tree {
        /// Node budget, at most [`MAX_NODES`](crate::MAX_NODES); 0 is plain decoding.
        nodes: usize,
    },
    /// What is fastest, by a moving estimate of what this engine's rounds take and gain: trees of any size, or plain
    /// decoding. All such streams share one budget. Without a drafter it is plain decoding.
    Auto,
}

impl Speculation {
    /// Most draft nodes of a round; of [`Speculation::Auto`] those that the default budget allows, of a chain those of the
    /// longest block.
    pub fn most_nodes(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Chain => kd_ddtree::MAX_NODES,
            Self::Tree { nodes } => nodes,
            Self::Auto => kd_ddtree::budget::Options::default().limits.cap,
        }
    }

    /// Whether anything may be drafted.
    pub(crate) fn drafts(self) -> bool {
        !matches!(self, Self::Plain | Self::Tree { nodes: 0 })
    }
}

/// One sequence to continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// Token ids of the prompt, taken verbatim; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen. Its `stop_ids` end the generation and are kept as the last token.
    pub params: SamplingParams,
    /// Which of several parallel answers to one seed this is.
    pub choice: u32,
    /// Most tokens to generate, at least one.
    pub max_tokens: usize,
    /// Strings that end the generation. They need a tokenizer and are left out of the text.
    pub stop: Vec<String>,
    /// Whether think tags and tool-call markers appear in the text; other control tokens never do.
    pub keep_markers: bool,
    /// What to draft.
    pub speculation: Speculation,
}

impl Request {
    /// A greedy request for up to `max_tokens` tokens without speculation.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            params: SamplingParams::default(),
            choice: 0,
            max_tokens,
            stop: Vec::new(),
            keep_markers: false,
            speculation: Speculation::Plain,
        }
    }
}

/// Why a stream ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id or a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// Something that happened to a request during a step.
#[derive(Debug, Clone)]
pub enum Event {
    /// Tokens were generated.
    Tokens {
        /// Whose.
        id: RequestId,
        /// The tokens, with log-probabilities where the request asked for them.
        tokens: Vec<Choice>,
        /// The text that became certain: whole characters, nothing that may still turn out to begin a stop string.
        text: String,
    },
    /// The request is done.
    Finished {
        /// Whose.
        id: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it took.
        stats: StreamStats,
    },
    /// The request failed; the tokens before stay valid.
    Failed {
        /// Whose.
        id: RequestId,
        /// Why.
        error: StreamError,
        /// What it took.
        stats: StreamStats,
    },
}
