//! Trees given by hand: chains, parents in any order, masks and paths.

use kd_ddtree::{Child, MAX_NODES, Tree, TreeError};
use proptest::prelude::*;

use crate::common::{check_tree, shape};

proptest! {
    #[test]
    fn parents_in_any_order(
        choices in proptest::collection::vec(any::<proptest::sample::Index>(), 1..=MAX_NODES),
        keys in proptest::collection::vec(any::<u32>(), MAX_NODES),
    ) {
        // A tree in topological order (parents as rows), then its nodes shuffled.
        let nodes = choices.len();
        let rows: Vec<usize> = choices.iter().enumerate().map(|(i, choice)| choice.index(i + 1)).collect();
        let mut shuffled: Vec<usize> = (0..nodes).collect();
        shuffled.sort_by_key(|&node| (keys[node], node));
        let place_of = |node: usize| shuffled.iter().position(|&n| n == node).map_or(-1, |place| place as i64);
        let tokens: Vec<u32> = shuffled.iter().map(|&node| node as u32).collect();
        let parents: Vec<i64> =
            shuffled.iter().map(|&node| rows[node].checked_sub(1).map_or(-1, place_of)).collect();

        let (tree, order) = Tree::from_parents(&tokens, &parents).expect("a tree");
        check_tree(&tree);
        let mut seen = order.clone();
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..nodes), "a permutation");
        for (index, node) in tree.nodes().iter().enumerate() {
            prop_assert_eq!(node.token, tokens[order[index]]);
            let parent = (node.parent as usize).checked_sub(1).map_or(-1, |p| order[p] as i64);
            prop_assert_eq!(parent, parents[order[index]]);
        }
        // What is in order stays in order.
        let again: Vec<i64> = tree.nodes().iter().map(|n| i64::from(n.parent) - 1).collect();
        let tokens: Vec<u32> = tree.nodes().iter().map(|n| n.token).collect();
        let (same, order) = Tree::from_parents(&tokens, &again).expect("a tree");
        prop_assert_eq!(same, tree);
        prop_assert!(order.into_iter().eq(0..nodes));
    }
}

#[test]
fn parents_after_children() {
    // The golden tree `unsorted`: 1 is the root's child, 0 and 2 hang below it, 3 below 0, 5 below 3, 4 and 6 below 2.
    let (tree, order) =
        Tree::from_parents(&[10, 11, 12, 13, 14, 15, 16], &[1, -1, 1, 0, 2, 3, 2]).expect("a tree");
    assert_eq!(order, [1, 2, 4, 6, 0, 3, 5]);
    assert_eq!(shape(&tree), [(11, 0), (12, 1), (14, 2), (16, 2), (10, 1), (13, 5), (15, 6)]);
    assert!(tree.positions(40).eq([40, 41, 42, 43, 43, 42, 43, 44]));
    assert!(tree.path_tokens(7).eq([11, 10, 13, 15]));
    assert_eq!(tree.mask_words(7), [0b111_0001]);
}

#[test]
fn what_is_no_tree_is_refused_by_name() {
    let from = |parents: &[i64]| Tree::from_parents(&vec![7; parents.len()], parents);
    assert_eq!(from(&[-1, 2]), Err(TreeError::Parent { node: 1, parent: 2, nodes: 2 }));
    assert_eq!(from(&[-2]), Err(TreeError::Parent { node: 0, parent: -2, nodes: 1 }));
    assert_eq!(from(&[i64::MIN]), Err(TreeError::Parent { node: 0, parent: i64::MIN, nodes: 1 }));
    assert_eq!(from(&[-1, 1]), Err(TreeError::Cycle { node: 1 }), "its own parent");
    assert_eq!(from(&[-1, 3, 1, 2, 0]), Err(TreeError::Cycle { node: 1 }));
    assert_eq!(Tree::from_parents(&[1], &[-1, 0]), Err(TreeError::Length { tokens: 1, parents: 2 }));
    assert_eq!(from(&[-1; 129]), Err(TreeError::TooManyNodes { nodes: 129, limit: 128 }));
    assert!(from(&[-1; 128]).is_ok());
    assert_eq!(from(&[]), Ok((Tree::empty(), vec![])));
}

#[test]
fn a_chain_of_any_length() {
    let links = |n: usize| (0..n as u32).map(|token| Child { token, logprob: -0.5 });
    for n in [0, 1, 2, 63, 64, 65, 127, 128] {
        let tree = Tree::chain(links(n)).expect("within the limit");
        check_tree(&tree);
        assert_eq!((tree.len(), tree.max_depth()), (n, n));
        assert_eq!(tree.score(n), -0.5 * n as f32);
        assert!(tree.path_tokens(n).eq(0..n as u32));
    }
    assert_eq!(Tree::chain(links(129)), Err(TreeError::TooManyNodes { nodes: 129, limit: 128 }));
    assert_eq!(Tree::chain(links(usize::MAX)), Err(TreeError::TooManyNodes { nodes: 129, limit: 128 }));
}

#[test]
fn equal_tokens_below_different_parents_are_different_nodes() {
    let (tree, _) = Tree::from_parents(&[5, 6, 5, 5], &[-1, -1, 1, 0]).expect("a tree");
    assert_eq!((tree.child(0, 5), tree.child(1, 5), tree.child(2, 5)), (Some(1), Some(4), Some(3)));
    assert_eq!((tree.child(0, 7), tree.child(4, 5)), (None, None));
}
