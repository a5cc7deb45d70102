//! Tree builds from precomputed top-K rows, masks included. Targets: one stream of 64 nodes over 7 rows in 2 µs,
//! 16 streams of 64 nodes in 30 µs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kd_ddtree::{DraftRow, Forest, Marginals, StreamLimits, Tree, TreeBuilder};

const STREAMS: usize = 16;
const DEPTHS: usize = 7;
const NODES: usize = 64;
const VOCAB: usize = 4096;

/// Rows whose logits are a fixed pseudo-random normal-like noise; `sharpness` sets how peaked they are.
fn block(seed: u32, sharpness: f32) -> Vec<DraftRow> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32
    };
    (0..DEPTHS)
        .filter_map(|_| {
            let logits: Vec<f32> =
                (0..VOCAB).map(|_| sharpness * (0..4).map(|_| uniform() - 0.5).sum::<f32>()).collect();
            DraftRow::from_logits(&logits, NODES)
        })
        .collect()
}

fn builds(c: &mut Criterion) {
    for (name, sharpness) in [("peaked", 12.0), ("medium", 7.0), ("flat", 2.0)] {
        let blocks: Vec<_> = (0..STREAMS as u32).map(|s| block(s + 1, sharpness)).collect();
        let mut builder = TreeBuilder::new();

        let mut tree = Tree::empty();
        c.bench_function(&format!("one stream, 64 nodes, {name}"), |b| {
            b.iter(|| {
                builder
                    .build(&mut Marginals(black_box(&blocks[0])), NODES, &mut tree)
                    .expect("within limits");
                black_box(tree.len())
            });
        });
        assert_eq!(tree.len(), NODES);

        let mut trees = vec![Tree::empty(); STREAMS];
        c.bench_function(&format!("16 streams of 64 nodes, tree by tree, {name}"), |b| {
            b.iter(|| {
                for (rows, tree) in black_box(&blocks).iter().zip(&mut trees) {
                    builder.build(&mut Marginals(rows), NODES, tree).expect("within limits");
                }
                black_box(trees.last().map(Tree::len))
            });
        });

        let mut forest = Forest::new();
        let mut scorers: Vec<_> = blocks.iter().map(|rows| Marginals(rows)).collect();
        for cap in [NODES, 2 * NODES] {
            let limits = [StreamLimits { floor: 1, cap }; STREAMS];
            c.bench_function(&format!("16 streams, 1024 nodes, cap {cap}, {name}"), |b| {
                b.iter(|| {
                    builder
                        .build_forest(black_box(&mut scorers), &limits, STREAMS * NODES, &mut forest)
                        .expect("within limits");
                    black_box(forest.nodes())
                });
            });
            assert_eq!(forest.nodes(), STREAMS * NODES);
        }
    }
}

criterion_group!(benches, builds);
criterion_main!(benches);
