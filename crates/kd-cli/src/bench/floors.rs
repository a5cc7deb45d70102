//! What the machine allows: the rates that times are compared with, measured in the same run.

use kd_kernels::bench::Rates;
use kd_tensor::{Pool, machine};
use serde_json::{Value, json};

/// Rates of this machine with the threads in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floors {
    /// Multiply-adds a second: f32 on a CPU, bf16 `mma.sync` on a GPU.
    pub(crate) peak: f64,
    /// Bytes a second read from a working set of `bytes`.
    pub(crate) bandwidth: f64,
    /// The working set, from which follows the level of memory; `None`: the memory of a GPU.
    pub(crate) bytes: Option<usize>,
}

impl Floors {
    /// Measures both rates, the bandwidth with a working set of `bytes`.
    pub(crate) fn measure(pool: &Pool, bytes: usize) -> Self {
        Self {
            peak: machine::peak(pool, 50),
            bandwidth: machine::bandwidth(pool, bytes, 4),
            bytes: Some(bytes),
        }
    }

    /// Those of a GPU.
    pub(crate) fn of(rates: &Rates) -> Self {
        Self { peak: rates.operations / 2.0, bandwidth: rates.bytes, bytes: None }
    }

    /// Least seconds of so many multiply-adds on so many bytes, and which of the two sets them.
    pub(crate) fn seconds(&self, multiply_adds: f64, bytes: f64) -> (f64, &'static str) {
        let (compute, read) = (multiply_adds / self.peak, bytes / self.bandwidth);
        if read > compute { (read, "bytes") } else { (compute, "multiply-adds") }
    }

    /// One line for the terminal.
    pub(crate) fn describe(&self) -> String {
        let (class, memory) = match self.bytes {
            Some(bytes) => ("f32", format!("a working set of {:.0} MB", bytes as f64 / 1e6)),
            None => ("bf16 mma.sync", "device memory".to_owned()),
        };
        format!(
            "floor of this run: {:.1} G multiply-adds/s ({class}, registers), {:.1} GB/s read from {memory}",
            self.peak / 1e9,
            self.bandwidth / 1e9,
        )
    }

    /// For the result file.
    pub(crate) fn json(&self) -> Value {
        json!({
            "multiply_adds_per_second": self.peak,
            "read_bytes_per_second": self.bandwidth,
            "read_working_set_bytes": self.bytes,
        })
    }
}
