//! `--device`: what cannot run where it was asked to is an error, never a silent fallback.

use kd_kernels::{KernelError, driver_version};
use kd_tests::binary::run;

#[test]
fn what_does_not_run_on_a_gpu_yet_is_bad_usage() {
    for (args, contains) in [
        (&["generate", "--device", "gpu"][..], "cuda:N"),
        (&["generate", "--device", "cuda:x"], "cuda:x"),
        (&["generate", "--device", "cuda", "--tp", "2"], "--tp"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(contains), "{args:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty(), "{args:?}: {}", ran.stdout);
    }
}

#[test]
fn a_missing_driver_is_one_clear_line() {
    if !matches!(driver_version(), Err(KernelError::NoDriver)) {
        return;
    }
    for verb in [&["generate"][..], &["chat"], &["tree"], &["plan"], &["bench", "generate"]] {
        let ran = run([verb, &["--device", "cuda"]].concat());
        assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{verb:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("no CUDA driver"), "{verb:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty(), "{verb:?}: {}", ran.stdout);
    }
    let auto = run(["generate", "--device", "auto", "--prompt", "use", "--max-tokens", "1"]);
    assert_eq!(auto.code, 0, "{}", auto.stderr);
    assert!(auto.stderr.contains("on the CPU with"), "{}", auto.stderr);
}
