//! One unit through nvcc, with a cache keyed by content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use kernel_gen::{Arch, Family, Unit, emit};

use super::key;
use super::ptxas::{self, Report};
use super::sass;
use crate::paths;
use crate::toolchain::Toolchain;

/// No `-lineinfo` and no absolute path on the command line: an image must not depend on where it was built.
const CUDA_FLAGS: [&str; 5] =
    ["-std=c++17", "-O3", "-Werror=all-warnings", "--extra-device-vectorization", "-ptx"];
const PTXAS_FLAGS: [&str; 3] = ["-O3", "-v", "--warning-as-error"];
/// Images for racecheck (`kernels/ptx/bulk.cuh`), whose reports name lines. They stay where they were built.
const EVERY_LANE_ARRIVES: [&str; 2] = ["-DKD_EVERY_LANE_ARRIVES", "-lineinfo"];
const SOURCE: &str = "unit.cu";
const LAYOUT: &str = "unit.layout.cuh";
const PTX: &str = "unit.ptx";
const CUBIN: &str = "unit.cubin";

/// A compiled unit.
pub(crate) struct Image {
    /// SASS.
    pub(crate) cubin: Vec<u8>,
    /// The PTX it was assembled from.
    pub(crate) ptx: Vec<u8>,
    /// The assembler's report on the SASS.
    pub(crate) report: Report,
    /// Hash of everything that the image depends on.
    pub(crate) key: String,
}

/// nvcc with its inputs and its cache.
pub(crate) struct Compiler {
    toolchain: Toolchain,
    kernels: PathBuf,
    out: PathBuf,
    every_lane_arrives: bool,
}

impl Compiler {
    /// Compiles templates of `kernels`; keeps everything it writes below `out`.
    pub(crate) fn new(toolchain: Toolchain, kernels: PathBuf, out: PathBuf) -> Self {
        Self { toolchain, kernels, out, every_lane_arrives: false }
    }

    /// The compiler of images in which every lane of a warp arrives where one stands for it.
    pub(crate) fn for_racecheck(self) -> Self {
        Self { every_lane_arrives: true, ..self }
    }

    /// Whether it is [`Compiler::for_racecheck`].
    pub(crate) fn every_lane_arrives(&self) -> bool {
        self.every_lane_arrives
    }

    fn cuda_flags(&self) -> Vec<&'static str> {
        let further: &[&str] = if self.every_lane_arrives { &EVERY_LANE_ARRIVES } else { &[] };
        [&CUDA_FLAGS, further].concat()
    }

    /// Where bundles and the manifest go.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    /// The compiler build, for the records.
    pub(crate) fn version(&self) -> &str {
        &self.toolchain.version
    }

    /// The image of `unit`, and whether it had to be compiled.
    pub(crate) fn image(
        &self,
        family: &Family,
        unit: &Unit,
        arch: &Arch,
        keep: bool,
    ) -> Result<(Image, bool)> {
        let (source, layout) = (emit::source(family, unit, LAYOUT), emit::layout_header(family, unit));
        if keep {
            let folder = self.out.join("sources");
            paths::write_atomic(&folder.join(format!("{}.cu", unit.name)), source.as_bytes())?;
            paths::write_atomic(&folder.join(format!("{}.layout.cuh", unit.name)), layout.as_bytes())?;
        }
        let includes = key::includes(&self.kernels, &family.template)?;
        let flags = [self.cuda_flags(), PTXAS_FLAGS.to_vec()].concat().join(" ");
        let instructions = family.sass.join(" ");
        let own = [
            ("toolchain", self.version()),
            ("flags", &flags),
            ("arch", arch.name),
            ("compute", arch.compute),
            // A cached image was found to contain these.
            ("sass", &instructions),
        ];
        let texts = [(SOURCE, source.as_str()), (LAYOUT, layout.as_str())];
        let included = includes.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let key = key::content_key(own.into_iter().chain(texts).chain(included));
        if let Some(image) = self.cached(&key) {
            return Ok((image, false));
        }
        // A folder of its own: another build may compile the same unit at the same time.
        fs::create_dir_all(&self.out).with_context(|| format!("cannot create {}", self.out.display()))?;
        let folder = tempfile::Builder::new().prefix("unit-").tempdir_in(&self.out);
        let folder = folder.with_context(|| format!("cannot make a folder in {}", self.out.display()))?;
        let work = folder.path();
        fs::write(work.join(SOURCE), source)?;
        fs::write(work.join(LAYOUT), layout)?;
        let what = || format!("{} for {}", unit.name, arch.name);
        self.to_ptx(work, arch).with_context(what)?;
        let report = ptxas::parse(&self.to_sass(work, arch).with_context(what)?).with_context(what)?;
        self.contains(work, &family.sass).with_context(what)?;
        let entry = self.cache(&key);
        for (name, extension) in [(CUBIN, "cubin"), (PTX, "ptx")] {
            paths::write_atomic(&entry.with_extension(extension), &fs::read(work.join(name))?)?;
        }
        // Written last: an entry without a report does not count as cached.
        paths::write_atomic(&entry.with_extension("json"), &serde_json::to_vec(&report)?)?;
        let image = self.cached(&key).with_context(|| format!("the image of {} vanished", unit.name))?;
        Ok((image, true))
    }

    fn cache(&self, key: &str) -> PathBuf {
        self.out.join("cache").join(key)
    }

    fn cached(&self, key: &str) -> Option<Image> {
        let entry = self.cache(key);
        let report = serde_json::from_slice(&fs::read(entry.with_extension("json")).ok()?).ok()?;
        let cubin = fs::read(entry.with_extension("cubin")).ok()?;
        let ptx = fs::read(entry.with_extension("ptx")).ok()?;
        Some(Image { cubin, ptx, report, key: key.to_owned() })
    }

    /// CUDA to PTX, in `work`, so that no path enters the output.
    fn to_ptx(&self, work: &Path, arch: &Arch) -> Result<String> {
        let kernels = fs::canonicalize(&self.kernels).unwrap_or_else(|_| self.kernels.clone());
        let mut nvcc = Command::new(&self.toolchain.nvcc);
        nvcc.args(self.cuda_flags()).arg("-I").arg(kernels).arg(format!("-arch={}", arch.compute));
        run(nvcc.args(["-o", PTX, SOURCE]).current_dir(work))
    }

    /// Fails unless the SASS in `work` contains every one of `instructions`.
    fn contains(&self, work: &Path, instructions: &[String]) -> Result<()> {
        if instructions.is_empty() {
            return Ok(());
        }
        let listing = run(Command::new(self.toolchain.disassembler()?).arg(CUBIN).current_dir(work))?;
        let missing = sass::missing(instructions, &listing);
        if !missing.is_empty() {
            bail!("the SASS does not contain the declared {}", missing.join(", "));
        }
        Ok(())
    }

    /// PTX to SASS; returns the assembler's report.
    fn to_sass(&self, work: &Path, arch: &Arch) -> Result<String> {
        let mut ptxas = Command::new(self.toolchain.nvcc.with_file_name("ptxas"));
        ptxas.args(PTXAS_FLAGS).arg(format!("-arch={}", arch.name));
        if self.every_lane_arrives {
            ptxas.arg("-lineinfo");
        }
        run(ptxas.args(["-o", CUBIN, PTX]).current_dir(work))
    }
}

/// What `command` printed, or an error that shows it.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let result = command.output().with_context(|| format!("cannot run {program}"))?;
    let text = String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned();
    if !result.status.success() {
        bail!("{program} failed:\n{text}");
    }
    Ok(text)
}
