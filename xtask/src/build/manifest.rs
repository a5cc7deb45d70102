//! Bundles of a build, and the manifest that lists all bundles of the output folder.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use kernel_gen::emit;
use serde::{Deserialize, Serialize};

use super::bundle::{self, Header, Row};
use super::compile::{Compiler, Image};
use super::key::sha256_hex;
use super::{Id, Job, Wanted};
use crate::paths;

/// `target/kernels/manifest.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    toolchain: String,
    /// By file name.
    bundles: BTreeMap<String, Entry>,
}

/// One bundle file with its rows.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    sha256: String,
    bytes: u64,
    #[serde(flatten)]
    header: Header,
}

/// Writes one bundle per wanted profile, architecture and image kind, then the manifest. Returns how many files
/// changed.
pub(crate) fn write_bundles(
    compiler: &Compiler,
    jobs: &[Job<'_>],
    wanted: &[Wanted],
    images: &BTreeMap<Id, Image>,
) -> Result<usize> {
    let mut written = 0;
    let mut manifest = kept(compiler);
    for bundle in wanted {
        let members: Vec<(&Job<'_>, &Image)> =
            bundle.units.iter().filter_map(|name| member(name, bundle.arch.name, jobs, images)).collect();
        let cubins: Vec<&[u8]> = members.iter().map(|(_, image)| image.cubin.as_slice()).collect();
        let ptx: Vec<&[u8]> = members.iter().map(|(_, image)| image.ptx.as_slice()).collect();
        let mut kinds = vec![("cubin", bundle.arch.name, cubins)];
        kinds.extend(bundle.arch.keeps_ptx.then_some(("ptx", bundle.arch.compute, ptx)));
        for (kind, arch, payloads) in kinds {
            let header = Header {
                profile: bundle.profile.clone(),
                arch: arch.to_owned(),
                kind: kind.to_owned(),
                toolchain: compiler.version().to_owned(),
                every_lane_arrives: compiler.every_lane_arrives(),
                payload: 0,
                units: members.iter().map(|(job, image)| row(job, image)).collect::<Result<_>>()?,
            };
            let header = header.placed(&payloads);
            let file = format!("{}-{arch}.kdb", bundle.profile);
            if manifest.bundles.get(&file).is_some_and(|entry| entry.header == header) {
                continue;
            }
            let bytes = bundle::encode(&header, &payloads)?;
            written += usize::from(paths::write_atomic(&compiler.out().join(&file), &bytes)?);
            let entry = Entry { sha256: sha256_hex(&bytes), bytes: bytes.len() as u64, header };
            manifest.bundles.insert(file, entry);
        }
    }
    let mut json = serde_json::to_vec_pretty(&manifest)?;
    json.push(b'\n');
    written += usize::from(paths::write_atomic(&compiler.out().join("manifest.json"), &json)?);
    Ok(written)
}

/// The manifest of earlier builds, without bundles that are gone, changed or made by another compiler.
fn kept(compiler: &Compiler) -> Manifest {
    let old = fs::read(compiler.out().join("manifest.json")).ok();
    let old: Manifest = old.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let current = |file: &String, entry: &Entry| {
        entry.header.toolchain == compiler.version()
            && fs::read(compiler.out().join(file)).is_ok_and(|bytes| sha256_hex(&bytes) == entry.sha256)
    };
    Manifest {
        format: bundle::FORMAT,
        toolchain: compiler.version().to_owned(),
        bundles: old.bundles.into_iter().filter(|(file, entry)| current(file, entry)).collect(),
    }
}

fn member<'a>(
    name: &str,
    arch: &'static str,
    jobs: &'a [Job<'_>],
    images: &'a BTreeMap<Id, Image>,
) -> Option<(&'a Job<'a>, &'a Image)> {
    let job = jobs.iter().find(|job| job.unit.name == name && job.arch.name == arch)?;
    Some((job, images.get(&(name.to_owned(), arch))?))
}

/// The manifest row of an image; its place in the payload is filled in by [`bundle::encode`].
fn row(job: &Job<'_>, image: &Image) -> Result<Row> {
    let unit = &job.unit;
    let size = |what: &str, value: i64| {
        u32::try_from(value).with_context(|| format!("{} of {} is {value}", what, unit.name))
    };
    Ok(Row {
        family: unit.family.clone(),
        unit: unit.name.clone(),
        variant: unit.variant.clone(),
        contract: emit::contract(job.family),
        source: image.key.clone(),
        dims: unit.dims.iter().cloned().collect(),
        constants: unit.constants.iter().map(|(name, _, value)| (name.clone(), *value)).collect(),
        block: size("block", unit.block)?,
        min_ctas: size("min_ctas", unit.min_ctas)?,
        cluster: size("cluster", unit.cluster)?,
        smem: size("shared memory", unit.layout.bytes)?,
        registers: image.report.registers,
        spill_bytes: image.report.spill_bytes,
        offset: 0,
        bytes: 0,
        sha256: String::new(),
    })
}
