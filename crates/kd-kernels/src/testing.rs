//! For tests that need a GPU: run, skip visibly, or fail when a GPU is required; measurements for the record.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::selftest::{Check, Outcome, ROWS};
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

/// Runs `check` at [`ROWS`] with the kernels of `profile` on fresh inputs (`KD_SEED` repeats a run), or skips as
/// [`kernels_or_skip`] does. What was measured is appended to the file that `KD_GPU_RESULTS` names, a JSON object a
/// line.
///
/// # Panics
/// If a kernel is wrong or cannot run, or if the profile has no unit to check.
pub fn check(test: &str, profile: &str, check: Check) {
    let Some((device, kernels)) = kernels_or_skip(test, profile) else { return };
    let seed = seed();
    match check(&device, &kernels, &ROWS, seed) {
        Ok(outcomes) => {
            assert!(!outcomes.is_empty(), "{test}: a comparison that compared nothing");
            record(test, &device, profile, seed, &outcomes);
        }
        Err(failure) => panic!("{test}, {profile}, KD_SEED={seed}: {failure}"),
    }
}

fn seed() -> u64 {
    let given = std::env::var("KD_SEED").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    given.unwrap_or_else(now)
}

fn record(test: &str, device: &Device, profile: &str, seed: u64, outcomes: &[Outcome]) {
    let Some(path) = std::env::var_os("KD_GPU_RESULTS") else { return };
    let line = |outcome: &Outcome| {
        let Outcome { unit, rows, error, micros, bytes } = outcome;
        let object = serde_json::json!({
            "test": test, "device": device.name(), "arch": device.arch(), "profile": profile, "seed": seed,
            "unit": unit, "rows": rows, "error_of_bound": error, "mean_us": micros, "bytes": bytes,
        });
        format!("{object}\n")
    };
    let lines: String = outcomes.iter().map(line).collect();
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.unwrap_or_else(|error| panic!("KD_GPU_RESULTS={}: {error}", path.display()));
}

fn skip(test: &str, error: &KernelError) {
    let required = std::env::var("KD_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required, "KD_REQUIRE_GPU=1, but {test} cannot run: {error}");
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // A closed stderr is no reason to fail a test.
    let _ = writeln!(std::io::stderr(), "skipped GPU test {count}: {test}: {error}");
}
