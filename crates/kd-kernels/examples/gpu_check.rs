//! Runs every kernel of a bundle against its CPU operation on device 0 and prints one line each.
//!
//! `gpu_check [--profile NAME] [--kernels DIR|FILE] [--seed N]`. Bundles are found as everywhere: `--kernels`,
//! `KD_KERNELS`, beside the executable, `target/kernels`. Exit code 1 if anything is wrong or cannot run.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use kd_kernels::{Device, Kernels, Search, selftest};

/// Enough rows that the operands of a wide norm are several times any L2.
const STREAMING_ROWS: usize = 16_384;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_check: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut profile = "k26-tp8".to_owned();
    let mut search = Search::standard();
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--profile" => profile = value,
            "--kernels" => search = Search::only(value),
            "--seed" => seed = value.parse()?,
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let device = Device::open(0)?;
    let kernels = Kernels::open(&device, &profile, &search)?;
    println!(
        "{} ({}, {} SMs), {}, seed {seed}",
        device.name(),
        device.arch(),
        device.sms(),
        kernels.bundle().path().display()
    );
    println!("{:28} {:>6} {:>9} {:>9} {:>12} {:>9}", "unit", "rows", "error", "us", "bytes", "GB/s");
    let rows = [&selftest::ROWS[..], &[STREAMING_ROWS]].concat();
    let outcomes = selftest::all(&device, &kernels, &rows, seed)?;
    for outcome in &outcomes {
        let rate = outcome.bytes as f64 / outcome.micros / 1e3;
        let (unit, rows, error) = (&outcome.unit, outcome.rows, outcome.error);
        println!(
            "{unit:28} {rows:>6} {error:>9.3} {:>9.2} {:>12} {rate:>9.1}",
            outcome.micros, outcome.bytes
        );
    }
    println!("{} checks passed", outcomes.len());
    Ok(())
}
