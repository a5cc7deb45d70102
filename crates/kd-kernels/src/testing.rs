//! For tests that need a GPU: run, skip visibly, or fail when a GPU is required; measurements for the record.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::selftest::{Check, Outcome, ROWS};
use crate::{Bundle, Device, KernelError, Kernels, Search};

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

/// Bytes of a device that were taken between two looks at what is free, by whomever.
///
/// # Panics
/// If more is free than before. Tests that ask need the device alone, other tests of the process included (`--test-threads=1`).
pub fn taken(before: usize, after: usize) -> usize {
    let taken = before.checked_sub(after);
    taken.unwrap_or_else(|| {
        panic!("{before} bytes were free, now {after}: somebody else gave memory back, and this test needs the device alone")
    })
}

/// Runs `check` at [`ROWS`] with the kernels of `profile` on fresh inputs (`KD_SEED` repeats a run; `KD_ROWS=1,3` takes other
/// row counts, few and small under a sanitizer), or skips as [`kernels_or_skip`] does. `KD_RESIDENCY=sm_120` runs it once more
/// with as many CTAs per SM as that architecture has, if its bundle is there too. What was measured is appended to the file
/// that `KD_GPU_RESULTS` names, a JSON object a line.
///
/// # Panics
/// If a kernel is wrong or cannot run, if the profile has no unit to check, if `KD_ROWS` is no list of numbers, or if
/// `KD_RESIDENCY` names an architecture without a bundle.
pub fn check(test: &str, profile: &str, check: Check) {
    let Some((device, kernels)) = kernels_or_skip(test, profile) else { return };
    run(test, profile, check, &device, &kernels, None);
    let Ok(arch) = std::env::var("KD_RESIDENCY") else { return };
    let other = Search::standard().find(profile, &arch).and_then(|path| Bundle::open(&path));
    match other.and_then(|other| kernels.at_residency_of(&other)) {
        Ok(kernels) => run(test, profile, check, &device, &kernels, Some(&arch)),
        Err(error) => panic!("KD_RESIDENCY={arch}: {error}"),
    }
}

fn run(test: &str, profile: &str, check: Check, device: &Device, kernels: &Kernels, residency: Option<&str>) {
    let seed = seed();
    match check(device, kernels, &rows(), seed) {
        Ok(outcomes) => {
            assert!(!outcomes.is_empty(), "{test}: a comparison that compared nothing");
            record(test, device, profile, seed, residency, &outcomes);
        }
        Err(failure) => panic!("{test}, {profile}, KD_SEED={seed}: {failure}"),
    }
}

fn rows() -> Vec<usize> {
    let Ok(given) = std::env::var("KD_ROWS") else { return ROWS.to_vec() };
    let number = |text: &str| text.trim().parse().ok().filter(|rows| *rows > 0);
    let rows: Option<Vec<usize>> = given.split(',').map(number).collect();
    rows.unwrap_or_else(|| panic!("KD_ROWS={given} is no list of row counts such as 1,3,7"))
}

fn seed() -> u64 {
    let given = std::env::var("KD_SEED").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    given.unwrap_or_else(now)
}

fn record(
    test: &str,
    device: &Device,
    profile: &str,
    seed: u64,
    residency: Option<&str>,
    outcomes: &[Outcome],
) {
    let Some(path) = std::env::var_os("KD_GPU_RESULTS") else { return };
    let line = |outcome: &Outcome| {
        let Outcome { unit, rows, error, micros, bytes } = outcome;
        let object = serde_json::json!({
            "test": test, "device": device.name(), "arch": device.arch(), "profile": profile, "seed": seed,
            "residency": residency.unwrap_or(device.arch()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "needs the device alone")]
    fn memory_that_others_gave_back_is_not_taken() {
        assert_eq!(taken(7, 5), 2);
        taken(5, 7);
    }
}
