//! `cargo xtask gpu-bundle`: everything a GPU machine without Rust needs to run the GPU tests, in one archive.

mod artifacts;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::flags::{BuildOptions, BundleOptions};
use crate::{build, paths};

/// The most an archive may have, in bytes.
const MOST: u64 = 14_000_000;
/// The name of the folder that the archive unpacks to.
const FOLDER: &str = "kd-gpu";
/// Folder of the tests that carry all they read.
const TESTS: &str = "tests";
/// Folder of the tests that read the demo pair of the repository.
const MODEL_TESTS: &str = "model-tests";
const RUN: &str = include_str!("run.sh");

/// Builds kernels, `kd` and the GPU tests, and packs them.
pub(crate) fn run(options: &BundleOptions) -> Result<()> {
    build::run(&BuildOptions {
        archs: options.archs.clone(),
        profiles: options.profiles.clone(),
        ..BuildOptions::default()
    })?;
    let staging = paths::target().join("gpu-bundle");
    let folder = staging.join(FOLDER);
    if staging.exists() {
        fs::remove_dir_all(&staging)?;
    }
    for tests in [TESTS, MODEL_TESTS] {
        fs::create_dir_all(folder.join(tests))
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    for test in artifacts::gpu_tests(options.dev)? {
        let tests = if artifacts::OF_MODELS.contains(&test.package.as_str()) { MODEL_TESTS } else { TESTS };
        strip(&test.executable, &folder.join(tests).join(&test.package))?;
    }
    if options.kd {
        strip(&artifacts::kd(options.dev)?, &folder.join("kd"))?;
    }
    for profile in &options.profiles {
        for arch in &options.archs {
            let file = format!("{}-{}.kdb", profile.name, arch.name);
            let path = paths::target().join("kernels").join(&file);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let stored = build::bundle::stored(&bytes).with_context(|| path.display().to_string())?;
            fs::write(folder.join(&file), stored)?;
        }
    }
    let script = folder.join("run");
    fs::write(&script, RUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;

    let bytes = pack(&staging, &options.out)?;
    println!("{} ({bytes} bytes)", options.out.display());
    println!("run: tar xJf {} && {FOLDER}/run --require-gpu", options.out.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// A copy of the executable without symbols.
fn strip(from: &Path, to: &PathBuf) -> Result<()> {
    copy(from, to)?;
    let status = Command::new("strip").arg("--strip-all").arg(to).status();
    if status.context("cannot run strip; install binutils")?.success() {
        return Ok(());
    }
    bail!("strip failed on {}", to.display())
}

/// The same bytes for the same files: sorted, without times and owners. Programs and images share much, which one window over
/// all of them finds.
fn pack(staging: &Path, out: &Path) -> Result<u64> {
    let fixed = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    let status = Command::new("tar")
        .args(fixed)
        .args(["--use-compress-program=xz -9e", "-cf"])
        .arg(out)
        .arg("-C")
        .arg(staging)
        .arg(FOLDER)
        .status();
    if !status.context("cannot run tar")?.success() {
        bail!("tar could not write {}", out.display());
    }
    within_limit(fs::metadata(out)?.len(), out)
}

fn within_limit(bytes: u64, out: &Path) -> Result<u64> {
    if bytes <= MOST {
        return Ok(bytes);
    }
    bail!("{} has {bytes} bytes, the limit is {MOST}; name fewer profiles, or pass --no-kd", out.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_over_the_limit_is_refused() {
        assert!(within_limit(MOST, Path::new("a")).is_ok());
        let message = within_limit(MOST + 1, Path::new("a")).expect_err("too large").to_string();
        assert!(message.contains("14000001 bytes") && message.contains("--no-kd"), "{message}");
    }

    #[test]
    fn an_archive_has_the_same_bytes_every_time() {
        let staging = tempfile::tempdir().expect("a folder");
        let folder = staging.path().join(FOLDER);
        fs::create_dir(&folder).expect("made");
        let archive = |name: &str| {
            for file in ["b", "a"] {
                fs::write(folder.join(file), file).expect("written");
            }
            let out = staging.path().join(name);
            pack(staging.path(), &out).expect("packed");
            fs::read(out).expect("read")
        };
        assert_eq!(archive("1.tar.xz"), archive("2.tar.xz"));
    }

    /// The run script with planted test programs: its lines, its counts and its exit codes.
    #[test]
    fn the_run_script_counts_and_fails_as_it_says() {
        let folder = tempfile::tempdir().expect("a folder");
        for tests in [TESTS, MODEL_TESTS] {
            fs::create_dir(folder.path().join(tests)).expect("made");
        }
        let script = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("made executable");
        };
        script("run", RUN);
        let run = |arguments: &[&str]| {
            let output =
                Command::new(folder.path().join("run")).args(arguments).current_dir(folder.path()).output();
            let output = output.expect("the script runs");
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        assert_eq!(run(&[]).0, Some(1), "no test at all is a failure");

        let pass = "#!/bin/sh\necho 'test a ... ok'\necho '{\"test\":\"a\"}' >> \"$KD_GPU_RESULTS\"\n";
        script("tests/kd-a", pass);
        let (code, text) = run(&[]);
        assert!(code == Some(0) && text.contains("kd-a: test a ... ok\n"), "{text}");
        assert!(text.contains("1 passed, 0 failed, 0 skipped"), "{text}");
        let results = fs::read_to_string(folder.path().join("results.json")).expect("results");
        let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
        assert_eq!((&results["passed"], &results["measurements"][0]["test"]), (&1.into(), &"a".into()));

        let skip = "#!/bin/sh\n[ \"$KD_REQUIRE_GPU\" = 1 ] && { echo 'test b ... FAILED'; exit 101; }\n\
                    echo 'skipped GPU test 1: b: no GPU' >&2\necho 'test b ... ok'\n";
        script("tests/kd-b", skip);
        let (code, text) = run(&[]);
        assert!(code == Some(0) && text.contains("1 passed, 0 failed, 1 skipped"), "{text}");
        let (code, text) = run(&["--require-gpu"]);
        assert!(code == Some(1) && text.contains("1 passed, 1 failed, 0 skipped"), "{text}");

        let model = "#!/bin/sh\n[ \"$KD_MODELS\" = /r/models ] && [ \"$KD_RESIDENCY\" = sm_120 ] && echo 'test m ... ok'\n";
        script("model-tests/kd-m", model);
        let (code, text) = run(&[]);
        assert!(code == Some(0) && text.contains("1 passed, 0 failed, 1 skipped"), "{text}");
        let (code, text) = run(&["--residency", "sm_120", "--repository", "/r"]);
        assert!(code == Some(0) && text.contains("2 passed, 0 failed, 1 skipped"), "{text}");
        assert_eq!(run(&["--require-gpus"]).0, Some(2), "an unknown flag is no name of a test");

        script("tests/kd-b", "#!/bin/sh\nkill -SEGV $$\n");
        let (code, text) = run(&[]);
        assert!(code == Some(1) && text.contains("kd-b: ended with code 139"), "{text}");
    }
}
