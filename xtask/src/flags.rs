//! The command line of xtask.

use std::path::PathBuf;

use kernel_gen::{ARCHS, Arch, Profile};

use crate::paths;

pub(crate) const USAGE: &str = "\
usage: cargo xtask <command>

  build-kernels   compile every kernel unit and bundle the images into target/kernels
      --arch NAME          only this architecture (repeatable); default: all
      --profile NAME       only this profile (repeatable); default: all
      --family NAME        only this family (repeatable); compiles and reports, writes no bundle
      --check              also: generated code fresh, registers and spills within kernel-gen/ratchets.json
      --update-ratchets    write what was measured into kernel-gen/ratchets.json
      --keep-sources       leave the generated .cu files in target/kernels/sources
      --every-lane-arrives build images for racecheck instead, into target/kernels/every-lane-arrives, with bundles
                           of the given families alone (docs/kernels/README.md, 5)
  codegen         write the generated launchers of crates/kd-kernels
      --check              fail if they are not fresh, write nothing
  gpu-bundle      pack the GPU tests, kd and kernels for a GPU machine without Rust
      --arch NAME          architectures (repeatable); default: all, so that one can be timed as another
      --profile NAME       model shapes (repeatable); default: those that the tests name
      --out FILE           default: target/kd-gpu.tar.xz
      --no-kd              without the kd program
      --dev                cargo's dev profile, which builds faster
  ci              what .ci/run runs: format, lints, fresh code, kernels, tests";

/// Profiles that GPU tests name.
const TESTED: [&str; 8] =
    ["k26-tp8", "k26-tp4", "k26-tp2", "k26-tp1", "k26-ep4", "k26-ep8", "demo-tp1", "demo-tp2"];

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    BuildKernels(BuildOptions),
    Codegen { check: bool },
    GpuBundle(BundleOptions),
    Ci,
}

/// Flags of `build-kernels`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BuildOptions {
    pub(crate) archs: Vec<Arch>,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) families: Vec<String>,
    pub(crate) check: bool,
    pub(crate) update_ratchets: bool,
    pub(crate) keep_sources: bool,
    pub(crate) every_lane_arrives: bool,
}

/// Flags of `gpu-bundle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BundleOptions {
    pub(crate) archs: Vec<Arch>,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) out: PathBuf,
    pub(crate) kd: bool,
    pub(crate) dev: bool,
}

/// Reads `arguments`; the error is one line for the user.
pub(crate) fn parse(arguments: &[String]) -> Result<Command, String> {
    let Some((verb, rest)) = arguments.split_first() else { return Ok(Command::Help) };
    match (verb.as_str(), rest) {
        ("build-kernels", rest) => build_options(rest).map(Command::BuildKernels),
        ("gpu-bundle", rest) => bundle_options(rest).map(Command::GpuBundle),
        ("codegen", []) => Ok(Command::Codegen { check: false }),
        ("codegen", [flag]) if flag == "--check" => Ok(Command::Codegen { check: true }),
        ("ci", []) => Ok(Command::Ci),
        ("help" | "--help" | "-h", _) => Ok(Command::Help),
        ("codegen" | "ci", [flag, ..]) => Err(format!("`{verb}` does not take `{flag}`")),
        _ => Err(format!("unknown command `{verb}`")),
    }
}

fn build_options(arguments: &[String]) -> Result<BuildOptions, String> {
    let mut options = BuildOptions::default();
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--arch" => options.archs.push(arch(value()?)?),
            "--profile" => options.profiles.push(profile(value()?)?),
            "--family" => options.families.push(value()?.clone()),
            "--check" => options.check = true,
            "--update-ratchets" => options.update_ratchets = true,
            "--keep-sources" => options.keep_sources = true,
            "--every-lane-arrives" => options.every_lane_arrives = true,
            other => return Err(format!("`build-kernels` does not take `{other}`")),
        }
    }
    if options.every_lane_arrives && (options.check || options.update_ratchets) {
        return Err("ratchets are of a release's images, not of --every-lane-arrives".to_owned());
    }
    if options.archs.is_empty() {
        options.archs = ARCHS.to_vec();
    }
    if options.profiles.is_empty() {
        options.profiles = Profile::all();
    }
    Ok(options)
}

