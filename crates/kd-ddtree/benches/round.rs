//! What a round does beside building: masks and positions of all rows, the walk, calibrated rows, and the budget.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kd_ddtree::budget::{Allocator, Calibration, Candidate, Load, Options, Outcome, Record, Verdict};
use kd_ddtree::{DraftRow, Forest, Marginals, Tree, TreeBuilder, walk};

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
    let (mut calibration, mut record) = (Calibration::new(), Record::new(0.0));
    c.bench_function("learning from one draft of seven rows", |b| {
        b.iter(|| {
            calibration.learn(&mut record, Verdict { rows: black_box(&rows), tokens: &[0, 0, 1, 0, 2] })
        });
    });
    c.bench_function("calibrating seven rows of 64", |b| {
        b.iter(|| calibration.calibrate(black_box(&rows), &record));
    });

    // A machine on which drafting pays, so that every round is decided anew.
    let mut allocator = Allocator::new(Options::default());
    let candidate = |id| Candidate { id, record, unread: 3, left: 100 };
    let mut candidates: Vec<Candidate> = (0..STREAMS).map(candidate).collect();
    let (mut builder, mut forest) = (TreeBuilder::new(), Forest::new());
    c.bench_function("plan, grow, choose and observe of 16 streams", |b| {
        b.iter(|| {
            allocator.rank(STREAMS, &mut candidates);
            let candidates = &*candidates;
            let load = Load {
                streams: STREAMS,
                rows: STREAMS,
                drafting: 0,
                context: 500,
                depths: DEPTHS,
                candidates,
            };
            let plan = allocator.plan(black_box(&load));
            let mut growth = allocator.growth(&plan, &load);
            let scorer = |candidate: &Candidate| allocator.scorer(&candidate.record, &rows);
            let mut scorers: Vec<_> = candidates[..plan.drafters].iter().map(scorer).collect();
            let limits = vec![allocator.options().limits; plan.drafters];
            builder
                .build_forest_while(&mut scorers, &limits, &mut forest, |nodes, score| {
                    growth.wants(nodes, score)
                })
                .expect("within limits");
            for tree in forest.trees() {
                allocator.drafted(&plan, &mut record, tree);
            }
            let (nodes, promised) = growth.chosen(&forest);
            let rows = STREAMS + nodes;
            let outcome = Outcome {
                rows,
                drafting: plan.drafters,
                context: 500,
                draft: 1e-3,
                verify: 1e-2 + 1e-5 * rows as f64,
                promised,
                accepted: promised,
                ..Outcome::default()
            };
            allocator.observe(&plan, &outcome);
            black_box(nodes)
        });
    });
}

criterion_group!(benches, trees, budgets);
criterion_main!(benches);
