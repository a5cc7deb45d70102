//! Finding the CUDA compiler, or installing the pinned one into the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

    /// `13.0` of `Cuda compilation tools, release 13.0, V13.0.88`.
    pub(crate) fn release(&self) -> Option<&str> {
        self.version.split("release ").nth(1)?.split(',').next()
    }
}

fn candidates() -> Vec<PathBuf> {
    let homes = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = homes.into_iter().chain(std::env::split_paths(&path));
    let mut found: Vec<PathBuf> =
        folders.map(|folder| folder.join("nvcc")).filter(|nvcc| nvcc.is_file()).collect();
    found.extend(Some(nvcc_in(&own_home())).filter(|nvcc| nvcc.is_file()));
    found
}

fn own_home() -> PathBuf {
    paths::target().join(format!("cuda-{RELEASE}"))
}

fn nvcc_in(home: &Path) -> PathBuf {
    home.join("nvidia/cu13/bin/nvcc")
}

/// Installs the wheels under a temporary name and renames, so that an interrupted install is never taken for one.
fn install() -> Result<PathBuf> {
    let home = own_home();
    let staging = home.with_extension(format!("installing-{}", std::process::id()));
    eprintln!("no CUDA {RELEASE} compiler found; installing {} wheels into {}", WHEELS.len(), home.display());
    let status = Command::new("python3")
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&staging)
        .args(WHEELS)
        .status()
        .context(
            "cannot run python3 -m pip; install Python 3 with pip, or set CUDA_HOME to a CUDA 13.0 toolkit",
        )?;
    if !status.success() {
        bail!(
            "pip could not install {}; set CUDA_HOME to a CUDA {RELEASE} toolkit instead",
            WHEELS.join(" ")
        );
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::rename(&staging, &home).with_context(|| format!("cannot rename {} into place", staging.display()))?;
    Ok(home)
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
