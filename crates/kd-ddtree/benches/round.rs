//! What a round does beside building: masks and positions of all rows, the walk, calibrated rows, and the budget.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kd_ddtree::budget::{Allocator, Calibration, Load, Options, Outcome, Verdict};
use kd_ddtree::{DraftRow, Marginals, Tree, TreeBuilder, walk};

const DEPTHS: usize = 7;
const STREAMS: usize = 16;

/// Rows whose best token has half of the probability, the next half of the rest, and so on.
fn rows() -> Vec<DraftRow> {
    let logprobs: Vec<f32> = (1..=64).map(|rank| rank as f32 * -std::f32::consts::LN_2).collect();
    let tokens: Vec<u32> = (0..64).collect();
    (0..DEPTHS).map(|_| DraftRow::from_top_k(&tokens, &logprobs).expect("descending")).collect()
}

fn tree(nodes: usize) -> Tree {
    let mut tree = Tree::empty();
    TreeBuilder::new().build(&mut Marginals(&rows()), nodes, &mut tree).expect("within limits");
    assert_eq!(tree.len(), nodes);
    tree
}

fn trees(c: &mut Criterion) {
    for nodes in [16, 64, 128] {
        let tree = tree(nodes);
        c.bench_function(&format!("masks and positions of {nodes} nodes"), |b| {
            let mut words = Vec::with_capacity(2 * (nodes + 1));
            let mut positions = Vec::with_capacity(nodes + 1);
            b.iter(|| {
                words.clear();
                positions.clear();
                let tree = black_box(&tree);
                tree.rows().for_each(|row| words.extend_from_slice(tree.mask_words(row)));
                positions.extend(tree.positions(1000));
                black_box((words.len(), positions.len()))
            });
        });
        c.bench_function(&format!("walk of the deepest path of {nodes} nodes"), |b| {
            b.iter(|| walk(black_box(&tree), |_| Ok::<u32, ()>(0)));
        });
    }
}

fn budgets(c: &mut Criterion) {
    let rows = rows();
    let mut calibration = Calibration::new();
    c.bench_function("learning from one draft of seven rows", |b| {
        b.iter(|| calibration.learn(Verdict { rows: black_box(&rows), tokens: &[0, 0, 1, 0, 2] }));
    });
    c.bench_function("calibrating seven rows of 64", |b| b.iter(|| calibration.calibrate(black_box(&rows))));

    // A machine on which drafting pays, so that every round is decided anew.
    let mut allocator = Allocator::new(Options::default());
    let unread = [3; STREAMS];
    let load =
        Load { streams: STREAMS, rows: STREAMS, drafting: 0, context: 500, depths: DEPTHS, unread: &unread };
    let phi: Vec<f64> = (0..=1024).map(|n| 40.0 * (1.0 - (-f64::from(n) / 300.0).exp())).collect();
    c.bench_function("plan, choose and observe of 16 streams", |b| {
        b.iter(|| {
            let mut plan = allocator.plan(black_box(&load));
            let reach = plan.reach.min(1024);
            let nodes = allocator.choose(&mut plan, &load, &phi[..=reach]);
            let rows = STREAMS + nodes;
            let outcome = Outcome {
                rows,
                drafting: plan.drafters,
                context: 500,
                draft: 1e-3,
                verify: 1e-2 + 1e-5 * rows as f64,
                promised: phi[nodes],
                accepted: phi[nodes],
                ..Outcome::default()
            };
            allocator.observe(&plan, &outcome);
            black_box(nodes)
        });
    });
}

criterion_group!(benches, trees, budgets);
criterion_main!(benches);
