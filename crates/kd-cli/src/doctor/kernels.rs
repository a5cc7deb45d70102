//! Kernel bundles, and what they were made from.

use std::collections::BTreeSet;
use std::path::Path;

use kd_kernels::{Bundle, Search};

use super::Finding;

pub(super) fn bundles() -> Vec<Finding> {
    let files = Search::standard().files();
    if files.is_empty() {
        let text = "no bundle found; `cargo xtask build-kernels` makes them (the CPU needs none)";
        return vec![Finding::note("kernels", text)];
    }
    files.iter().map(|file| describe(file)).collect()
}

fn describe(file: &Path) -> Finding {
    let bundle = match Bundle::open(file) {
        Ok(bundle) => bundle,
        Err(error) => return Finding::bad("kernels", error.to_string()),
    };
    let header = bundle.header();
    if let Some(error) = header.units.iter().find_map(|unit| bundle.image(unit).err()) {
        return Finding::bad("kernels", error.to_string());
    }
    let families: BTreeSet<&str> = header.units.iter().map(|unit| unit.family.as_str()).collect();
    let spills: u32 = header.units.iter().map(|unit| unit.spill_bytes).sum();
    let text = format!(
        "{} {} ({}): {} units of {} families, {spills} bytes spilled, {}; {}",
        header.profile,
        header.arch,
        header.kind,
        header.units.len(),
        families.len(),
        header.toolchain,
        file.display()
    );
    if header.every_lane_arrives {
        return Finding::note("kernels", format!("{text}; built for racecheck, not for serving"));
    }
    Finding::ok("kernels", text)
}
