//! Where candidates and their log-probabilities come from.

use crate::row::DraftRow;
use crate::tree::Tree;

/// A candidate token with its natural log-probability given its parent's path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Child {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of the conditional probability.
    pub logprob: f32,
}

/// Ranks the possible children of a node.
///
/// The builder asks for rank 0 of a parent first and for rank `r + 1` only after rank `r` was taken, so a scorer
/// may compute lazily. It asks once more when it takes a child, so an expensive scorer keeps what it computed. It may look at the whole path of the parent, which is what conditional scorers need.
/// For one parent the answers must be a fixed list: distinct tokens, log-probabilities descending. The tree is the
/// optimal one if no log-probability is above 0; a scorer with bonuses still gets parents before their children.
pub trait Scorer {
    /// The `rank`-th best child (from 0) of row `parent` (0 = root) of the tree grown so far, or `None` at the end
    /// of the list. An answer whose log-probability is not finite, or makes the score so, ends the list too.
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child>;
}

impl<S: Scorer + ?Sized> Scorer for &mut S {
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child> {
        (**self).child(tree, parent, rank)
    }
}

/// Independent rows, one for each depth, as a block drafter gives them: row `d` scores every child of a node of
/// depth `d`, whatever its path.
#[derive(Debug, Clone, Copy)]
pub struct Marginals<'a>(pub &'a [DraftRow]);

impl Scorer for Marginals<'_> {
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child> {
        self.0.get(tree.depth(parent))?.child(rank)
    }
}
