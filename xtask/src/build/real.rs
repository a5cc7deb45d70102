//! Tests with the real compiler, where it is installed: `cargo test` never installs it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use kernel_gen::{ARCHS, Catalog, Family, Profile, expand, kernels_dir, parse_families};
use rayon::prelude::*;

use super::compile::Compiler;
use crate::toolchain::Toolchain;

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

fn toolchain_or_skip(test: &str) -> Option<Toolchain> {
    let found = Toolchain::find();
    if found.is_none() {
        skip(test, "no CUDA compiler; `cargo xtask build-kernels` installs one");
    }
    found
}

fn skip(test: &str, why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // A closed stderr is no reason to fail a test.
    let _ = writeln!(std::io::stderr(), "skipped compiler test {count}: {test}: {why}");
}

/// A model shape that nobody has chosen by hand, within what the declarations allow.
fn invented(seed: u64) -> Profile {
    let mut state = seed;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64 % limit as i64
    };
    let mut profile = Profile::named("k26-tp1").expect("a profile");
    profile.name = format!("invented-{seed}");
    profile.tp = 1 << below(4);
    profile.hidden = 512 * (1 + below(25));
    profile.q_lora_rank = 32 * (1 + below(100));
    profile.kv_lora_rank = 128 << below(3);
    profile.expert_width = 512 * (1 + below(6));
    profile.dense_width = 256 * (1 + below(40));
    profile.vocab = 256 * (1 + below(500));
    if let Some(drafter) = &mut profile.drafter {
        drafter.head_dim = 64 << below(2);
        drafter.width = 256 * (1 + below(40));
    }
    profile
}

/// What the test below builds one of, expanded for many.
#[test]
fn profiles_invented_at_random_expand() {
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    for (seed, arch) in (0..200).zip(ARCHS.iter().cycle()) {
        let profile = invented(seed);
        let units = catalog.units(&profile, arch).unwrap_or_else(|error| panic!("{profile:?}: {error}"));
        assert!(units.len() >= catalog.families.len());
    }
}

#[test]
fn a_profile_invented_at_random_is_built() {
    let Some(toolchain) = toolchain_or_skip("a_profile_invented_at_random_is_built") else { return };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let (profile, arch) = (invented(seed), &ARCHS[(seed % 2) as usize]);
    let out = tempfile::tempdir().expect("a folder");
    let compiler = Compiler::new(toolchain, kernels_dir(), out.path().to_owned());
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    let units = catalog.units(&profile, arch).unwrap_or_else(|error| panic!("{profile:?}: {error}"));
    assert!(units.len() >= catalog.families.len());
    // A quarter of them, another one each time: all would take minutes.
    let some: Vec<_> = units.iter().skip((seed / 2 % 4) as usize).step_by(4).collect();
    some.par_iter().for_each(|(family, unit)| {
        let built = compiler.image(family, unit, arch, false);
        let (image, fresh) = built.unwrap_or_else(|error| panic!("{profile:?}: {error:#}"));
        assert!(fresh && !image.cubin.is_empty(), "{}", unit.name);
    });
}

