//! Generated launchers: written, or checked for freshness.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kernel_gen::{Catalog, Profile, emit, kernels_dir};

use crate::paths;

/// Writes `crates/kd-kernels/src/generated`, or only compares.
pub(crate) fn run(check: bool) -> Result<()> {
    let catalog = Catalog::read(&kernels_dir())?;
    let folder = paths::workspace().join("crates/kd-kernels/src/generated");
    if check { verify(&catalog, &folder) } else { write(&catalog, &folder) }
}

/// Fails unless `folder` holds exactly what `catalog` generates.
pub(crate) fn verify(catalog: &Catalog, folder: &Path) -> Result<()> {
    let expected = files(catalog);
    let mut wrong: Vec<String> =
        stale(&expected, folder).iter().map(|path| format!("{} is left over", path.display())).collect();
    for (name, text) in &expected {
        let path = folder.join(name);
        // Compared line by line, so that a checkout with CRLF is not stale.
        if !fs::read_to_string(&path).is_ok_and(|found| found.lines().eq(text.lines())) {
            wrong.push(format!("{} is not fresh", path.display()));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("{}; run `cargo xtask codegen` and commit", wrong.join(", "))
    }
}

fn write(catalog: &Catalog, folder: &Path) -> Result<()> {
    let expected = files(catalog);
    for path in stale(&expected, folder) {
        fs::remove_file(&path)?;
        println!("removed {}", path.display());
    }
    for (name, text) in &expected {
        if paths::write_atomic(&folder.join(name), text.as_bytes())? {
            println!("wrote {}", folder.join(name).display());
        }
    }
    Ok(())
}

fn files(catalog: &Catalog) -> BTreeMap<String, String> {
    let launchers =
        catalog.families.iter().map(|family| (format!("{}.rs", family.name), emit::launcher(family)));
    let module = ("mod.rs".to_owned(), emit::module(&catalog.families));
    let profiles = ("profiles.rs".to_owned(), emit::profiles(&Profile::all()));
    launchers.chain([module, profiles]).collect()
}

/// Files in `folder` that no family generates any more.
fn stale(expected: &BTreeMap<String, String>, folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !expected.contains_key(name.as_ref())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_or_left_over_launcher_is_caught() {
        let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
        let folder = tempfile::tempdir().expect("a folder");
        write(&catalog, folder.path()).expect("written");
        verify(&catalog, folder.path()).expect("fresh");

        let launcher = folder.path().join("rms_norm.rs");
        let text = fs::read_to_string(&launcher).expect("the launcher");
        fs::write(&launcher, text.replace("\"gain\", 0", "\"gain\", 1")).expect("planted");
        let message = verify(&catalog, folder.path()).expect_err("stale").to_string();
        assert!(
            message.contains("rms_norm.rs is not fresh") && message.contains("cargo xtask codegen"),
            "{message}"
        );

        write(&catalog, folder.path()).expect("rewritten");
        fs::write(folder.path().join("gone.rs"), "").expect("planted");
        let message = verify(&catalog, folder.path()).expect_err("left over").to_string();
        assert!(message.contains("gone.rs is left over"), "{message}");
        write(&catalog, folder.path()).expect("cleaned");
        verify(&catalog, folder.path()).expect("fresh again");
    }

    #[test]
    fn the_committed_launchers_are_fresh() {
        run(true).expect("fresh");
    }
}
