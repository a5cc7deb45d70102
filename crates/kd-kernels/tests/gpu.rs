//! Kernels against their CPU operation, where there is a GPU.

use half::bf16;
use kd_kernels::families::rms_norm;
use kd_kernels::{Choice, Device, KernelError, Source, TensorMut, TensorRef, selftest, testing};

#[test]
fn norms_match_the_cpu_at_k26_sizes() {
    check("norms_match_the_cpu_at_k26_sizes", "k26-tp8");
}

#[test]
fn norms_match_the_cpu_at_demo_sizes() {
    check("norms_match_the_cpu_at_demo_sizes", "demo-tp1");
}

fn check(test: &str, profile: &str) {
    let Some((device, kernels)) = testing::kernels_or_skip(test, profile) else { return };
    let outcomes = selftest::norms(&device, &kernels, &selftest::ROWS, 1).expect("every unit is right");
    assert!(!outcomes.is_empty(), "a comparison that compared nothing");
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
    kernels.freeze();
    let frozen = rms_norm::RmsNorm::load(&kernels, rms_norm::Dims { h: 512 });
    assert!(matches!(frozen, Err(KernelError::Frozen { .. })), "{frozen:?}");
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
