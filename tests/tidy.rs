//! Rules for source files that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

/// Largest hand-written source file in bytes.
pub const LARGEST: usize = 40 << 10;
/// Crates that may hold unsafe code; every other one forbids it.
const UNSAFE: [&str; 2] = ["kd-tensor", "kd-kernels"];
/// First line of a file that a tool wrote.
const GENERATED: &str = "// @generated";

/// Every source file below `root`, without build outputs.
///
/// # Panics
/// If a folder cannot be read.
pub fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if entry.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(entry);
            } else if name.ends_with(".rs") {
                found.push(entry);
            }
        }
    }
    found.sort();
    found
}

/// What breaks a rule in the repository at `root`: modules that do not say what they are, files that are too long, and
/// crates that may hold unsafe code without need.
///
/// # Panics
/// If a file cannot be read.
pub fn violations(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources(root) {
        let text = fs::read_to_string(&path).expect("UTF-8");
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        if !text.starts_with("//!") && !text.starts_with(GENERATED) {
            found.push(format!("{shown}: begins without //!"));
        }
        if text.len() > LARGEST && !text.starts_with(GENERATED) {
            found.push(format!("{shown}: {} bytes, at most {LARGEST}", text.len()));
        }
        if is_crate_root(&path) && !may_be_unsafe(&path) && !text.contains("\n#![forbid(unsafe_code)]") {
            found.push(format!("{shown}: does not forbid unsafe code"));
        }
    }
    found
}

fn is_crate_root(path: &Path) -> bool {
    let package = path.parent().and_then(Path::parent);
    let in_src = path.parent().is_some_and(|folder| folder.ends_with("src"));
    let root = path.ends_with("lib.rs") || path.ends_with("main.rs");
    let beside_manifest = path.parent().is_some_and(|folder| folder.join("Cargo.toml").is_file());
    root && (beside_manifest || in_src && package.is_some_and(|p| p.join("Cargo.toml").is_file()))
}

fn may_be_unsafe(path: &Path) -> bool {
    UNSAFE.iter().any(|name| path.components().any(|part| part.as_os_str() == *name))
}
