//! Where things are, and writing them whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

/// The top of the repository.
pub(crate) fn workspace() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Writes `bytes` under a temporary name, then renames, so that a reader never sees half a file. A file that already
/// holds these bytes is left alone; returns whether it was written.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    static STAGED: AtomicU64 = AtomicU64::new(0);
    let number = STAGED.fetch_add(1, Ordering::Relaxed);
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let staging = folder.join(format!(".{name}.{}-{number}", std::process::id()));
        fs::write(&staging, bytes)?;
        fs::rename(&staging, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

/// `text` read from `path`, or an error that names it.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
