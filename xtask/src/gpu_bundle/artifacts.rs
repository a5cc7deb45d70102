//! Executables that cargo builds, and where it put them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::paths;

/// Packages whose GPU tests carry all that they read: kernels against the operations that these crates own.
pub(crate) const SELF_CONTAINED: [&str; 3] = ["kd-kernels", "kd-attn", "kd-moe"];
/// Packages whose GPU tests read the demo pair of the repository: whole models, and the engine.
pub(crate) const OF_MODELS: [&str; 2] = ["kd-model", "kd-tests"];
/// What their test programs are called.
const TARGETS: [&str; 2] = ["gpu", "cuda"];

/// A built program.
pub(crate) struct Built {
    pub(crate) package: String,
    pub(crate) executable: PathBuf,
}

/// One line of `cargo --message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
    package_id: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the GPU tests, one program a package.
pub(crate) fn gpu_tests(dev: bool) -> Result<Vec<Built>> {
    let packages = || SELF_CONTAINED.into_iter().chain(OF_MODELS);
    let chosen = packages().flat_map(|package| ["-p", package]);
    let targets = TARGETS.into_iter().flat_map(|target| ["--test", target]);
    let arguments: Vec<&str> = ["test", "--no-run"].into_iter().chain(targets).chain(chosen).collect();
    let tests = executables(&cargo(&arguments, dev)?, &TARGETS)?;
    match packages().find(|package| !tests.iter().any(|test| test.package == *package)) {
        Some(package) => bail!("cargo built no GPU tests of {package}"),
        None => Ok(tests),
    }
}

/// Builds `kd`.
pub(crate) fn kd(dev: bool) -> Result<PathBuf> {
    let output = cargo(&["build", "-p", "kd-cli"], dev)?;
    let found = executables(&output, &["kd"])?.into_iter().next();
    Ok(found.context("cargo built no kd")?.executable)
}

/// Standard output of cargo with machine-readable messages.
fn cargo(arguments: &[&str], dev: bool) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).arg("--message-format=json-render-diagnostics");
    if !dev {
        command.arg("--release");
    }
    let output = command.current_dir(paths::workspace()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The executables of targets with one of these names.
fn executables(messages: &str, targets: &[&str]) -> Result<Vec<Built>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("a message of cargo")?;
        let Message { target: Some(made), executable: Some(executable), package_id: Some(id) } = message
        else {
            continue;
        };
        if targets.contains(&made.name.as_str()) {
            found.push(Built { package: package(&id).to_owned(), executable });
        }
    }
    Ok(found)
}

/// The name in a package id: `path+file:///w/crates/NAME#VERSION`, or `…#NAME@VERSION` where the folder is called otherwise.
fn package(id: &str) -> &str {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    let folder = || path.rsplit('/').next().unwrap_or(path);
    version.split_once('@').map_or_else(folder, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/kd-moe#0.1.0","target":{"name":"kd_moe"},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/kd-moe#0.1.0","target":{"name":"gpu"},"executable":"/w/gpu-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/tests#kd-tests@0.1.0","target":{"name":"cuda"},"executable":"/w/cuda-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/tests#kd-tests@0.1.0","target":{"name":"it"},"executable":"/w/it-1"}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages, &TARGETS).expect("read");
        let found: Vec<_> =
            found.iter().map(|built| (built.package.as_str(), built.executable.to_str())).collect();
        assert_eq!(found, [("kd-moe", Some("/w/gpu-1")), ("kd-tests", Some("/w/cuda-1"))]);
    }
}
