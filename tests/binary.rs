//! Running the `kd` command.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::repository;

/// The `kd` of this very source and profile; built, if it is not up to date, the first time it is asked for.
///
/// # Panics
/// If it does not build.
pub fn kd() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(build)
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // target/<profile>/deps/it-<hash>
    let folder = test.ancestors().nth(2).expect("a profile folder");
    let profile = match folder.file_name().and_then(OsStr::to_str).expect("a profile") {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-j2", "-p", "kd-cli", "--profile", profile, "--message-format", "json"]);
    let target = folder.parent().expect("a target folder");
    let output = cargo.arg("--target-dir").arg(target).current_dir(repository()).output().expect("cargo");
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut executable = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    let found = executable.next_back();
    assert!(output.status.success(), "kd does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    found.expect("cargo names the executable")
}

/// What a run of `kd` came to.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// The JSON objects on stdout, one a line, of a run that must have succeeded.
    ///
    /// # Panics
    /// If it failed, or a line is no JSON.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.lines()
    }

    /// The JSON objects on stdout, one a line.
    ///
    /// # Panics
    /// If a line is no JSON.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
    }
}

/// Starts `kd` with these arguments, with pipes for its streams. Of the variables that it would read it sees these alone,
/// and `KD_DEVICE=cpu`: what tests compare it with is the CPU's, whatever this machine has.
///
/// # Panics
/// If it cannot be run.
pub fn start(variables: &[(&str, &str)], args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Child {
    let mut command = Command::new(kd());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KD_")) {
        command.env_remove(name);
    }
    command.env("KD_DEVICE", "cpu");
    command.args(args).envs(variables.iter().copied()).current_dir(repository());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("kd starts")
}

/// Runs `kd` as [`start`] does, with `stdin` to read from.
///
/// # Panics
/// If it cannot be run, or prints what is not UTF-8.
pub fn run_in(
    variables: &[(&str, &str)],
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    stdin: &[u8],
) -> Ran {
    let mut child = start(variables, args);
    // A command that fails early may not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin);
    let Output { status, stdout, stderr } = child.wait_with_output().expect("kd ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: status.code().expect("an exit code"), stdout: text(stdout), stderr: text(stderr) }
}

/// Runs `kd` with these arguments and `stdin` to read from.
///
/// # Panics
/// As [`run_in`].
pub fn run_with_input(args: impl IntoIterator<Item = impl AsRef<OsStr>>, stdin: &[u8]) -> Ran {
    run_in(&[], args, stdin)
}

/// Runs `kd` with these arguments and nothing on its stdin.
///
/// # Panics
/// As [`run_in`].
pub fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ran {
    run_with_input(args, b"")
}
