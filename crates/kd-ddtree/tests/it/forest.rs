//! Many streams under one budget: the merge of their own orders, floors, caps and Φ.

use kd_ddtree::{BuildError, DraftRow, Forest, MAX_NODES, MAX_STREAMS, Marginals, StreamLimits, TreeBuilder};
use proptest::prelude::*;

use crate::common::{blocks, build, check_tree};

fn grow(streams: &[Vec<DraftRow>], limits: &[StreamLimits], budget: usize) -> Forest {
    let mut scorers: Vec<_> = streams.iter().map(|rows| Marginals(rows)).collect();
    let mut forest = Forest::new();
    TreeBuilder::new().build_forest(&mut scorers, limits, budget, &mut forest).expect("within limits");
    forest
}

/// The documented order over whole streams, from the trees that each stream would have alone: floors first, then
/// caps; score descending, depth ascending, stream ascending.
fn merged(streams: &[Vec<DraftRow>], limits: &[StreamLimits], budget: usize) -> Vec<u32> {
    let alone: Vec<_> = streams.iter().map(|rows| build(rows, MAX_NODES)).collect();
    let mut lens = vec![0; streams.len()];
    let mut order = Vec::new();
    for floors in [true, false] {
        while order.len() < budget {
            let next = (0..streams.len())
                .filter(|&s| lens[s] < if floors { limits[s].floor } else { limits[s].cap })
                .filter_map(|s| alone[s].nodes().get(lens[s]).map(|n| (n.score, n.depth, s)))
                .min_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
            let Some((_, _, stream)) = next else { break };
            lens[stream] += 1;
            order.push(stream as u32);
        }
    }
    order
}

fn limits() -> impl Strategy<Value = StreamLimits> {
    (0usize..6, 0usize..=MAX_NODES)
        .prop_map(|(floor, more)| StreamLimits { floor, cap: (floor + more).min(MAX_NODES) })
}

proptest! {
    #[test]
    fn one_order_over_all_streams(
        streams in proptest::collection::vec((blocks(5), limits()), 0..9),
        budget in prop_oneof![0usize..40, 0usize..700],
        cut in any::<proptest::sample::Index>(),
    ) {
        let (rows, limits): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let mut forest = grow(&rows, &limits, budget);
        prop_assert_eq!(forest.order(), merged(&rows, &limits, budget));
        prop_assert_eq!(forest.trees().len(), rows.len());

        // Each tree is the head of the stream's own tree, and within its limits.
        for (stream, tree) in forest.trees().iter().enumerate() {
            check_tree(tree);
            prop_assert_eq!(tree.len(), forest.order().iter().filter(|&&s| s as usize == stream).count());
            prop_assert_eq!(tree, &build(&rows[stream], tree.len()));
            prop_assert!(tree.len() <= limits[stream].cap);
        }

        // Φ(n) sums the n first nodes' probabilities.
        let mut next = vec![0; rows.len()];
        let mut phi = vec![0.0f64];
        for &stream in forest.order() {
            let node = forest.trees()[stream as usize].nodes()[next[stream as usize]];
            next[stream as usize] += 1;
            phi.push(phi.last().unwrap_or(&0.0) + f64::from(node.score).exp());
        }
        prop_assert_eq!(forest.phi().count(), phi.len());
        for (got, want) in forest.phi().zip(phi) {
            prop_assert!((got - want).abs() < 1e-5 * (1.0 + want));
        }

        // A cut gives what the smaller budget gives.
        let smaller = cut.index(forest.nodes() + 1);
        forest.truncate(smaller);
        let direct = grow(&rows, &limits, smaller);
        prop_assert_eq!(forest.trees(), direct.trees());
        prop_assert_eq!(forest.order(), direct.order());
        prop_assert!(forest.phi().eq(direct.phi()));
    }

    #[test]
    fn floors_are_served_before_anything_else(
        rows in proptest::collection::vec(blocks(6), 1..9),
        floor in 0usize..5,
        more in 0usize..50,
    ) {
        let limits = vec![StreamLimits { floor, cap: MAX_NODES }; rows.len()];
        let forest = grow(&rows, &limits, rows.len() * floor + more);
        for (tree, rows) in forest.trees().iter().zip(&rows) {
            prop_assert!(tree.len() >= build(rows, floor).len());
        }
    }
}

#[test]
fn one_stream_is_the_plain_build() {
    let rows =
        kd_ddtree::draft_rows(&(0..700).map(|i| (i * 31 % 97) as f32 / 9.0).collect::<Vec<_>>(), 100, 64);
    for budget in [0, 1, 63, 64, 65, 128] {
        let forest = grow(std::slice::from_ref(&rows), &[StreamLimits::default()], budget);
        assert_eq!(forest.trees(), [build(&rows, budget)]);
        assert_eq!((forest.nodes(), forest.phi().count()), (budget, budget + 1));
    }
}

/// Fault 27: equal sizes hide mapping errors. A forest reused for fewer streams of other shapes.
#[test]
fn fault_27_a_reused_forest_keeps_nothing() {
    let one = kd_ddtree::draft_rows(&[3.0, 1.0, 0.5, 2.0, 1.0, 0.1], 3, 3);
    let other = kd_ddtree::draft_rows(&[0.0, 0.1, 0.2], 3, 3);
    let limits = [StreamLimits::default(); 3];
    let mut builder = TreeBuilder::new();
    let mut forest = Forest::new();
    let mut scorers = [Marginals(&one), Marginals(&other), Marginals(&one)];
    builder.build_forest(&mut scorers, &limits, 20, &mut forest).expect("within limits");
    builder.build_forest(&mut [Marginals(&other)], &limits[..1], 2, &mut forest).expect("within limits");
    assert_eq!((forest.trees(), forest.order()), (&[build(&other, 2)][..], &[0, 0][..]));
    builder.build_forest::<Marginals<'_>>(&mut [], &[], 2, &mut forest).expect("within limits");
    assert_eq!((forest.trees().len(), forest.nodes()), (0, 0));
    assert!(forest.phi().eq([0.0]));
}

#[test]
fn impossible_limits_are_refused_by_name() {
    let build = |streams: usize, limits: &[StreamLimits]| {
        let mut scorers = vec![Marginals(&[]); streams];
        TreeBuilder::new().build_forest(&mut scorers, limits, 8, &mut Forest::new())
    };
    let free = StreamLimits::default();
    assert_eq!(build(2, &[free]), Err(BuildError::Streams { scorers: 2, limits: 1 }));
    let over = StreamLimits { floor: 0, cap: 129 };
    assert_eq!(build(2, &[free, over]), Err(BuildError::Budget { stream: 1, budget: 129, limit: 128 }));
    let crossed = StreamLimits { floor: 3, cap: 2 };
    assert_eq!(build(1, &[crossed]), Err(BuildError::Floor { stream: 0, floor: 3, cap: 2 }));
    let many = MAX_STREAMS + 1;
    let error = BuildError::TooManyStreams { streams: many, limit: MAX_STREAMS };
    assert_eq!(build(many, &vec![free; many]), Err(error));
    assert_eq!(build(MAX_STREAMS, &vec![free; MAX_STREAMS]), Ok(()));
}
