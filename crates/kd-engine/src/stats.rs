//! What a stream's generation took.

use std::time::Duration;

/// Counters of one stream. Prefill is no round, and its token is not counted among the rounds' tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamStats {
    /// Verify passes.
    pub rounds: u64,
    /// Tokens that the rounds gained: a path counts up to and including a stop token, and in full where `max_tokens`
    /// cuts it.
    pub round_tokens: u64,
    /// Draft nodes over all rounds.
    pub nodes: u64,
    /// `drafted_by_depth[d − 1]`: rounds whose draft was at least `d` deep.
    pub drafted_by_depth: Vec<u64>,
    /// `accepted_by_depth[d − 1]`: rounds that accepted at least `d` draft tokens.
    pub accepted_by_depth: Vec<u64>,
    /// Tokens generated, the prefill's included.
    pub generated: u64,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

impl StreamStats {
    pub(crate) fn record_round(&mut self, nodes: usize, depth: usize, accepted: usize, gained: usize) {
        self.rounds += 1;
        self.round_tokens += gained as u64;
        self.nodes += nodes as u64;
        let deepest = depth.max(self.drafted_by_depth.len());
        self.drafted_by_depth.resize(deepest, 0);
        self.accepted_by_depth.resize(deepest, 0);
        self.drafted_by_depth[..depth].iter_mut().for_each(|n| *n += 1);
        self.accepted_by_depth[..accepted].iter_mut().for_each(|n| *n += 1);
    }

    /// Tokens that a round gains on average; `None` when no round ran.
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.round_tokens as f64 / self.rounds as f64)
    }

    /// Draft nodes of a round on average; `None` when no round ran.
    pub fn nodes_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.nodes as f64 / self.rounds as f64)
    }

    /// For each depth, rounds that accepted at least that many draft tokens ÷ rounds that drafted that deep.
    pub fn acceptance_by_depth(&self) -> Vec<f64> {
        let pairs = self.accepted_by_depth.iter().zip(&self.drafted_by_depth);
        pairs.map(|(&accepted, &drafted)| accepted as f64 / drafted as f64).collect()
    }

    /// Tokens after the first ÷ the time they took; `None` before there is a second.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.decode.as_secs_f64();
        (self.generated > 1 && seconds > 0.0).then(|| (self.generated - 1) as f64 / seconds)
    }
}