fn bundle_options(arguments: &[String]) -> Result<BundleOptions, String> {
    let out = paths::target().join("kd-gpu.tar.xz");
    let mut options = BundleOptions { archs: Vec::new(), profiles: Vec::new(), out, kd: true, dev: false };
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--arch" => options.archs.push(arch(value()?)?),
            "--profile" => options.profiles.push(profile(value()?)?),
            "--out" => options.out = PathBuf::from(value()?),
            "--no-kd" => options.kd = false,
            "--dev" => options.dev = true,
            other => return Err(format!("`gpu-bundle` does not take `{other}`")),
        }
    }
    if options.archs.is_empty() {
        options.archs = ARCHS.to_vec();
    }
    if options.profiles.is_empty() {
        options.profiles = TESTED.into_iter().map(profile).collect::<Result<_, _>>()?;
    }
    Ok(options)
}

fn arch(name: &str) -> Result<Arch, String> {
    let known = || ARCHS.map(|arch| arch.name).join(", ");
    Arch::named(name).ok_or_else(|| format!("unknown --arch {name}; known: {}", known()))
}

fn profile(name: &str) -> Result<Profile, String> {
    let known = || Profile::all().into_iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    Profile::named(name).ok_or_else(|| format!("unknown --profile {name}; known: {}", known()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn everything_is_built_by_default() {
        let Ok(Command::BuildKernels(options)) = parsed("build-kernels") else { panic!("not parsed") };
        assert_eq!((options.archs.len(), options.profiles.len()), (ARCHS.len(), Profile::all().len()));
    }

    #[test]
    fn flags_narrow_the_build() {
        let Ok(Command::BuildKernels(options)) =
            parsed("build-kernels --arch sm_90a --profile demo-tp1 --check")
        else {
            panic!("not parsed")
        };
        assert_eq!(options.archs[0].name, "sm_90a");
        assert_eq!(options.profiles[0].name, "demo-tp1");
        assert!(options.check && !options.keep_sources);
    }

    #[test]
    fn a_gpu_bundle_has_the_profiles_that_its_tests_name() {
        let Ok(Command::GpuBundle(options)) = parsed("gpu-bundle") else { panic!("not parsed") };
        assert!(options.kd && !options.dev && options.archs.len() == ARCHS.len());
        let mut packed: Vec<String> = options.profiles.into_iter().map(|profile| profile.name).collect();
        let mut open: Vec<PathBuf> =
            ["crates/kd-kernels", "crates/kd-attn", "crates/kd-moe", "crates/kd-model"]
                .map(|package| paths::workspace().join(package).join("tests"))
                .into();
        open.push(paths::workspace().join("tests/cuda"));
        let mut text = String::new();
        while let Some(path) = open.pop() {
            match fs::read_dir(&path) {
                Ok(entries) => open.extend(entries.map(|entry| entry.expect("an entry").path())),
                Err(_) if path.extension().is_some_and(|extension| extension == "rs") => {
                    text += &fs::read_to_string(&path).expect("a test");
                }
                Err(_) => {}
            }
        }
        let names = Profile::all().into_iter().map(|profile| profile.name);
        let mut named: Vec<String> = names.filter(|name| text.contains(&format!("\"{name}\""))).collect();
        packed.sort();
        named.sort();
        assert_eq!(packed, named);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parsed("build-kernels --arch sm_80").unwrap_err().contains("known: sm_120, sm_90a"));
        assert!(parsed("build-kernels --profile").unwrap_err().contains("needs a value"));
        assert!(parsed("build-kernels --every-lane-arrives --check").unwrap_err().contains("ratchets"));
        assert!(parsed("gpu-bundle --kd").unwrap_err().contains("does not take `--kd`"));
        assert!(parsed("codegen --chek").unwrap_err().contains("--chek"));
        assert!(parsed("deploy").unwrap_err().contains("deploy"));
    }
}
