//! Kernels against their CPU operation, where there is a GPU.

mod product;
mod ranks;

use half::bf16;
use kd_kernels::families::rms_norm;
use kd_kernels::{
    Buffer, Choice, Device, KernelError, Source, Stream, TensorMut, TensorRef, selftest, testing,
};

/// One test for each check of this crate, at the sizes of K2.6 and of the demo pair.
macro_rules! checks {
    ($($name:ident: $check:literal at $profile:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let (_, check) = selftest::CHECKS.into_iter().find(|(name, _)| *name == $check).expect("a check");
                testing::check(stringify!($name), $profile, check);
            }
        )*
    };
}

checks! {
    norms_match_the_cpu_at_k26_sizes: "norms" at "k26-tp8";
    norms_match_the_cpu_at_k26_tp1_sizes: "norms" at "k26-tp1";
    norms_match_the_cpu_at_demo_sizes: "norms" at "demo-tp1";
    embed_matches_the_cpu_at_k26_sizes: "embed" at "k26-tp8";
    embed_matches_the_cpu_at_k26_tp1_sizes: "embed" at "k26-tp1";
    embed_matches_the_cpu_at_demo_sizes: "embed" at "demo-tp1";
    tap_columns_match_the_cpu_at_k26_sizes: "tap_columns" at "k26-tp8";
    tap_columns_match_the_cpu_at_demo_sizes: "tap_columns" at "demo-tp1";
    draft_block_matches_the_cpu_at_k26_sizes: "draft_block" at "k26-tp8";
    draft_block_matches_the_cpu_at_demo_sizes: "draft_block" at "demo-tp1";
    walk_matches_the_cpu_at_k26_sizes: "walk" at "k26-tp8";
    walk_matches_the_cpu_at_demo_sizes: "walk" at "demo-tp1";
    gather_taps_picks_rows_at_k26_sizes: "gather_taps" at "k26-tp8";
    gather_taps_picks_rows_at_demo_sizes: "gather_taps" at "demo-tp1";
    silu_mul_matches_the_cpu_at_k26_sizes: "silu_mul" at "k26-tp8";
    silu_mul_matches_the_cpu_at_k26_tp1_sizes: "silu_mul" at "k26-tp1";
    silu_mul_matches_the_cpu_at_demo_sizes: "silu_mul" at "demo-tp1";
    few_gate_has_the_bits_of_two_launches_at_k26_sizes: "few_gate" at "k26-tp8";
    few_gate_has_the_bits_of_two_launches_at_demo_sizes: "few_gate" at "demo-tp1";
    few_route_has_the_bits_of_three_launches_at_k26_sizes: "few_route" at "k26-tp8";
    few_route_has_the_bits_of_three_launches_at_demo_sizes: "few_route" at "demo-tp1";
    norm_dense_has_the_bits_of_two_launches_at_k26_sizes: "norm_dense" at "k26-tp8";
    norm_dense_has_the_bits_of_two_launches_at_demo_sizes: "norm_dense" at "demo-tp1";
    top_k_matches_the_cpu_at_k26_sizes: "top_k" at "k26-tp8";
    top_k_matches_the_cpu_at_k26_tp1_sizes: "top_k" at "k26-tp1";
    top_k_matches_the_cpu_at_demo_sizes: "top_k" at "demo-tp1";
    sample_matches_the_cpu_at_k26_sizes: "sample" at "k26-tp8";
    sample_matches_the_cpu_at_k26_tp1_sizes: "sample" at "k26-tp1";
    sample_matches_the_cpu_at_demo_sizes: "sample" at "demo-tp1";
    dense_matches_the_cpu_at_k26_sizes: "dense" at "k26-tp8";
    dense_matches_the_cpu_at_demo_sizes: "dense" at "demo-tp1";
    dense_matches_the_cpu_at_k26_sizes_on_one_rank: "dense" at "k26-tp1";
    absorb_matches_the_cpu_at_k26_sizes: "absorb" at "k26-tp8";
    absorb_matches_the_cpu_at_k26_sizes_on_one_rank: "absorb" at "k26-tp1";
    absorb_matches_the_cpu_at_demo_sizes: "absorb" at "demo-tp1";
    lm_head_matches_the_cpu_at_k26_sizes: "lm_head" at "k26-tp8";
    lm_head_matches_the_cpu_at_demo_sizes: "lm_head" at "demo-tp1";
    lm_head_top_k_matches_the_cpu_at_k26_sizes: "lm_head_top_k" at "k26-tp8";
    lm_head_top_k_matches_the_cpu_at_demo_sizes: "lm_head_top_k" at "demo-tp1";
}

