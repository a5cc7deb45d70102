//! Faults that other engines had, and inputs that invite them.

use kd_ddtree::{
    BuildError, Child, DraftRow, MAX_NODES, Marginals, Scorer, Tree, TreeBuilder, draft_rows, walk,
};

use crate::common::{budgets, build, check_tree, shape};

/// Blocks as drafters give them: a peaked head and a long tail, `vocab` 400.
fn block(depths: usize) -> Vec<f32> {
    (0..depths * 400).map(|i| ((i * 7919 + 13) % 1013) as f32 / 1013.0 * 9.0).collect()
}

/// Fault 33: a budget below the block size crashed. Every budget against every depth, one builder for all.
#[test]
fn fault_33_every_budget_against_every_depth() {
    let mut builder = TreeBuilder::new();
    let mut tree = Tree::empty();
    for depths in [0, 1, 2, 7, 15, 16] {
        let rows = draft_rows(&block(depths), 400, 128);
        assert_eq!(rows.len(), depths);
        for budget in budgets(depths) {
            builder.build(&mut Marginals(&rows), budget, &mut tree).expect("within the limit");
            check_tree(&tree);
            assert_eq!(tree.len(), if depths == 0 { 0 } else { budget });
            assert!(tree.max_depth() <= depths);
            assert_eq!(tree, build(&rows, budget), "scratch of earlier rounds leaves no trace");
        }
    }
    let error = builder.build(&mut Marginals(&[]), MAX_NODES + 1, &mut tree);
    assert_eq!(error, Err(BuildError::Budget { stream: 0, budget: 129, limit: 128 }));
}

/// Fault 26: buffers sized by the block instead of the budget.
#[test]
fn fault_26_budgets_far_from_the_block_size() {
    let rows = draft_rows(&block(1), 400, 128);
    let bush = build(&rows, 128);
    assert_eq!((bush.len(), bush.max_depth()), (128, 1));
    let sure: Vec<DraftRow> = (0..200).map(|t| DraftRow::from_top_k(&[t], &[0.0]).expect("a row")).collect();
    let spine = build(&sure, 128);
    check_tree(&spine);
    assert_eq!((spine.len(), spine.max_depth()), (128, 128), "200 rows, 128 nodes");
}

/// Fault 27: a tree walked as though it were a chain, and rows mapped by index instead of by parent.
#[test]
fn fault_27_a_walk_follows_parents_not_indices() {
    let (tree, _) = Tree::from_parents(&[5, 6, 5, 8, 5], &[-1, -1, 1, 0, 2]).expect("a tree");
    assert!(tree.positions(10).eq([10, 11, 11, 12, 12, 13]), "positions count depth, not rows");
    // The target answers by path: 6, 5, 5, then 9.
    let outcome = walk(&tree, |row| Ok::<u32, ()>([6, 5, 5, 9][tree.depth(row)])).expect("no error");
    assert_eq!((outcome.rows, outcome.accepted, outcome.next_token), (vec![0, 2, 3, 5], vec![6, 5, 5], 9));
}

#[test]
fn a_walk_asks_for_visited_rows_only() {
    let tree = build(&draft_rows(&block(7), 400, 64), 64);
    let mut asked = Vec::new();
    let outcome = walk(&tree, |row| {
        asked.push(row);
        Ok::<u32, ()>(tree.nodes().iter().find(|n| n.parent as usize == row).map_or(399, |n| n.token))
    })
    .expect("no error");
    assert_eq!(asked, outcome.rows);
    assert!(outcome.rows.windows(2).all(|r| r[0] < r[1]), "rows ascend, so a forward move is safe");
    assert_eq!(outcome.tokens().count(), outcome.rows.len());
    assert!(outcome.tokens().last() == Some(outcome.next_token));
}

#[test]
fn a_walk_over_the_empty_tree_is_plain_decoding() {
    let outcome = walk(&Tree::empty(), |_| Ok::<u32, ()>(42)).expect("no error");
    assert_eq!((outcome.rows, outcome.accepted, outcome.next_token), (vec![0], vec![], 42));
}

#[test]
fn a_walk_ends_with_the_first_error() {
    let (tree, _) = Tree::from_parents(&[1, 2], &[-1, 0]).expect("a tree");
    let outcome = walk(&tree, |row| if row == 0 { Ok(1) } else { Err("no finite maximum") });
    assert_eq!(outcome, Err("no finite maximum"));
}

/// A saturated row (q = 1) ties a child with its parent, and a constant row ties all siblings.
#[test]
fn ties_are_reproducible() {
    let row = |t: &[u32], l: &[f32]| DraftRow::from_top_k(t, l).expect("a row");
    let rows = [row(&[1, 2], &[-0.5, -0.5]), row(&[3], &[0.0]), row(&[4, 5], &[-0.0, -0.0])];
    // All candidates tie at -0.5: the shallower goes first, then the older.
    let expected = [(1, 0), (2, 0), (3, 1), (3, 2), (4, 3), (4, 4), (5, 3), (5, 4)];
    for _ in 0..3 {
        assert_eq!(shape(&build(&rows, 8)), expected);
    }
    let flat = draft_rows(&[1.0; 3 * 50], 50, 50);
    let tree = build(&flat, 128);
    assert_eq!(tree.nodes()[..50].iter().map(|n| n.token).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
}

/// A conditional scorer that answers by the parent's path, and misbehaves at the ends of its lists.
struct Conditional;

impl Scorer for Conditional {
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child> {
        let last = tree.path_tokens(parent).last().unwrap_or(1);
        let logprob = [-0.1, -1.0, [f32::NAN, f32::NEG_INFINITY, f32::INFINITY][parent % 3], -2.0][rank];
        (tree.depth(parent) < 4).then_some(Child { token: 2 * last + rank as u32, logprob })
    }
}

#[test]
fn a_scorer_sees_the_path_and_what_is_not_finite_ends_its_list() {
    let mut tree = Tree::empty();
    TreeBuilder::new().build(&mut Conditional, 128, &mut tree).expect("within the limit");
    check_tree(&tree);
    assert_eq!(tree.len(), 2 + 4 + 8 + 16, "two children a node");
    for node in tree.nodes() {
        let above = if node.parent == 0 { 1 } else { tree.nodes()[node.parent as usize - 1].token };
        assert_eq!(node.token / 2, above);
        assert!(node.score.is_finite());
    }
}

#[test]
fn a_sum_that_overflows_is_no_node() {
    let row = DraftRow::from_top_k(&[1], &[-3.0e38]).expect("a row");
    assert_eq!(build(&[row.clone(), row], 8).len(), 1);
}
