//! The demo pair's trees: built from its drafter's logits, and its whole recorded decoding of one prompt.

use std::collections::BTreeMap;

use kd_ddtree::{DraftRow, Tree, draft_rows, walk};
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::common::{build, check_tree, shape};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/golden/");

#[derive(Deserialize)]
struct Golden {
    budget: usize,
    block_size: usize,
    cases: Vec<Case>,
    trace: Trace,
}

#[derive(Deserialize)]
struct Case {
    first_tree: GoldenTree,
}

#[derive(Deserialize)]
struct GoldenTree {
    tokens: Vec<u32>,
    parents: Vec<u32>,
    depths: Vec<u32>,
    logprobs: Vec<f32>,
}

#[derive(Deserialize)]
struct Trace {
    case: usize,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    start: usize,
    root: u32,
    #[serde(flatten)]
    tree: GoldenTree,
    accepted: Vec<usize>,
    next_token: u32,
}

fn golden() -> Golden {
    let text = std::fs::read_to_string(format!("{DIR}golden.json")).expect("golden.json");
    serde_json::from_str(&text).expect("golden.json as documented")
}

/// The first drafted block of every case: rows of the vocabulary's `k` best tokens.
fn first_blocks(golden: &Golden, k: usize) -> Vec<Vec<DraftRow>> {
    let bytes = std::fs::read(format!("{DIR}golden.safetensors")).expect("golden.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("golden.safetensors");
    (0..golden.cases.len())
        .map(|case| {
            let tensor = tensors.tensor(&format!("case{case}.draft_logits")).expect("draft_logits");
            let (values, _) = tensor.data().as_chunks::<4>();
            let logits: Vec<f32> = values.iter().map(|&b| f32::from_le_bytes(b)).collect();
            let rows = draft_rows(&logits, tensor.shape()[1], k);
            assert_eq!(rows.len(), golden.block_size - 1);
            rows
        })
        .collect()
}

fn assert_same(tree: &Tree, expected: &GoldenTree, name: &str) {
    let parents: Vec<(u32, u32)> =
        expected.tokens.iter().copied().zip(expected.parents.iter().copied()).collect();
    assert_eq!(shape(tree), parents, "{name}");
    assert_eq!(tree.nodes().iter().map(|n| n.depth).collect::<Vec<_>>(), expected.depths, "{name}");
    for (node, logprob) in tree.nodes().iter().zip(&expected.logprobs) {
        assert!((node.score - logprob).abs() < 1e-4, "{name}: {node:?}, expected {logprob}");
    }
    check_tree(tree);
}

#[test]
fn the_first_tree_of_every_prompt() {
    let golden = golden();
    assert_eq!(golden.cases.len(), 8);
    for k in [golden.budget, 64] {
        for (index, (case, rows)) in golden.cases.iter().zip(first_blocks(&golden, k)).enumerate() {
            assert_same(&build(&rows, golden.budget), &case.first_tree, &format!("case {index}, K = {k}"));
        }
    }
}

#[test]
fn the_traced_prompt_starts_with_its_first_tree() {
    let golden = golden();
    let rows = &first_blocks(&golden, golden.budget)[golden.trace.case];
    assert_same(&build(rows, golden.budget), &golden.trace.steps[0].tree, "step 0");
}

/// The rows that a recorded tree shows: the tokens it holds at each depth, scored by node minus parent.
fn rows_shown_by(tree: &GoldenTree) -> Vec<DraftRow> {
    let mut rows: BTreeMap<u32, BTreeMap<u32, f32>> = BTreeMap::new();
    for (index, &depth) in tree.depths.iter().enumerate() {
        let parent = tree.parents[index] as usize;
        let above = if parent == 0 { 0.0 } else { tree.logprobs[parent - 1] };
        rows.entry(depth).or_default().entry(tree.tokens[index]).or_insert(tree.logprobs[index] - above);
    }
    rows.into_values()
        .map(|row| {
            let mut row: Vec<(u32, f32)> = row.into_iter().collect();
            row.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (tokens, logprobs): (Vec<u32>, Vec<f32>) = row.into_iter().unzip();
            DraftRow::from_top_k(&tokens, &logprobs).expect("sorted")
        })
        .collect()
}

/// The recorded trees are best first under the marginals they show themselves, and the walk over each, answered
/// with the recorded path, visits just the recorded rows and leads to the next step.
#[test]
fn the_whole_trace() {
    let golden = golden();
    let steps = &golden.trace.steps;
    assert_eq!(steps.len(), 21);
    for (index, step) in steps.iter().enumerate() {
        let name = format!("step {index}");
        let tree = build(&rows_shown_by(&step.tree), golden.budget);
        assert_same(&tree, &step.tree, &name);

        let parents: Vec<i64> = step.tree.parents.iter().map(|&p| i64::from(p) - 1).collect();
        let (given, order) = Tree::from_parents(&step.tree.tokens, &parents).expect("a tree");
        assert_eq!(shape(&given), shape(&tree), "{name}");
        assert!(order.into_iter().eq(0..tree.len()), "{name}: the list was in order already");

        let mut visited = Vec::new();
        let outcome = walk(&tree, |row| {
            visited.push(row);
            let at = step.accepted.iter().position(|&r| r == row).ok_or("a row outside the recorded path")?;
            Ok::<u32, &str>(match step.accepted.get(at + 1) {
                Some(&next) => step.tree.tokens[next - 1],
                None => step.next_token,
            })
        })
        .expect(&name);
        assert_eq!(outcome.rows, step.accepted, "{name}");
        assert_eq!(visited, step.accepted, "{name}");
        assert_eq!(outcome.next_token, step.next_token, "{name}");
        if let Some(next) = steps.get(index + 1) {
            assert_eq!((step.start + outcome.tokens().count(), outcome.next_token), (next.start, next.root));
        }
    }
}
