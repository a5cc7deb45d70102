//! The trees of many streams grown under one budget, and what each further node is worth.

use crate::error::BuildError;
use crate::tree::{MAX_NODES, Tree};

/// How many nodes one stream of a forest gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Nodes served before any stream gets more than its own floor.
    pub floor: usize,
    /// Nodes never exceeded, at most [`MAX_NODES`].
    pub cap: usize,
}

impl Default for StreamLimits {
    /// No promise, and as much as a tree can hold.
    fn default() -> Self {
        StreamLimits { floor: 0, cap: MAX_NODES }
    }
}

impl StreamLimits {
    pub(crate) fn check(self, stream: usize) -> Result<(), BuildError> {
        let StreamLimits { floor, cap } = self;
        if cap > MAX_NODES {
            return Err(BuildError::Budget { stream, budget: cap, limit: MAX_NODES });
        }
        if floor > cap { Err(BuildError::Floor { stream, floor, cap }) } else { Ok(()) }
    }
}

/// One tree for each stream, with the order in which their nodes were taken.
#[derive(Debug, Clone, Default)]
pub struct Forest {
    /// The first `streams` are in use; the others keep their room.
    trees: Vec<Tree>,
    streams: usize,
    order: Vec<u32>,
}

impl Forest {
    /// A forest of no stream.
    pub fn new() -> Forest {
        Forest::default()
    }

    /// The trees, by stream.
    pub fn trees(&self) -> &[Tree] {
        &self.trees[..self.streams]
    }

    /// The stream of each node, in the order in which the nodes were taken over all streams.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Φ(n) for n = 0..=nodes: the sum of exp(score) over the first n nodes taken, which is the number of drafted
    /// tokens that n nodes are expected to gain in one round of all streams (CaDDTree, arXiv 2606.01813). Summed
    /// as it is read.
    pub fn phi(&self) -> impl Iterator<Item = f64> + '_ {
        let mut taken = vec![0; self.streams];
        let mut sum = 0.0;
        let gains = self.order.iter().map(move |&stream| {
            let row = &mut taken[stream as usize];
            *row += 1;
            sum += f64::from(self.trees[stream as usize].score(*row).exp());
            sum
        });
        std::iter::once(0.0).chain(gains)
    }

    /// Nodes of all trees together.
    pub fn nodes(&self) -> usize {
        self.order.len()
    }

    /// Keeps the first `nodes` nodes that were taken: the forest that this smaller budget would have given.
    pub fn truncate(&mut self, nodes: usize) {
        let keep = nodes.min(self.nodes());
        // From the back, each node taken is the last one left of its tree.
        for &stream in self.order[keep..].iter().rev() {
            let tree = &mut self.trees[stream as usize];
            tree.truncate(tree.len() - 1);
        }
        self.order.truncate(keep);
    }

    /// Empties the forest for `streams` streams; trees and order are then filled together.
    pub(crate) fn reset(&mut self, streams: usize) -> (&mut [Tree], &mut Vec<u32>) {
        if self.trees.len() < streams {
            self.trees.resize_with(streams, Tree::empty);
        }
        self.streams = streams;
        self.order.clear();
        (&mut self.trees[..streams], &mut self.order)
    }
}
