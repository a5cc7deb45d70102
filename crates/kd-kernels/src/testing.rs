//! For tests that need a GPU: run, skip visibly, or fail when a GPU is required.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Device, KernelError, Kernels, Search};

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Device 0 with the kernels of `profile`, or `None` after one counted line on stderr (past the test harness's
/// capture). With `KD_REQUIRE_GPU=1` there is no skipping.
///
/// # Panics
/// With `KD_REQUIRE_GPU=1`, if there is no device or no bundle.
pub fn kernels_or_skip(test: &str, profile: &str) -> Option<(Device, Kernels)> {
    let opened = Device::open(0).and_then(|device| {
        let kernels = Kernels::open(&device, profile, &Search::standard())?;
        Ok((device, kernels))
    });
    match opened {
        Ok(ready) => Some(ready),
        Err(error) => {
            skip(test, &error);
            None
        }
    }
}

fn skip(test: &str, error: &KernelError) {
    let required = std::env::var("KD_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required, "KD_REQUIRE_GPU=1, but {test} cannot run: {error}");
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // A closed stderr is no reason to fail a test.
    let _ = writeln!(std::io::stderr(), "skipped GPU test {count}: {test}: {error}");
}
