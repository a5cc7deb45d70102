//! One unit through nvcc, with a cache keyed by content.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use kernel_gen::{Arch, Family, Unit, emit};

use super::key;
use super::ptxas::{self, Report};
use crate::paths;
use crate::toolchain::Toolchain;

/// No `-lineinfo` and no absolute path on the command line: an image must not depend on where it was built.
const FLAGS: [&str; 5] = ["-std=c++17", "-O3", "-Xptxas=-v", "-Werror=all-warnings", "--extra-device-vectorization"];
const SOURCE: &str = "unit.cu";
const LAYOUT: &str = "unit.layout.cuh";

/// A compiled unit.
pub(crate) struct Image {
    /// SASS.
    pub(crate) cubin: Vec<u8>,
    /// PTX, where the architecture keeps it.
    pub(crate) ptx: Option<Vec<u8>>,
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
}

impl Compiler {
    /// Compiles templates of `kernels`; keeps everything it writes below `out`.
    pub(crate) fn new(toolchain: Toolchain, kernels: PathBuf, out: PathBuf) -> Self {
        Self { toolchain, kernels, out }
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
    pub(crate) fn image(&self, family: &Family, unit: &Unit, arch: &Arch, keep: bool) -> Result<(Image, bool)> {
        let (source, layout) = (emit::source(family, unit, LAYOUT), emit::layout_header(family, unit));
        if keep {
            let folder = self.out.join("sources");
            paths::write_atomic(&folder.join(format!("{}.cu", unit.name)), source.as_bytes())?;
            paths::write_atomic(&folder.join(format!("{}.layout.cuh", unit.name)), layout.as_bytes())?;
        }
        let includes = key::includes(&self.kernels, &family.template)?;
        let flags = FLAGS.join(" ");
        let ptx = arch.ptx.unwrap_or_default();
        let own = [("toolchain", self.version()), ("flags", &flags), ("arch", arch.name), ("ptx", ptx)];
        let texts = [(SOURCE, source.as_str()), (LAYOUT, layout.as_str())];
        let included = includes.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let key = key::content_key(own.into_iter().chain(texts).chain(included));
        if let Some(image) = self.cached(&key, arch) {
            return Ok((image, false));
        }
        let work = self.out.join("work").join(&key);
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        fs::write(work.join(SOURCE), source)?;
        fs::write(work.join(LAYOUT), layout)?;
        let what = || format!("{} for {}", unit.name, arch.name);
        let report = self.nvcc(&work, "-cubin", arch.name, "unit.cubin").with_context(what)?;
        let report = ptxas::parse(&report).with_context(what)?;
        if let Some(ptx) = arch.ptx {
            self.nvcc(&work, "-ptx", ptx, "unit.ptx").with_context(what)?;
        }
        let entry = self.cache(&key);
        for (name, extension) in [("unit.cubin", "cubin"), ("unit.ptx", "ptx")] {
            if name == "unit.cubin" || arch.ptx.is_some() {
                paths::write_atomic(&entry.with_extension(extension), &fs::read(work.join(name))?)?;
            }
        }
        // Written last: an entry without a report does not count as cached.
        paths::write_atomic(&entry.with_extension("json"), &serde_json::to_vec(&report)?)?;
        fs::remove_dir_all(&work)?;
        let image = self.cached(&key, arch).with_context(|| format!("the image of {} vanished", unit.name))?;
        Ok((image, true))
    }

    fn cache(&self, key: &str) -> PathBuf {
        self.out.join("cache").join(key)
    }

    fn cached(&self, key: &str, arch: &Arch) -> Option<Image> {
        let entry = self.cache(key);
        let report = serde_json::from_slice(&fs::read(entry.with_extension("json")).ok()?).ok()?;
        let cubin = fs::read(entry.with_extension("cubin")).ok()?;
        let ptx = match arch.ptx {
            Some(_) => Some(fs::read(entry.with_extension("ptx")).ok()?),
            None => None,
        };
        Some(Image { cubin, ptx, report, key: key.to_owned() })
    }

    /// Runs nvcc in `work`; returns what it printed.
    fn nvcc(&self, work: &Path, kind: &str, arch: &str, output: &str) -> Result<String> {
        let kernels = relative_or_absolute(&self.kernels);
        let result = Command::new(&self.toolchain.nvcc)
            .current_dir(work)
            .args(FLAGS)
            .args([OsStr::new("-I"), kernels.as_os_str()])
            .args([kind, &format!("-arch={arch}"), "-o", output, SOURCE])
            .output()
            .with_context(|| format!("cannot run {}", self.toolchain.nvcc.display()))?;
        let text = String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned();
        if !result.status.success() {
            bail!("nvcc failed:\n{text}");
        }
        Ok(text)
    }
}

fn relative_or_absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
