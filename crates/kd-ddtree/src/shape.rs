//! Trees that are not built from scores: chains and trees given by their parents.

use crate::error::TreeError;
use crate::scorer::Child;
use crate::tree::{MAX_NODES, Tree};

impl Tree {
    /// The tree in which every node has one child: plain speculative decoding.
    ///
    /// # Errors
    /// If there are more than [`MAX_NODES`] tokens.
    pub fn chain(children: impl IntoIterator<Item = Child>) -> Result<Tree, TreeError> {
        let mut tree = Tree::empty();
        let mut last = 0;
        for child in children {
            check_size(tree.len() + 1)?;
            last = tree.push(last, child.token, tree.score(last) + child.logprob);
        }
        Ok(tree)
    }

    /// The tree whose node `i` has the token `tokens[i]` and hangs below node `parents[i]`, or below the root if
    /// that is -1. Parents may come after their children: the second result lists, for rows `1..` of the tree, the
    /// index `i` that the row had in the lists. A list that is in topological order keeps its order. Scores are 0.
    ///
    /// Equal tokens below different parents are ordinary. Below one parent they are allowed too, since each node is
    /// well defined, but a [`walk`](crate::walk) only ever reaches the first.
    ///
    /// # Errors
    /// If the lists differ in length or exceed [`MAX_NODES`], if a parent is out of range, or if there is a cycle.
    pub fn from_parents(tokens: &[u32], parents: &[i64]) -> Result<(Tree, Vec<usize>), TreeError> {
        let nodes = tokens.len();
        if parents.len() != nodes {
            return Err(TreeError::Length { tokens: nodes, parents: parents.len() });
        }
        check_size(nodes)?;
        for (node, &parent) in parents.iter().enumerate() {
            if !(-1..nodes as i64).contains(&parent) {
                return Err(TreeError::Parent { node, parent, nodes });
            }
        }
        let mut tree = Tree::empty();
        let mut order = Vec::with_capacity(nodes);
        let mut row_of: Vec<Option<usize>> = vec![None; nodes];
        // Each sweep places every node whose parent is placed; at most `nodes` sweeps over at most 128 nodes.
        while order.len() < nodes {
            let placed = order.len();
            for node in 0..nodes {
                let parent = usize::try_from(parents[node]).map_or(Some(0), |parent| row_of[parent]);
                if let (None, Some(parent)) = (row_of[node], parent) {
                    row_of[node] = Some(tree.push(parent, tokens[node], 0.0));
                    order.push(node);
                }
            }
            if order.len() == placed {
                let node = row_of.iter().position(Option::is_none).unwrap_or(0);
                return Err(TreeError::Cycle { node });
            }
        }
        Ok((tree, order))
    }
}

fn check_size(nodes: usize) -> Result<(), TreeError> {
    if nodes > MAX_NODES { Err(TreeError::TooManyNodes { nodes, limit: MAX_NODES }) } else { Ok(()) }
}
