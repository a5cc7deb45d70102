//! Finding the CUDA compiler, or installing the pinned one into the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::paths;

/// The compiler series that ratchets and byte-identical output are promised for.
pub(crate) const RELEASE: &str = "13.0";

/// The wheels that make a complete compiler for device code, about 105 MB to fetch.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// The disassembler; earlier series have no wheel of their own, and it reads their images.
const DISASSEMBLER: &str = "nvidia-cuda-nvdisasm==13.2.51";

/// Its place below the folder of the wheel.
const DISASSEMBLER_PROGRAM: &str = "nvidia/cu13/bin/nvdisasm";

/// One install at a time: images are compiled in parallel.
static DISASSEMBLER_INSTALL: Mutex<()> = Mutex::new(());

/// A usable nvcc.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    /// The compiler driver.
    pub(crate) nvcc: PathBuf,
    /// Its build, as it reports it: part of every cache key.
    pub(crate) version: String,
}

impl Toolchain {
    /// The first nvcc of series [`RELEASE`] in `CUDA_HOME`, `PATH` or the target folder; else installs one there.
    pub(crate) fn find_or_install() -> Result<Self> {
        for candidate in candidates() {
            match Self::at(&candidate) {
                Ok(found) if found.release() == Some(RELEASE) => return Ok(found),
                Ok(found) => eprintln!(
                    "note: {} is CUDA {}, not {RELEASE}; passing it over",
                    candidate.display(),
                    found.release().unwrap_or("of an unknown release")
                ),
                Err(error) => eprintln!("note: {error:#}; passing it over"),
            }
        }
        let home = install()?;
        Self::at(&nvcc_in(&home))
    }

    fn at(nvcc: &Path) -> Result<Self> {
        let output = Command::new(nvcc).arg("--version").output();
        let output = output.with_context(|| format!("{} does not run", nvcc.display()))?;
        if !output.status.success() {
            bail!("{} --version failed", nvcc.display());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let version =
            text.lines().find(|line| line.contains("release")).unwrap_or_default().trim().to_owned();
        Ok(Self { nvcc: nvcc.to_owned(), version })
    }

    /// nvdisasm: beside nvcc, on `PATH`, or installed into the target folder.
    pub(crate) fn disassembler(&self) -> Result<PathBuf> {
        let _one = DISASSEMBLER_INSTALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.installed_disassembler() {
            return Ok(found);
        }
        let home = disassembler_home();
        install_wheels(&home, &[DISASSEMBLER]).context("put nvdisasm on PATH instead")?;
        Ok(home.join(DISASSEMBLER_PROGRAM))
    }

    /// nvdisasm, where nothing has to be installed for it.
    pub(crate) fn installed_disassembler(&self) -> Option<PathBuf> {
        let beside = self.nvcc.parent().map(Path::to_owned);
        let own = Some(disassembler_home().join(DISASSEMBLER_PROGRAM)).filter(|own| own.is_file());
        on_path("nvdisasm", beside).into_iter().next().or(own)
    }

    /// Whether [`Toolchain::find_or_install`] would find a compiler without installing one.
    #[cfg(test)]
    pub(crate) fn find() -> Option<Self> {
        let usable = |nvcc: &PathBuf| Self::at(nvcc).ok().filter(|found| found.release() == Some(RELEASE));
        candidates().iter().find_map(usable)
    }

    /// `13.0` of `Cuda compilation tools, release 13.0, V13.0.88`.
    pub(crate) fn release(&self) -> Option<&str> {
        self.version.split("release ").nth(1)?.split(',').next()
    }
}

fn candidates() -> Vec<PathBuf> {
    let homes = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let mut found = on_path("nvcc", homes);
    found.extend(Some(nvcc_in(&own_home())).filter(|nvcc| nvcc.is_file()));
    found
}

/// `program` in `first`, then in the folders of `PATH`.
fn on_path(program: &str, first: Option<PathBuf>) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = first.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(program)).filter(|file| file.is_file()).collect()
}

fn own_home() -> PathBuf {
    paths::target().join(format!("cuda-{RELEASE}"))
}

fn disassembler_home() -> PathBuf {
    paths::target().join("nvdisasm-13.2")
}

fn nvcc_in(home: &Path) -> PathBuf {
    home.join("nvidia/cu13/bin/nvcc")
}

fn install() -> Result<PathBuf> {
    let home = own_home();
    eprintln!("no CUDA {RELEASE} compiler found; installing {} wheels into {}", WHEELS.len(), home.display());
    install_wheels(&home, &WHEELS)
        .with_context(|| format!("set CUDA_HOME to a CUDA {RELEASE} toolkit instead"))?;
    Ok(home)
}

/// Installs wheels under a temporary name and renames, so that an interrupted install is never taken for one.
fn install_wheels(home: &Path, wheels: &[&str]) -> Result<()> {
    let staging = home.with_extension(format!("installing-{}", std::process::id()));
    let status = Command::new("python3")
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&staging)
        .args(wheels)
        .status()
        .context("cannot run python3 -m pip; install Python 3 with pip")?;
    if !status.success() {
        bail!("pip could not install {}", wheels.join(" "));
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::rename(&staging, home).with_context(|| format!("cannot rename {} into place", staging.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_version_line() {
        let version = "Cuda compilation tools, release 13.0, V13.0.88".to_owned();
        assert_eq!(Toolchain { nvcc: PathBuf::new(), version }.release(), Some("13.0"));
        assert_eq!(Toolchain { nvcc: PathBuf::new(), version: String::new() }.release(), None);
    }
}