#[test]
fn a_wrong_shape_is_refused_before_the_launch() {
    let test = "a_wrong_shape_is_refused_before_the_launch";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let norm = rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: 512 }).expect("loaded");
    let launch = |rows, width, gain| launch(&device, &norm, rows, width, gain);
    assert_eq!(launch(3, 512, 512).expect("launched").source, Source::Preferred);
    assert_eq!(launch(0, 512, 512).expect("nothing to do").variant, "v2");
    let message = launch(3, 256, 512).expect_err("refused").to_string();
    assert_eq!(message, "rms_norm: axis 1 of `x` is 256, but H = 512");
    let message = launch(3, 512, 256).expect_err("refused").to_string();
    assert_eq!(message, "rms_norm: axis 0 of `gain` is 256, but H = 512");
    let missing = rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: 640 });
    assert!(matches!(missing, Err(KernelError::NoUnit { .. })), "{missing:?}");
}

fn launch(
    device: &Device,
    norm: &rms_norm::RmsNorm,
    rows: usize,
    width: usize,
    gain: usize,
) -> Result<kd_kernels::Selection, KernelError> {
    let stream = device.stream()?;
    let zeros = |count: usize| stream.cuda().alloc_zeros::<bf16>(count.max(1)).expect("memory");
    let (x, gains, mut y) = (zeros(rows * width), zeros(gain), zeros(rows * width));
    let args = rms_norm::Args {
        x: TensorRef::new(&stream, x.slice(..rows * width), [rows, width])?,
        gain: TensorRef::new(&stream, gains.slice(..gain), [gain])?,
        eps: 1e-5,
        y: TensorMut::new(&stream, y.slice_mut(..rows * width), [rows, width])?,
    };
    let selection = norm.launch(&stream, Choice::Auto, args)?;
    stream.synchronize()?;
    Ok(selection)
}

/// What a captured norm owns.
struct Captured {
    norm: rms_norm::RmsNorm,
    x: Buffer<bf16>,
    gain: Buffer<bf16>,
    y: Buffer<bf16>,
}

const SHAPE: [usize; 2] = [33, 512];

fn record(stream: &Stream, captured: &mut Captured) -> Result<(), KernelError> {
    let args = rms_norm::Args {
        x: TensorRef::new(stream, captured.x.view(), SHAPE)?,
        gain: TensorRef::new(stream, captured.gain.view(), [SHAPE[1]])?,
        eps: 1e-5,
        y: TensorMut::new(stream, captured.y.view_mut(), SHAPE)?,
    };
    captured.norm.launch(stream, Choice::Auto, args).map(drop)
}

