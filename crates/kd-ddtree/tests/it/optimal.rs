//! The tree is the best one, in the documented order, for every budget.

use kd_ddtree::{DraftRow, Tree};
use proptest::prelude::*;

use crate::common::{blocks, budgets, build, check_tree, shape};

/// Every token sequence that the rows allow, with its score: the whole search space.
fn all_prefixes(rows: &[DraftRow]) -> Vec<(Vec<u32>, f32)> {
    let mut all = Vec::new();
    let mut level = vec![(Vec::new(), 0.0f32)];
    for row in rows {
        level = level
            .iter()
            .flat_map(|(path, score)| {
                row.children().iter().map(move |c| ([&path[..], &[c.token]].concat(), score + c.logprob))
            })
            .collect();
        all.extend(level.iter().cloned());
    }
    all
}

/// The documented order taken literally: a list of candidates, searched for its best at every step.
fn literal_best_first(rows: &[DraftRow], budget: usize) -> Vec<(u32, u32)> {
    struct Candidate {
        score: f32,
        depth: usize,
        parent: usize,
        rank: usize,
    }
    let mut waiting: Vec<Candidate> = Vec::new();
    let mut placed = vec![(0.0f32, 0usize)];
    let mut nodes = Vec::new();
    let offer = |waiting: &mut Vec<Candidate>, placed: &[(f32, usize)], parent: usize, rank: usize| {
        let (score, depth) = placed[parent];
        if let Some(child) = rows.get(depth).and_then(|row| row.child(rank)) {
            waiting.push(Candidate { score: score + child.logprob, depth: depth + 1, parent, rank });
        }
    };
    offer(&mut waiting, &placed, 0, 0);
    while nodes.len() < budget && !waiting.is_empty() {
        // The list stays in creation order, and only a strictly better candidate replaces an earlier one.
        let mut best = 0;
        for (i, c) in waiting.iter().enumerate() {
            let b = &waiting[best];
            if c.score > b.score || c.score == b.score && c.depth < b.depth {
                best = i;
            }
        }
        let c = waiting.remove(best);
        let token = rows[c.depth - 1].children()[c.rank].token;
        placed.push((c.score, c.depth));
        nodes.push((token, c.parent as u32));
        offer(&mut waiting, &placed, c.parent, c.rank + 1);
        offer(&mut waiting, &placed, nodes.len(), 0);
    }
    nodes
}

fn paths(tree: &Tree) -> Vec<Vec<u32>> {
    tree.rows().skip(1).map(|row| tree.path_tokens(row).collect()).collect()
}

proptest! {
    #[test]
    fn the_best_prefixes_and_no_others(rows in blocks(5)) {
        let mut all = all_prefixes(&rows);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        for budget in budgets(rows.len()) {
            let tree = build(&rows, budget);
            check_tree(&tree);
            prop_assert_eq!(tree.len(), budget.min(all.len()), "a smaller tree only where the rows end");
            let scores: Vec<f32> = tree.nodes().iter().map(|n| n.score).collect();
            // A score above the last one's cannot be left out, so equal sorted scores mean a best set.
            let best: Vec<f32> = all.iter().take(budget).map(|(_, score)| *score).collect();
            prop_assert_eq!(scores, best);

            let mut paths = paths(&tree);
            paths.sort_unstable();
            prop_assert!(paths.windows(2).all(|p| p[0] != p[1]), "no prefix twice");
            for path in &paths {
                let parent = path[..path.len() - 1].to_vec();
                prop_assert!(parent.is_empty() || paths.binary_search(&parent).is_ok(), "closed under prefixes");
            }
        }
    }

    #[test]
    fn the_documented_order_literally(rows in blocks(6)) {
        for budget in budgets(rows.len()) {
            prop_assert_eq!(shape(&build(&rows, budget)), literal_best_first(&rows, budget));
        }
    }

    #[test]
    fn a_smaller_budget_gives_a_head_of_the_larger_tree(rows in blocks(6)) {
        let full = build(&rows, 128);
        for budget in budgets(rows.len()) {
            let mut head = full.clone();
            head.truncate(budget);
            prop_assert_eq!(build(&rows, budget), head);
        }
    }

    /// A score is the sum over its own path from the root, not a running difference over siblings.
    #[test]
    fn scores_do_not_drift(rows in blocks(8)) {
        let tree = build(&rows, 128);
        for row in tree.rows() {
            let sum = tree.path_tokens(row).zip(&rows).fold(0.0f32, |sum, (token, row)| {
                sum + row.children().iter().find(|c| c.token == token).map_or(f32::NAN, |c| c.logprob)
            });
            prop_assert_eq!(tree.score(row).to_bits(), (sum + 0.0).to_bits());
        }
    }
}

#[test]
fn top_k_of_the_budget_loses_nothing() {
    let logits: Vec<f32> = (0..7 * 300u32).map(|i| (i * 7919 % 1009) as f32 / 120.0).collect();
    for budget in [1, 2, 16, 64, 128] {
        let rows = |k| kd_ddtree::draft_rows(&logits, 300, k);
        assert_eq!(build(&rows(budget), budget), build(&rows(300), budget));
    }
}
