//! Passes that are told that contexts are short, and passes that are not.

use kd_attn::{Mask, PageId, Segment};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Profile, testing};
use kd_model::cuda::{Bucket, CudaTarget, Dims, Limits, Move, RandomWeights};

use crate::common::{Draft, assert_same};

const LIMITS: Limits = Limits { rows: 96, nodes: 48, streams: 2, pages: 128, stream_pages: 64 };
/// Chains of 48 tokens that each stream has read: contexts that end in the last of 16 pages.
const READ: usize = 20;

/// Attention takes other tiles where it knows that contexts are short; nothing that a row sees changes.
#[test]
fn a_pass_has_the_same_bits_with_the_tables_of_any_context() {
    let test = "a_pass_has_the_same_bits_with_the_tables_of_any_context";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "demo-tp1") else { return };
    let stream = device.stream().expect("a stream");
    let dims = Dims::sized(Profile::named("demo-tp1").expect("a profile"), 4);
    let weights = RandomWeights { seed: 7, correlation: 0.0 };
    let attention = CudaTarget::attention(&kernels, &dims).expect("kernels");
    let target = CudaTarget::random(&stream, &kernels, dims, weights).expect("random weights");
    let mut state = target.state(&stream, LIMITS, &[1], 1).expect("a state");
    let (rows, nodes) = (LIMITS.rows, LIMITS.nodes);
    // Pages are dealt out in turn, so that no stream's are neighbours.
    let table = |s: u32| -> Vec<PageId> { (0..64).map(|i| PageId(2 * i + s)).collect() };
    let tables = [table(0), table(1)];
    let tokens = |seed: u32| -> Vec<u32> { (0..rows as u32).map(|i| (i * 37 + 101 * seed) % 500).collect() };
    let contexts = [LIMITS.pages_for(READ * nodes), LIMITS.table_width()];
    let bucket = |pages: usize| Bucket { rows, streams: 2, pages };
    assert_eq!(contexts, [16, 64]);
    let [short, long] = contexts.map(|pages| attention(LIMITS, bucket(pages)).expect("a variant"));
    assert_ne!(short, long, "nothing is compared");
    for step in 0..READ {
        let chain = |pages| Segment { pages, committed: step * nodes, rows: nodes, mask: Mask::Causal };
        let segments = tables.each_ref().map(|pages| chain(pages.as_slice()));
        state.inputs.write(&stream, &tokens(step as u32), &segments).expect("inputs");
        let moves = Move::all(&segments).expect("room");
        state.inputs.write_moves(&stream, &moves).expect("moves");
        target.forward(&stream, &mut state, bucket(contexts[1]), &OneRank).expect("a pass");
        target.commit(&stream, &mut state, rows).expect("a commit");
    }
    let mut pass = |seed: u32, pages: usize| {
        let tokens = tokens(seed);
        let ancestors = tokens.chunks(nodes).map(|own| Draft::bushy(own, 5).ancestors()).collect::<Vec<_>>();
        let segment = |(pages, own)| {
            let pages: &Vec<PageId> = pages;
            Segment { pages, committed: READ * nodes, rows: nodes, mask: Mask::Tree(own) }
        };
        let segments: Vec<Segment<'_>> =
            tables.iter().zip(ancestors.iter().map(Vec::as_slice)).map(segment).collect();
        state.inputs.write(&stream, &tokens, &segments).expect("inputs");
        target.forward(&stream, &mut state, bucket(pages), &OneRank).expect("a pass");
        target.logits(&stream, &mut state, rows).expect("logits");
        let latents = state.latents(&stream, 3, rows).expect("copied");
        let tap = state.taps(&stream, rows).expect("copied").remove(0);
        [
            state.hidden(&stream, rows).expect("copied"),
            state.logits(&stream, rows).expect("copied"),
            latents,
            tap,
        ]
    };
    let found = pass(100, contexts[0]);
    // What a pass that writes nothing would leave.
    let between = pass(200, contexts[1]);
    let expected = pass(100, contexts[1]);
    for (what, i) in [("hidden", 0), ("logits", 1), ("latents", 2), ("tap", 3)] {
        assert_ne!(between[i].data(), expected[i].data(), "{what} of other tokens");
        for row in 0..rows {
            assert_same(&format!("{what} of row {row}"), (&found[i], row), (&expected[i], row));
        }
    }
}
