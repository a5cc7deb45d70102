//! Random weights, and what fits.

use kd_kernels::ranks::OneRank;
use kd_kernels::{Profile, testing};
use kd_model::cuda::{Bucket, CudaError, CudaTarget, Dims, Limits, RandomWeights};

use kd_attn::{Mask, PageId, Segment};

const WEIGHTS: RandomWeights = RandomWeights { seed: 7, correlation: 0.0 };

/// Rows of random weights have the size of real ones, and differ from token to token.
#[test]
fn random_weights_keep_rows_at_a_sane_size() {
    let Some((device, kernels)) =
        testing::kernels_or_skip("random_weights_keep_rows_at_a_sane_size", "demo-tp1")
    else {
        return;
    };
    let stream = device.stream().expect("a stream");
    let dims = || Dims::sized(Profile::named("demo-tp1").expect("a profile"), 20);
    let limits = Limits { rows: 16, nodes: 1, streams: 16, pages: 16, stream_pages: 1 };
    let tokens: Vec<u32> = (0..16).map(|i| i * 3).collect();
    let tables: Vec<[PageId; 1]> = (0..16).map(|page| [PageId(page)]).collect();
    let segments: Vec<_> =
        tables.iter().map(|pages| Segment { pages, committed: 0, rows: 1, mask: Mask::Causal }).collect();
    let choices = [0.0, 0.95].map(|correlation| {
        let weights = RandomWeights { correlation, ..WEIGHTS };
        let target = CudaTarget::random(&stream, &kernels, dims(), weights).expect("random weights");
        let mut state = target.state(&stream, limits, &[], 1).expect("a state");
        state.inputs.write(&stream, &tokens, &segments).expect("inputs");
        let mut seen = Chosen::default();
        let bucket = Bucket { rows: 16, streams: 16, pages: limits.table_width() };
        target.forward_traced(&stream, &mut state, bucket, &OneRank, &mut seen, 16).expect("a pass");
        target.logits(&stream, &mut state, 16).expect("logits");
        let (hidden, logits) = (state.hidden(&stream, 16), state.logits(&stream, 16));
        for values in [hidden.expect("copied"), logits.expect("copied")] {
            let mean = values.data().iter().map(|v| v * v).sum::<f32>() / values.data().len() as f32;
            assert!((0.3..30.0).contains(&mean), "mean square {mean}");
            assert_ne!(values.row(0), values.row(1));
        }
        seen.0
    });
    assert!(
        choices[1] < choices[0],
        "rows that resemble each other choose {} experts, others {}",
        choices[1],
        choices[0]
    );
}

/// Different experts over all layers.
#[derive(Default)]
struct Chosen(usize);

impl kd_model::Trace for Chosen {
    fn routing(&mut self, _: usize, routing: &kd_moe::Routing) {
        let mut ids = routing.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        self.0 += ids.len();
    }
}

/// Too much is refused before it is allocated, with what would fit.
#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let test = "what_does_not_fit_is_refused_with_what_would";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "demo-tp1") else { return };
    let stream = device.stream().expect("a stream");
    let profile = Profile::named("demo-tp1").expect("a profile");
    let refused = CudaTarget::random(&stream, &kernels, Dims::sized(profile, 1_000_000), WEIGHTS);
    let message = refused.expect_err("a million layers").to_string();
    assert!(message.contains("of 1000000 layers would fit"), "{message}");
    let target = CudaTarget::random(&stream, &kernels, Dims::sized(profile, 2), WEIGHTS).expect("two layers");
    let vast = Limits { rows: 8, nodes: 8, streams: 1, pages: 1 << 30, stream_pages: 8 };
    let refused = target.state(&stream, vast, &[], 1);
    assert!(matches!(refused, Err(CudaError::OutOfMemory { .. })));
    let message = refused.expect_err("a billion pages").to_string();
    let pages = message.split("MiB are free; ").nth(1).and_then(|rest| rest.split(' ').next());
    let pages: usize = pages.and_then(|count| count.parse().ok()).expect("a number of pages");
    // What is said to fit fits.
    target.state(&stream, Limits { pages, ..vast }, &[], 1).expect("fits");
}

/// Planned bytes are those that the device loses. Needs it alone.
#[test]
fn planned_memory_is_what_is_taken() {
    let Some((device, kernels)) = testing::kernels_or_skip("planned_memory_is_what_is_taken", "demo-tp1")
    else {
        return;
    };
    let stream = device.stream().expect("a stream");
    let dims = Dims::sized(Profile::named("demo-tp1").expect("a profile"), 200);
    let free = || device.context().mem_get_info().expect("memory").0;
    let before = free();
    let planned = dims.weight_bytes().expect("a size");
    let target = CudaTarget::random(&stream, &kernels, dims, WEIGHTS).expect("random weights");
    stream.synchronize().expect("done");
    let taken = testing::taken(before, free());
    // Images of kernels and the granularity of allocations are not planned.
    assert!(
        taken + (64 << 20) >= planned && taken <= planned + (192 << 20),
        "{planned} planned, {taken} taken"
    );
    drop(target);
}

/// K2.6's own sizes, one rank of eight, and few layers: rows of a chain have the same bits in passes of any size, and in the
/// company of another stream.
#[test]
fn k26_rows_do_not_depend_on_the_pass() {
    let test = "k26_rows_do_not_depend_on_the_pass";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let stream = device.stream().expect("a stream");
    let dims = Dims::sized(Profile::named("k26-tp8").expect("a profile"), 4);
    let target = CudaTarget::random(&stream, &kernels, dims, WEIGHTS).expect("random weights");
    let limits = Limits { rows: 528, nodes: 129, streams: 5, pages: 8, stream_pages: 1 };
    let mut state = target.state(&stream, limits, &[], 1).expect("a state");
    let mut pass = |sizes: &[usize]| {
        let tokens: Vec<u32> = sizes.iter().flat_map(|size| (0..*size as u32).map(|i| i * 37 + 5)).collect();
        let segment = |rows: &usize| Segment { pages: &[], committed: 0, rows: *rows, mask: Mask::Causal };
        let segments: Vec<_> = sizes.iter().map(segment).collect();
        state.inputs.write(&stream, &tokens, &segments).expect("inputs");
        let bucket = Bucket { rows: tokens.len(), streams: 5, pages: limits.table_width() };
        target.forward(&stream, &mut state, bucket, &OneRank).expect("a pass");
        target.logits(&stream, &mut state, tokens.len()).expect("logits");
        state.logits(&stream, tokens.len()).expect("copied")
    };
    let all = pass(&[129, 129, 129, 129, 12]);
    for sizes in [&[1][..], &[7], &[9, 1], &[33], &[65, 3], &[129, 1, 2], &[129, 129, 6]] {
        let found = pass(sizes);
        let rows = sizes.iter().flat_map(|size| 0..*size);
        for (at, row) in rows.enumerate() {
            crate::common::assert_same(&format!("{sizes:?}, row {row}"), (&found, at), (&all, row));
        }
    }
}
