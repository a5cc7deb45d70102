//! Driver, GPUs, the links between them, and CUDA libraries.

use kd_kernels::probe::{self, Gpu};
use kd_kernels::{KernelError, driver_version};

use super::Finding;

pub(super) fn driver_and_gpus() -> Vec<Finding> {
    let driver = match driver_version() {
        Ok(version) => format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
        Err(KernelError::NoDriver) => {
            return vec![Finding::note("driver", "no NVIDIA driver: the CPU is used")];
        }
        Err(error) => return vec![Finding::bad("driver", error.to_string())],
    };
    let mut findings = vec![Finding::ok("driver", driver)];
    match probe::gpus() {
        Ok(gpus) if gpus.is_empty() => findings.push(Finding::note("gpu", "the driver sees no GPU")),
        Ok(gpus) => {
            findings.extend(gpus.iter().map(describe));
            if gpus.len() > 1 {
                findings.push(peers(&gpus));
            }
        }
        Err(error) => findings.push(Finding::bad("gpu", error.to_string())),
    }
    findings
}

fn describe(gpu: &Gpu) -> Finding {
    let memory = gpu.memory as f64 / (1u64 << 30) as f64;
    let (major, minor) = gpu.capability;
    let text = format!(
        "{}: {}, {memory:.1} GiB, capability {major}.{minor}{}",
        gpu.ordinal,
        gpu.name,
        link(&gpu.pci)
    );
    match gpu.arch {
        Some(arch) => Finding::ok("gpu", format!("{text}, runs {arch} images")),
        None => Finding::note("gpu", format!("{text}: no images are made for it")),
    }
}

/// The present PCIe link and the best that the slot and card can do. An idle card lowers its link.
fn link(pci: &str) -> String {
    let read = |what: &str| {
        let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/{what}")).ok()?;
        Some(text.trim().trim_end_matches(" PCIe").to_owned())
    };
    let pair = |speed, width| Some(format!("{} x{}", read(speed)?, read(width)?));
    let now = pair("current_link_speed", "current_link_width");
    let most = pair("max_link_speed", "max_link_width");
    match (now, most) {
        (Some(now), Some(most)) if now == most => format!(", link {now}"),
        (Some(now), Some(most)) => format!(", link {now} of {most}"),
        _ => String::new(),
    }
}

fn peers(gpus: &[Gpu]) -> Finding {
    let pairs = gpus.len() * (gpus.len() - 1);
    let reached: usize = gpus.iter().map(|gpu| gpu.peers.len()).sum();
    let text = format!("{reached} of {pairs} ordered pairs reach each other's memory");
    if reached == pairs {
        Finding::ok("p2p", text)
    } else {
        Finding::note("p2p", format!("{text}: the rest goes through the host"))
    }
}

pub(super) fn libraries() -> Finding {
    let found = probe::libraries();
    let names = |present: bool| {
        let names: Vec<&str> =
            found.iter().filter(|(_, has)| *has == present).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    match (names(true), names(false)) {
        (has, lacks) if lacks.is_empty() => Finding::ok("libraries", has),
        (has, lacks) if has.is_empty() => Finding::note("libraries", format!("not found: {lacks}")),
        (has, lacks) => Finding::note("libraries", format!("{has}; not found: {lacks}")),
    }
}
