//! Rows and plain reference algorithms that the tests share.

use kd_ddtree::{DraftRow, MAX_NODES, Marginals, Tree, TreeBuilder, draft_rows};
use proptest::prelude::*;

/// Budgets at which masks, words and rows change their shape, for `depths` rows.
pub(crate) fn budgets(depths: usize) -> Vec<usize> {
    let mut all = vec![0, 1, 2, depths.saturating_sub(1), depths, depths + 1, 63, 64, 65, 127, MAX_NODES];
    all.sort_unstable();
    all.dedup();
    all
}

pub(crate) fn build(rows: &[DraftRow], budget: usize) -> Tree {
    let mut tree = Tree::empty();
    TreeBuilder::new().build(&mut Marginals(rows), budget, &mut tree).expect("budget within the limit");
    tree
}

/// (token, parent) of every node.
pub(crate) fn shape(tree: &Tree) -> Vec<(u32, u32)> {
    tree.nodes().iter().map(|n| (n.token, n.parent)).collect()
}

/// The ancestor mask by following parents.
pub(crate) fn mask_by_parents(tree: &Tree, row: usize) -> u128 {
    let (mut mask, mut at) = (0, row);
    while at != 0 {
        mask |= 1 << (at - 1);
        at = tree.nodes()[at - 1].parent as usize;
    }
    mask
}

/// Everything that holds for any tree: parents first, depths, masks, paths, children found again.
pub(crate) fn check_tree(tree: &Tree) {
    assert!(tree.len() <= MAX_NODES);
    assert_eq!(tree.mask_width(), if tree.len() > 64 { 2 } else { 1 });
    for row in tree.rows() {
        let expected = mask_by_parents(tree, row);
        let [low, high] = tree.mask(row);
        assert_eq!(u128::from(low) | u128::from(high) << 64, expected, "mask of row {row}");
        assert_eq!(tree.mask_words(row), &[low, high][..tree.mask_width()]);
        assert!(tree.mask_width() == 2 || high == 0);
        let path: Vec<usize> = tree.path(row).collect();
        assert_eq!(path.len(), tree.depth(row));
        assert_eq!(path, (1..=row).filter(|r| expected >> (r - 1) & 1 == 1).collect::<Vec<_>>());
    }
    for (index, node) in tree.nodes().iter().enumerate() {
        let (row, parent) = (index + 1, node.parent as usize);
        assert!(parent < row, "row {row} comes before its parent {parent}");
        assert_eq!(node.depth as usize, tree.depth(parent) + 1);
    }
}

/// Blocks of 1 to 4 rows over a small vocabulary. Values on a coarse grid make ties common.
pub(crate) fn blocks(vocab: usize) -> impl Strategy<Value = Vec<DraftRow>> {
    let value =
        prop_oneof![4 => (-8i8..8).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY), 4 => -6f32..6.0];
    proptest::collection::vec(value, vocab..=4 * vocab)
        .prop_map(move |logits| draft_rows(&logits, vocab, vocab))
}