/// A kernel folder with the shared headers and one family of its own.
fn folder_with(declaration: &str, template: &str) -> (tempfile::TempDir, Family) {
    let folder = tempfile::tempdir().expect("a folder");
    for shared in ["kd", "ptx"] {
        copy(&kernels_dir().join(shared), &folder.path().join(shared));
    }
    fs::write(folder.path().join("probe.cuh"), template).expect("written");
    let family = parse_families("probe.rs", declaration).expect("parsed").remove(0);
    (folder, family)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("read") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

const PROBE: &str = "\
/// A test.
family! { probe, template \"probe.cuh\";
  dims   { H = hidden }
  variant a { T = 64 }
  args   { w: int4g32<E, H>, y: mut f32[E] }
  sass   { \"FADD\", \"LDG.E\" }
  launch { grid E, block T }
}
";
const TEMPLATE: &str = "\
#pragma once
#include \"kd/int4.cuh\"
namespace kd {
template <class U, class S>
__device__ void probe(Int4G32 w, float* y, int E) {
  const int group = blockIdx.x * (U::H / Int4G32::GROUP) + threadIdx.x;
  y[blockIdx.x] = __uint_as_float(w.blocks[5 * group]) + float(w.blocks[5 * group + 1] & 15u);
}
}  // namespace kd
";

#[test]
fn sass_without_a_declared_instruction_is_refused_and_a_composite_reaches_the_template() {
    let test = "sass_without_a_declared_instruction_is_refused_and_a_composite_reaches_the_template";
    let Some(toolchain) = toolchain_or_skip(test) else { return };
    if toolchain.installed_disassembler().is_none() {
        return skip(test, "no nvdisasm; building a family that declares `sass` installs one");
    }
    for arch in &ARCHS {
        let build = |declaration: &str| {
            let (folder, family) = folder_with(declaration, TEMPLATE);
            let unit = &expand(&family, &Profile::named("demo-tp1").expect("a profile")).expect("units")[0];
            let compiler =
                Compiler::new(toolchain.clone(), folder.path().to_owned(), folder.path().join("out"));
            compiler.image(&family, unit, arch, false).map(|(image, _)| image.cubin.len())
        };
        assert!(build(PROBE).expect("built") > 0);
        let error =
            build(&PROBE.replace("\"FADD\"", "\"HMMA.16816.F32.BF16\"")).expect_err("no tensor instruction");
        let message = format!("{error:#}");
        assert!(message.contains("does not contain the declared HMMA.16816.F32.BF16"), "{message}");
        assert!(message.contains(arch.name), "{message}");
    }
}

const HUNGRY: &str = "\
/// Needs more registers than its launch leaves it.
family! { probe, template \"probe.cuh\";
  dims   { H = hidden }
  variant a { LIVE = 96 }
  args   { x: f32[E], y: mut f32[E] }
  launch { grid E, block 1024 }
}
";
const SPILLS: &str = "\
#pragma once
#include \"kd/base.cuh\"
namespace kd {
template <class U, class S>
__device__ void probe(const float* x, float* y, int E) {
  float live[U::LIVE];
#pragma unroll
  for (int i = 0; i < U::LIVE; ++i) live[i] = x[i * E + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < U::LIVE; ++i) y[i * E + threadIdx.x] = live[i] + live[(i * 7 + 3) % U::LIVE];
}
}  // namespace kd
";

#[test]
fn a_real_spill_is_reported_and_a_second_build_compiles_nothing() {
    let test = "a_real_spill_is_reported_and_a_second_build_compiles_nothing";
    let Some(toolchain) = toolchain_or_skip(test) else { return };
    for arch in &ARCHS {
        let (folder, family) = folder_with(HUNGRY, SPILLS);
        let units = expand(&family, &Profile::named("demo-tp1").expect("a profile")).expect("units");
        let compiler = Compiler::new(toolchain.clone(), folder.path().to_owned(), folder.path().join("out"));
        let (image, fresh) = compiler.image(&family, &units[0], arch, false).expect("built");
        assert!(fresh && image.report.spill_bytes > 0, "{}: {:?}", arch.name, image.report);
        let faults = super::ratchet::faults_of_new(&units[0], arch.name, &image.report);
        assert!(faults.iter().any(|fault| fault.contains("spilled bytes, ratchet 0")), "{faults:?}");
        let (again, fresh) = compiler.image(&family, &units[0], arch, false).expect("found");
        assert!(!fresh && again.cubin == image.cubin, "{}: compiled twice", arch.name);
        // Any change of what the image is made from is a change of its key.
        let template = folder.path().join("probe.cuh");
        fs::write(&template, SPILLS.replace("* 7 + 3", "* 5 + 3")).expect("written");
        assert!(compiler.image(&family, &units[0], arch, false).expect("built").1, "{}", arch.name);
    }
}

#[test]
fn two_builds_of_the_same_unit_do_not_disturb_each_other() {
    let test = "two_builds_of_the_same_unit_do_not_disturb_each_other";
    let Some(toolchain) = toolchain_or_skip(test) else { return };
    let (folder, family) = folder_with(HUNGRY, SPILLS);
    let units = expand(&family, &Profile::named("demo-tp1").expect("a profile")).expect("units");
    let build = || {
        let compiler = Compiler::new(toolchain.clone(), folder.path().to_owned(), folder.path().join("out"));
        let (image, _) = compiler.image(&family, &units[0], &ARCHS[0], false).expect("built");
        image.cubin
    };
    let (one, other) = rayon::join(build, build);
    assert_eq!(one, other);
    let left: Vec<_> = fs::read_dir(folder.path().join("out")).expect("read").collect();
    assert_eq!(left.len(), 1, "only the cache stays: {left:?}");
}
