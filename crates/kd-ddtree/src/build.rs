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
        let bed = &mut Bed { scorers: &mut [scorer], limits: &[limits], trees: std::slice::from_mut(tree) };
        self.grow(bed, |nodes, _| nodes < budget, |_| ());
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
        self.build_forest_while(scorers, limits, forest, |nodes, _| nodes < budget)
    }

    /// As [`build_forest`](TreeBuilder::build_forest), as long as `wants` the next node: it is asked with the number of nodes
    /// in all trees and the score of the one to come, which is not above those before it unless they were owed to a floor.
    ///
    /// # Errors
    /// As [`build_forest`](TreeBuilder::build_forest).
    pub fn build_forest_while<S: Scorer>(
        &mut self,
        scorers: &mut [S],
        limits: &[StreamLimits],
        forest: &mut Forest,
        wants: impl FnMut(usize, f32) -> bool,
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
        self.grow(&mut Bed { scorers, limits, trees }, wants, |stream| order.push(stream as u32));
        Ok(())
    }

    /// The search; `wants` is asked before every node and `taken(stream)` hears of it.
    fn grow<S: Scorer>(
        &mut self,
        bed: &mut Bed<'_, S>,
        mut wants: impl FnMut(usize, f32) -> bool,
        mut taken: impl FnMut(usize),
    ) {
        if self.frontiers.len() < bed.scorers.len() {
            self.frontiers.resize_with(bed.scorers.len(), Frontier::default);
        }
        for (stream, scorer) in bed.scorers.iter_mut().enumerate() {
            bed.trees[stream].clear();
            self.frontiers[stream].start(scorer, &bed.trees[stream]);
        }
        let mut nodes = 0;
        for quota in [|l: &StreamLimits| l.floor, |l: &StreamLimits| l.cap] {
            self.grow_to(quota, bed, &mut nodes, &mut wants, &mut taken);
        }
    }

    /// Takes the best candidates while they are wanted, in each stream up to its quota. Counts the nodes of all trees.
    fn grow_to<S: Scorer>(
        &mut self,
        quota: impl Fn(&StreamLimits) -> usize,
        bed: &mut Bed<'_, S>,
        nodes: &mut usize,
        wants: &mut impl FnMut(usize, f32) -> bool,
        taken: &mut impl FnMut(usize),
    ) {
        let TreeBuilder { heap, frontiers } = self;
        let Bed { scorers, limits, trees } = bed;
        heap.clear();
        for (stream, tree) in trees.iter().enumerate() {
            if tree.len() < quota(&limits[stream])
                && let Some(best) = frontiers[stream].head(stream)
            {
                heap.push(best);
            }
        }
        while let Some(mut top) = heap.peek_mut().filter(|top| wants(*nodes, top.score())) {
            let stream = top.stream();
            let (frontier, tree) = (&mut frontiers[stream], &mut trees[stream]);
            if frontier.advance(&mut scorers[stream], tree) {
                taken(stream);
                *nodes += 1;
            }
            let may_grow = tree.len() < quota(&limits[stream]);
            match frontier.head(stream).filter(|_| may_grow) {
                Some(best) => *top = best,
                None => drop(PeekMut::pop(top)),
            }
        }
    }
}

/// Where trees grow: one entry for each stream.
struct Bed<'a, S> {
    scorers: &'a mut [S],
    limits: &'a [StreamLimits],
    trees: &'a mut [Tree],
}