#[test]
fn a_graph_replays_its_launches_on_new_inputs() {
    let test = "a_graph_replays_its_launches_on_new_inputs";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let stream = device.stream().expect("a stream");
    let mut random = selftest::Random::new(7);
    let mut buffer =
        |scale| Buffer::new(&stream, &random.values(SHAPE[0] * SHAPE[1], scale)).expect("memory");
    let mut captured = Captured {
        norm: rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: 512 }).expect("loaded"),
        x: buffer(1.0),
        gain: Buffer::new(&stream, &selftest::Random::new(8).values(SHAPE[1], 1.0)).expect("memory"),
        y: buffer(0.0),
    };
    let inputs: Vec<Vec<bf16>> =
        (1..4).map(|seed| selftest::Random::new(seed).values(SHAPE[0] * SHAPE[1], 2.0)).collect();
    let mut direct = Vec::new();
    for input in &inputs {
        captured.x.write(&stream, input).expect("written");
        record(&stream, &mut captured).expect("launched");
        direct.push(captured.y.read(&stream).expect("read"));
    }
    let graph = stream.capture(captured, record).expect("captured");
    for (input, expected) in inputs.iter().zip(&direct).rev() {
        graph.resources().x.write(&stream, input).expect("written");
        graph.launch().expect("launched");
        assert_eq!(&graph.resources().y.read(&stream).expect("read"), expected);
    }
    // The stream is of use after a capture that failed.
    let refused = KernelError::Frozen { what: "a test".to_owned() };
    let failed = stream.capture(refused.clone(), |_, refused| Err(refused.clone()));
    assert_eq!(failed.map(drop), Err(refused));
    graph.launch().expect("launched");
    stream.synchronize().expect("finished");
}

/// What phases of a pass are timed with: a stream that admits some families leaves the others out.
#[test]
fn a_stream_leaves_out_the_families_that_it_does_not_admit() {
    let test = "a_stream_leaves_out_the_families_that_it_does_not_admit";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let stream = device.stream().expect("a stream");
    let mut captured = Captured {
        norm: rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: SHAPE[1] as i64 }).expect("loaded"),
        x: Buffer::new(&stream, &[bf16::ONE; SHAPE[0] * SHAPE[1]]).expect("memory"),
        gain: Buffer::new(&stream, &[bf16::ONE; SHAPE[1]]).expect("memory"),
        y: Buffer::new(&stream, &[bf16::ZERO; SHAPE[0] * SHAPE[1]]).expect("memory"),
    };
    let mut written = |stream: &Stream| {
        record(stream, &mut captured).expect("nothing wrong");
        captured.y.read(stream).expect("read").contains(&bf16::ONE)
    };
    assert!(!written(&stream.admitting(|family| family != "rms_norm")));
    assert!(written(&stream.admitting(|family| family == "rms_norm")));
    let graph = stream.capture(captured, record).expect("captured");
    assert_eq!(graph.nodes().expect("counted"), 1);
}

#[test]
fn a_frozen_device_replays_graphs_and_refuses_what_would_allocate() {
    let test = "a_frozen_device_replays_graphs_and_refuses_what_would_allocate";
    let Some((device, kernels)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    let stream = device.stream().expect("a stream");
    let captured = || Captured {
        norm: rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: SHAPE[1] as i64 }).expect("loaded"),
        x: Buffer::new(&stream, &[bf16::ONE; SHAPE[0] * SHAPE[1]]).expect("memory"),
        gain: Buffer::new(&stream, &[bf16::ONE; SHAPE[1]]).expect("memory"),
        y: Buffer::new(&stream, &[bf16::ZERO; SHAPE[0] * SHAPE[1]]).expect("memory"),
    };
    let spare = captured();
    let graph = stream.capture(captured(), record).expect("captured");
    graph.launch().expect("launched");
    stream.synchronize().expect("finished");
    kernels.freeze();
    let free = || device.context().mem_get_info().expect("memory").0;
    let before = free();
    let input = [bf16::ONE; SHAPE[0] * SHAPE[1]];
    for _ in 0..100 {
        graph.resources().x.write(&stream, &input).expect("written");
        graph.launch().expect("launched");
    }
    graph.resources().y.read(&stream).expect("read");
    assert_eq!(free(), before, "serving allocated");
    let refused = [
        rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: SHAPE[1] as i64 }).map(drop),
        Buffer::new(&stream, &input).map(drop),
        stream.capture(spare, record).map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(KernelError::Frozen { .. })), "{refused:?}");
    }
}
