//! The best-first builder, for one tree or for many at once.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::candidate::{Frontier, Head, MAX_STREAMS};
use crate::error::BuildError;
use crate::forest::{Forest, StreamLimits};
use crate::scorer::Scorer;
use crate::tree::Tree;

/// Builds draft trees best first; keeps its scratch, so that once warm a round allocates nothing.
///
/// The order of nodes is documented at the [crate's root](crate).
#[derive(Debug, Default)]
pub struct TreeBuilder {
    /// The best candidate of each stream that may still grow.
    heap: BinaryHeap<Head>,
    frontiers: Vec<Frontier>,
}

impl TreeBuilder {
    /// A builder without scratch yet.
    pub fn new() -> TreeBuilder {
        TreeBuilder::default()
    }

    /// Replaces `tree` by the best tree of at most `budget` nodes: fewer where the scorer has no more to offer, none
    /// for a budget of 0. O(B log B) for B nodes.
    ///
    /// # Errors
    /// If the budget exceeds [`MAX_NODES`](crate::MAX_NODES).
    pub fn build<S: Scorer>(
        &mut self,
        scorer: &mut S,
        budget: usize,
        tree: &mut Tree,
    ) -> Result<(), BuildError> {
        let limits = StreamLimits { floor: 0, cap: budget };
        limits.check(0)?;
        self.grow(&mut [scorer], &[limits], budget, std::slice::from_mut(tree), |_| ());
        Ok(())
    }

    /// Replaces `forest` by one tree for each scorer, with at most `budget` nodes in all: first up to each stream's
    /// floor, then up to its cap, and at any time the best candidate among the streams that may still grow. Each
    /// tree is the one that [`build`](TreeBuilder::build) gives for as many nodes.
    ///
    /// # Errors
    /// If scorers and limits differ in number or exceed [`MAX_STREAMS`], or if a limit is impossible.
    pub fn build_forest<S: Scorer>(
        &mut self,
        scorers: &mut [S],
        limits: &[StreamLimits],
        budget: usize,
        forest: &mut Forest,
    ) -> Result<(), BuildError> {
        if scorers.len() != limits.len() {
            return Err(BuildError::Streams { scorers: scorers.len(), limits: limits.len() });
        }
        if scorers.len() > MAX_STREAMS {
            return Err(BuildError::TooManyStreams { streams: scorers.len(), limit: MAX_STREAMS });
        }
        for (stream, limits) in limits.iter().enumerate() {
            limits.check(stream)?;
        }
        let (trees, order) = forest.reset(scorers.len());
        self.grow(scorers, limits, budget, trees, |stream| order.push(stream as u32));
        Ok(())
    }

    /// The search. All slices have one entry for each stream; `taken(stream)` hears of every node.
    fn grow<S: Scorer>(
        &mut self,
        scorers: &mut [S],
        limits: &[StreamLimits],
        budget: usize,
        trees: &mut [Tree],
        mut taken: impl FnMut(usize),
    ) {
        if self.frontiers.len() < scorers.len() {
            self.frontiers.resize_with(scorers.len(), Frontier::default);
        }
        for (stream, scorer) in scorers.iter_mut().enumerate() {
            trees[stream].clear();
            self.frontiers[stream].start(scorer, &trees[stream]);
        }
        let left = self.grow_to(|l| l.floor, scorers, limits, budget, trees, &mut taken);
        self.grow_to(|l| l.cap, scorers, limits, left, trees, &mut taken);
    }

    /// Takes the best candidates while the budget lasts, in each stream up to its quota. Returns the budget left.
    fn grow_to<S: Scorer>(
        &mut self,
        quota: impl Fn(&StreamLimits) -> usize,
        scorers: &mut [S],
        limits: &[StreamLimits],
        budget: usize,
        trees: &mut [Tree],
        taken: &mut impl FnMut(usize),
    ) -> usize {
        let TreeBuilder { heap, frontiers } = self;
        heap.clear();
        for (stream, tree) in trees.iter().enumerate() {
            if tree.len() < quota(&limits[stream])
                && let Some(best) = frontiers[stream].head(stream)
            {
                heap.push(best);
            }
        }
        let mut left = budget;
        while left > 0 {
            let Some(mut top) = heap.peek_mut() else { break };
            let stream = top.stream();
            let (frontier, tree) = (&mut frontiers[stream], &mut trees[stream]);
            if frontier.advance(&mut scorers[stream], tree) {
                taken(stream);
                left -= 1;
            }
            let may_grow = tree.len() < quota(&limits[stream]);
            match frontier.head(stream).filter(|_| may_grow) {
                Some(best) => *top = best,
                None => drop(PeekMut::pop(top)),
            }
        }
        left
    }
}
