//! Everything that must hold before a change lands.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::flags::BuildOptions;
use crate::{build, codegen, paths};
use kernel_gen::{ARCHS, Profile};

/// Profiles whose kernels are compiled on every change.
const PROFILES: [&str; 2] = ["k26-tp8", "demo-tp1"];

/// Runs all checks, cheapest first; `cargo test` comes last so that its summary ends the log.
pub(crate) fn run() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    step("codegen --check");
    codegen::run(true)?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    step(&format!("build-kernels --check --profile {}", PROFILES.join(" --profile ")));
    build::run(&BuildOptions {
        archs: ARCHS.to_vec(),
        profiles: PROFILES.iter().filter_map(|name| Profile::named(name)).collect(),
        check: true,
        ..BuildOptions::default()
    })?;
    cargo(&["test", "--workspace"])
}

fn step(what: &str) {
    println!("== {what}");
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let line = format!("cargo {}", arguments.join(" "));
    step(&line);
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(paths::workspace()).status();
    if status.with_context(|| format!("cannot run {line}"))?.success() {
        Ok(())
    } else {
        bail!("{line} failed")
    }
}
