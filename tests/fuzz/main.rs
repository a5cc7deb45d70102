//! `cargo run --release -p kd-tests --example fuzz -- [--executions N] [--seed N] [--target NAME] [--out FILE]`
//!
//! Runs the fuzz targets and writes what was run. An input that makes a reader panic is saved beside and ends the run with
//! exit code 1.

use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use kd_tests::fuzz::targets;
use serde_json::json;

fn main() -> anyhow::Result<ExitCode> {
    let (mut executions, mut seed, mut only, mut out) = (1_000_000u64, 0u64, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--executions" => executions = value.parse()?,
            "--seed" => seed = value.parse()?,
            "--target" => only = Some(value),
            "--out" => out = Some(value),
            _ => bail!("unknown flag {flag}"),
        }
    }
    let targets: Vec<_> =
        targets().into_iter().filter(|t| only.as_ref().is_none_or(|name| name == t.name)).collect();
    let weights: u64 = targets.iter().map(|target| target.weight).sum();
    ensure!(weights > 0, "no target of that name");
    let (mut rows, mut panics, mut total) = (Vec::new(), 0, 0);
    for target in &targets {
        let begin = Instant::now();
        let outcome = target.fuzz((executions * target.weight).div_ceil(weights), seed);
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{:18} {:>10} executions {seconds:>8.1} s, {} panics",
            target.name,
            outcome.executions,
            outcome.panics.len()
        );
        for input in &outcome.panics {
            std::fs::write(format!("panic-{}-{seed}", target.name), input)?;
        }
        panics += outcome.panics.len();
        total += outcome.executions;
        rows.push(json!({
            "target": target.name, "executions": outcome.executions, "seconds": seconds, "panics": outcome.panics.len(),
        }));
    }
    if let Some(out) = out {
        let git = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output();
        let commit =
            git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        let record = json!({
            "command": format!("cargo run -p kd-tests --example fuzz -- --executions {executions} --seed {seed}"),
            "overflow_checks_and_debug_assertions": cfg!(debug_assertions),
            "commit": commit,
            "unix_time": SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            "seed": seed,
            "executions": total,
            "panics": panics,
            "targets": rows,
        });
        kd_tensor::file::write_atomically(out.as_ref(), format!("{record:#}\n").as_bytes())?;
    }
    Ok(if panics == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
