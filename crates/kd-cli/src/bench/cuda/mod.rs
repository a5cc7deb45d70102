//! Measurements on a GPU: each is a thin verb over the crate that owns the kernels and measures them.

pub(super) mod attn;
pub(super) mod dense;
pub(super) mod moe;
pub(super) mod step;

use std::path::Path;

use anyhow::Context;
use kd_kernels::bench::Rates;
use kd_kernels::{Device, Kernels, Search, driver_version};
use kd_tensor::file::write_atomically;
use serde_json::{Value, json};

use super::record::Record;
use crate::UsageError;
use crate::args::{self, OperationArgs};

/// A GPU with the kernels of a profile.
pub(super) struct Gpu {
    device: Device,
    kernels: Kernels,
    profile: String,
}

impl Gpu {
    /// What `on` asks for; nothing if that is the CPU. `profile` is taken unless another is named.
    pub(super) fn choose(on: &OperationArgs, profile: &str) -> anyhow::Result<Option<Self>> {
        match (on.device, Self::required(on, profile)) {
            (args::Device::Cpu, _) => Ok(None),
            (args::Device::Auto, Err(error)) => {
                say!("kd: measures the CPU: {error}");
                Ok(None)
            }
            (_, gpu) => gpu.map(Some),
        }
    }

    /// As [`Gpu::choose`] for what only a GPU does.
    pub(super) fn required(on: &OperationArgs, profile: &str) -> anyhow::Result<Self> {
        let ordinal = match on.device {
            args::Device::Cpu => {
                let message = "this measures a GPU; the CPU has no such kernels (--device cuda)";
                return Err(UsageError(message.to_owned()).into());
            }
            args::Device::Auto => 0,
            args::Device::Cuda(ordinal) => ordinal,
        };
        let profile = on.profile.as_deref().unwrap_or(profile);
        let device = Device::open(ordinal)?;
        let kernels = Kernels::open(&device, profile, &Search::standard())?;
        Ok(Self { device, kernels, profile: profile.to_owned() })
    }

    /// A record of `what`, with the floors of this run.
    fn record(&self, what: &str, rates: &Rates) -> Record {
        let mut record = Record::on(what, machine(&self.device, &self.kernels));
        record.set("profile", self.profile.as_str());
        record.set(
            "floors",
            json!({
                "read_bytes_per_second": rates.bytes,
                "mma_operations_per_second": rates.operations,
                "launch_us": rates.launch,
            }),
        );
        record
    }

    /// One line for the terminal.
    fn describe(&self, rates: &Rates) -> String {
        format!(
            "{}, {}: reads {:.2} TB/s, mma.sync {:.0} TFLOP/s, a launch in a graph {:.2} µs, all in this run",
            self.device.name(),
            self.profile,
            rates.bytes / 1e12,
            rates.operations / 1e12,
            rates.launch
        )
    }
}

/// A device with its kernels, as records name it.
pub(crate) fn machine(device: &Device, kernels: &Kernels) -> Value {
    let header = kernels.bundle().header();
    let driver = driver_version().map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    json!({
        "device": device.name(),
        "sms": device.sms(),
        "kernels": format!("{} {} ({})", header.profile, header.arch, header.toolchain),
        "driver": driver.ok().map(|version| format!("CUDA {version}")),
        "os": std::env::consts::OS,
    })
}

/// Writes the picture of a measurement beside its result file; without one, nothing.
fn draw(out: Option<&Path>, svg: &str) -> anyhow::Result<()> {
    let Some(path) = out.map(|path| path.with_extension("svg")) else { return Ok(()) };
    write_atomically(&path, svg.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Samples in microseconds, to the nanosecond.
fn micros(samples: &[f64]) -> Vec<f64> {
    samples.iter().map(|sample| (sample * 1e3).round() / 1e3).collect()
}
