//! Executables that cargo builds, and where it put them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::paths;

/// Packages whose `tests/gpu.rs` runs kernels against the operations they own.
const PACKAGES: [&str; 3] = ["kd-kernels", "kd-attn", "kd-moe"];

/// A built test program.
pub(crate) struct GpuTest {
    pub(crate) package: String,
    pub(crate) executable: PathBuf,
}

/// One line of `cargo --message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the GPU tests.
pub(crate) fn gpu_tests(dev: bool) -> Result<Vec<GpuTest>> {
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    let arguments: Vec<&str> = ["test", "--no-run", "--test", "gpu"].into_iter().chain(packages).collect();
    let tests = executables(&cargo(&arguments, dev)?, "gpu")?;
    if tests.len() != PACKAGES.len() {
        bail!("cargo built {} GPU test programs, not {}", tests.len(), PACKAGES.len());
    }
    Ok(tests)
}

/// Builds `kd`.
pub(crate) fn kd(dev: bool) -> Result<PathBuf> {
    let output = cargo(&["build", "-p", "kd-cli"], dev)?;
    let found = executables(&output, "kd")?.into_iter().next();
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

/// The executables of targets called `target`.
fn executables(messages: &str, target: &str) -> Result<Vec<GpuTest>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("a message of cargo")?;
        let Message { target: Some(made), executable: Some(executable), manifest_path: Some(manifest) } =
            message
        else {
            continue;
        };
        if made.name == target {
            let folder = manifest.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
            found.push(GpuTest { package: folder.to_string_lossy().into_owned(), executable });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/kd-moe/Cargo.toml","target":{"name":"kd_moe"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kd-moe/Cargo.toml","target":{"name":"gpu"},"executable":"/w/gpu-1"}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages, "gpu").expect("read");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].package.as_str(), found[0].executable.to_str()), ("kd-moe", Some("/w/gpu-1")));
    }
}
