//! `cargo xtask build-kernels`: declarations to images, bundles and a manifest.

pub(crate) mod bundle;
mod compile;
mod key;
mod manifest;
mod ptxas;
mod ratchet;
#[cfg(test)]
mod real;
mod sass;
mod table;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kernel_gen::{Arch, Catalog, Family, Unit, kernels_dir};
use rayon::prelude::*;

use crate::flags::BuildOptions;
use crate::toolchain::Toolchain;
use crate::{codegen, paths};

use compile::{Compiler, Image};

/// A unit to compile for one architecture.
struct Job<'a> {
    family: &'a Family,
    unit: Unit,
    arch: Arch,
}

/// Unit name and architecture: the identity of an image.
type Id = (String, &'static str);

/// Builds what `options` select.
pub(crate) fn run(options: &BuildOptions) -> Result<()> {
    let begun = Instant::now();
    if options.check {
        codegen::run(true)?;
    }
    let catalog = Catalog::read(&kernels_dir())?;
    if let Some(unknown) = options.families.iter().find(|name| catalog.family(name).is_none()) {
        let known = catalog.families.iter().map(|family| family.name.as_str()).collect::<Vec<_>>().join(", ");
        bail!("unknown --family {unknown}; known: {known}");
    }
    // Everything that a declaration can get wrong is found here, before a compiler is looked for.
    let (jobs, wanted) = plan(&catalog, options)?;
    let compiler = compiler(Toolchain::find_or_install()?, options.every_lane_arrives);
    let (images, compiled) = compile_all(&compiler, &jobs, options.keep_sources)?;

    let rows: Vec<table::Row<'_>> = jobs.iter().filter_map(|job| row(job, &images)).collect();
    print!("{}", table::render(&rows));
    let written = if options.families.is_empty() || options.every_lane_arrives {
        manifest::write_bundles(&compiler, &jobs, &wanted, &images)?
    } else {
        println!("--family given: no bundle written");
        0
    };
    if options.update_ratchets {
        ratchet::update(&catalog, &rows)?;
    }
    if options.check {
        ratchet::check_committed(&catalog, &rows)?;
    }
    let (images, seconds) = (images.len(), begun.elapsed().as_secs_f64());
    println!("{images} images, {compiled} compiled, {written} files written, {seconds:.1} s");
    Ok(())
}

/// The compiler of a release, or of images for racecheck, which have a folder of their own: nothing looks there unless it is told.
fn compiler(toolchain: Toolchain, every_lane_arrives: bool) -> Compiler {
    let kernels = paths::target().join("kernels");
    if every_lane_arrives {
        Compiler::new(toolchain, kernels_dir(), kernels.join("every-lane-arrives")).for_racecheck()
    } else {
        Compiler::new(toolchain, kernels_dir(), kernels)
    }
}

/// The units of one bundle: profile, architecture, unit names in declaration order.
struct Wanted {
    profile: String,
    arch: Arch,
    units: Vec<String>,
}

/// Distinct jobs over all profiles, and which of them each bundle holds.
fn plan<'a>(catalog: &'a Catalog, options: &BuildOptions) -> Result<(Vec<Job<'a>>, Vec<Wanted>)> {
    let mut jobs: BTreeMap<Id, Job<'a>> = BTreeMap::new();
    let mut wanted = Vec::new();
    for arch in &options.archs {
        for profile in &options.profiles {
            let mut names = Vec::new();
            for (family, unit) in catalog.units(profile, arch)? {
                if options.families.is_empty() || options.families.contains(&family.name) {
                    names.push(unit.name.clone());
                    let id = (unit.name.clone(), arch.name);
                    jobs.entry(id).or_insert(Job { family, unit, arch: *arch });
                }
            }
            wanted.push(Wanted { profile: profile.name.clone(), arch: *arch, units: names });
        }
    }
    Ok((jobs.into_values().collect(), wanted))
}

/// Compiles what the cache lacks, in parallel. Returns all images and how many were compiled.
fn compile_all(compiler: &Compiler, jobs: &[Job<'_>], keep: bool) -> Result<(BTreeMap<Id, Image>, usize)> {
    let bar = ProgressBar::new(jobs.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let compiled = Mutex::new(0);
    let images: Result<Vec<(Id, Image)>> = jobs
        .par_iter()
        .map(|job| {
            let id = (job.unit.name.clone(), job.arch.name);
            bar.set_message(format!("{} {}", job.unit.name, job.arch.name));
            let (image, fresh) = compiler.image(job.family, &job.unit, &job.arch, keep)?;
            if fresh && let Ok(mut count) = compiled.lock() {
                *count += 1;
            }
            bar.inc(1);
            Ok((id, image))
        })
        .collect();
    bar.finish_and_clear();
    let compiled = compiled.into_inner().unwrap_or_default();
    Ok((images?.into_iter().collect(), compiled))
}

fn row<'a>(job: &'a Job<'_>, images: &'a BTreeMap<Id, Image>) -> Option<table::Row<'a>> {
    let image = images.get(&(job.unit.name.clone(), job.arch.name))?;
    Some(table::Row { unit: &job.unit, arch: job.arch.name, report: &image.report, bytes: image.cubin.len() })
}
