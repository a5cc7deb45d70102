//! Times `dense` at the shapes of a profile beside its floor and cuBLASLt on device 0, then norms, append and commit past L2
//! beside their bytes; prints a JSON object a line.
//!
//! `dense_bench [PROFILE]` (k26-tp8). The floor is that of an H200: docs/kernels/dense.md.

use std::process::ExitCode;

use kd_kernels::bench::{self, Rates};
use kd_kernels::{Device, Kernels, Search};

/// Measured on an H200: reads past L2, and `mma.sync` m16n8k16 bf16 on registers alone.
const H200: Rates = Rates { bytes: 4.6e12, operations: 644e12 };
/// Widths of K2.6: hidden, and latent and rotary values of a cache entry.
const HIDDEN: usize = 7168;
const LATENT: [usize; 2] = [512, 64];
const ROWS: [usize; 8] = [1, 8, 16, 33, 64, 132, 264, 528];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dense_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let profile = std::env::args().nth(1).unwrap_or_else(|| "k26-tp8".to_owned());
    let shapes = if profile == "k26-tp1" { bench::K26_TP1 } else { bench::K26_TP8 };
    let device = Device::open(0)?;
    let kernels = Kernels::open(&device, &profile, &Search::standard())?;
    for line in bench::dense(&device, &kernels, &shapes, &ROWS, &H200)? {
        println!(
            "{}",
            serde_json::json!({
                "device": device.name(), "profile": profile, "k": line.shape.k, "n": line.shape.n, "rows": line.rows,
                "variant": line.variant, "us": line.micros, "floor_us": line.floor_micros(&H200),
                "cublaslt_us": line.cublas_micros,
            })
        );
    }
    for line in bench::rows(&device, &kernels, HIDDEN, LATENT)? {
        let rate = line.bytes as f64 / line.micros * 1e6;
        println!(
            "{}",
            serde_json::json!({
                "device": device.name(), "profile": profile, "family": line.family, "rows": line.rows,
                "bytes": line.bytes, "us": line.micros, "bandwidth": rate / H200.bytes,
            })
        );
    }
    Ok(())
}
