//! What nodes gain on average, before a draft is seen.

use super::buckets::{bucket, edge};
use super::record::Record;
use crate::tree::{MAX_NODES, Tree};

/// Points of the curve: 1, 2, 3, 4, 6, … nodes of a stream.
const POINTS: usize = 14;
const _: () = assert!(edge(POINTS - 1) >= MAX_NODES && edge(POINTS - 2) < MAX_NODES);
/// Rounds of drafts of new streams that the curve remembers.
const MEMORY: f64 = 12.0;
/// Drafts of a stream after which one more counts half as much for other streams.
const LATER: f64 = 8.0;
/// Nodes at which drafts are compared.
const USUAL: usize = 8;
/// A draft counts as at least and at most so many of the usual ones.
const WORTH: std::ops::RangeInclusive<f64> = 0.1..=10.0;
/// How much streams differ before any was seen, and what they differ at least, as shares of what they gain.
const SPREAD: [f64; 2] = [0.5, 0.35];

/// A moving average of Φ over nodes, both per stream: what the draft of a new stream promises.
#[derive(Debug, Clone)]
pub(crate) struct Gain {
    points: [f64; POINTS],
    samples: u32,
    weight: f64,
    spread: f64,
}

impl Default for Gain {
    fn default() -> Self {
        Self { points: [0.0; POINTS], samples: 0, weight: 0.0, spread: SPREAD[0] }
    }
}

impl Gain {
    /// Takes the tree that was grown from a draft of the stream of this record, one of `drafters` in this round; returns what it
    /// is worth, in units of a new stream's. `counts` says for how many drafts of this round it stands in what is learnt of all
    /// streams: 0 for one that others stand for.
    pub(crate) fn observe(
        &mut self,
        record: &mut Record,
        tree: &Tree,
        [drafters, counts]: [usize; 2],
        round: u64,
    ) -> f64 {
        let mut phi = [0.0; MAX_NODES + 1];
        let len = tree.len();
        let needed = if counts > 0 { len } else { len.min(USUAL) };
        for (row, node) in (1..).zip(&tree.nodes()[..needed]) {
            phi[row] = phi[row - 1] + f64::from(node.score.exp());
        }
        let usual = len.clamp(1, USUAL);
        let expected = self.expected(usual as f64).filter(|&gain| gain > 0.0);
        // Within limits: where all drafts were flat so far, one good one is not to promise hundreds of tokens.
        let worth =
            expected.map_or(1.0, |expected| (phi[usual] / expected).clamp(*WORTH.start(), *WORTH.end()));
        if counts > 0 {
            // A stream's later drafts say ever less of other streams, but not all of them: an answer may begin otherwise than it
            // goes on. Streams of one round are one observation, since they often are of one kind.
            let weight = counts as f64 / (1.0 + f64::from(record.drafts()) / LATER) / drafters as f64;
            self.weight += weight - weight * self.weight / MEMORY;
            let share = weight / self.weight;
            self.samples = self.samples.saturating_add(1);
            self.spread += share * ((worth - 1.0).abs() - self.spread);
            // Beyond the last node that was taken, nodes are taken to be worth as much less as there are more of them.
            let last = if len == 0 { 0.0 } else { (phi[len] - phi[len - 1]) * len as f64 };
            let beyond = |nodes: usize| phi[len] + last * (nodes as f64 / len.max(1) as f64).ln();
            for (i, point) in self.points.iter_mut().enumerate() {
                let nodes = edge(i);
                let gained = if nodes <= len { phi[nodes] } else { beyond(nodes) };
                *point += share * (gained - *point);
            }
        }
        record.drafted(worth, round);
        worth
    }

    /// Drafts seen.
    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }

    /// How much streams differ in what they gain.
    pub(crate) fn spread(&self) -> f64 {
        self.spread.max(SPREAD[1])
    }

    /// Tokens that `nodes` nodes gain a new stream. `None` before the first draft.
    pub(crate) fn expected(&self, nodes: f64) -> Option<f64> {
        if self.samples == 0 {
            return None;
        }
        let above = bucket(nodes.ceil() as usize).min(POINTS - 1);
        let (x1, y1) = (edge(above) as f64, self.points[above]);
        let (x0, y0) = if above == 0 { (0.0, 0.0) } else { (edge(above - 1) as f64, self.points[above - 1]) };
        Some(y0 + (y1 - y0) * ((nodes - x0) / (x1 - x0)).clamp(0.0, 1.0))
    }
}
