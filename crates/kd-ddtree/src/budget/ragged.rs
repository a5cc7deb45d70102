//! What a gained token is worth where several streams run together.
//!
//! A round lasts as long for one stream as for all on machines where rows are nearly free: there, streams that began together are
//! through when the last one is, and what the others gained more than the last shortens nothing. On machines where every row
//! costs what it computes, a stream that ends early spares its rows. So of a gained token that part counts in full that goes
//! with the rows, and the rest as far as the stream with most left gains as well. That matters the less the farther the end is.

use super::cost::Prices;

/// Tokens left at which what the last stream gains counts half.
const RAGGED: f64 = 4096.0;
/// Least part of a token that counts.
const LEAST: f64 = 0.1;

/// What a gained token is worth in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Worth {
    /// Share of a round without drafts that does not shrink when a stream ends, the less the farther the end is.
    fixed: f64,
    /// What the stream with most left gains ÷ what all gain on average.
    last: f64,
    streams: usize,
}

impl Worth {
    /// Where the stream with most left has `left` tokens left, and gains `last` times what all gain on average.
    pub(crate) fn new(prices: &Prices, streams: usize, left: f64, last: f64) -> Worth {
        let near = RAGGED / (RAGGED + left);
        Worth { fixed: near * fixed(prices, streams), last, streams }
    }

    /// Of a token where so many streams draft. If not all do, the others come to their ends no sooner.
    pub(crate) fn of(&self, drafters: usize) -> f64 {
        let last = if drafters < self.streams { 0.0 } else { self.last };
        (1.0 - self.fixed * (1.0 - last)).max(LEAST)
    }
}

/// Share of a round of so many streams without drafts that does not shrink when one of them ends.
fn fixed(prices: &Prices, streams: usize) -> f64 {
    let (Some(one), Some(all)) = (prices.verify(1), prices.verify(streams)) else { return 0.0 };
    if streams < 2 {
        return 0.0;
    }
    (1.0 - (1.0 - one / all) * streams as f64 / (streams - 1) as f64).clamp(0.0, 1.0)
}
