//! What is decided before a round, and what it took and gained.

/// What was decided before a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// So many streams draft: the first ones of [`Load::candidates`](super::Load::candidates).
    pub drafters: usize,
    /// Most nodes that may be of use.
    pub(super) reach: usize,
    pub(super) kind: Kind,
    /// Tokens a second of the best way known; not positive before one is.
    pub(super) rate: f64,
    /// What a gained token is worth.
    pub(super) worth: f64,
    /// Seconds of a round without nodes.
    pub(super) plain: f64,
    pub(super) streams: usize,
    /// Tokens left of the stream that has most.
    pub(super) left: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// The best way known.
    Best,
    /// Without nodes where drafting is the rule, so that the comparison stays true.
    Compare,
    /// To see what drafts are like now; nodes are verified if that pays.
    Glance,
}

/// What a round took and gained.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Rows of the verify pass.
    pub rows: usize,
    /// Streams that drafted, those with a budget of their own included.
    pub drafting: usize,
    /// Committed tokens of a stream, the mean over all.
    pub context: usize,
    /// Committed tokens that the drafter read before it drafted.
    pub read_tokens: usize,
    /// Seconds of reading them.
    pub read: f64,
    /// Seconds of drafting, building and choosing.
    pub draft: f64,
    /// Whether a draft was at work while something else was waited for: `draft` is less than it costs, and nothing is learnt of it.
    pub overlapped: bool,
    /// Seconds of everything after.
    pub verify: f64,
    /// Draft tokens that were expected to be accepted: Φ of the nodes that the allocator chose.
    pub promised: f64,
    /// Draft tokens accepted of these nodes.
    pub accepted: f64,
}

impl Outcome {
    /// Seconds of the whole round.
    pub fn seconds(&self) -> f64 {
        self.read + self.draft + self.verify
    }
}

/// How many rounds were spent on what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds without nodes because that was best.
    pub plain: u64,
    /// Rounds that drafted because that was best.
    pub drafted: u64,
    /// Rounds that were spent to learn.
    pub looks: u64,
}
