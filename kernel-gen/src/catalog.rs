//! The set of declarations in a kernel folder.

use std::path::{Path, PathBuf};

use crate::{Arch, Diagnostic, Family, Profile, Unit, expand, parse_families};

/// The kernel folder of this repository.
pub fn kernels_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// All families of a kernel folder, sorted by name.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The families.
    pub families: Vec<Family>,
}

/// Why a kernel folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A file or folder that cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A fault in a declaration.
    #[error(transparent)]
    Declaration(#[from] Diagnostic),
}

impl Catalog {
    /// Reads every `<group>/*.rs` below `dir`.
    ///
    /// # Errors
    /// Unreadable files, faulty declarations, a family declared twice, a template that does not exist.
    pub fn read(dir: &Path) -> Result<Self, CatalogError> {
        let mut families: Vec<Family> = Vec::new();
        for path in sources(dir, "rs")? {
            let source = std::fs::read_to_string(&path)
                .map_err(|source| CatalogError::Io { path: path.clone(), source })?;
            families.extend(parse_families(&relative(dir, &path), &source)?);
        }
        families.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in families.windows(2) {
            if pair[0].name == pair[1].name {
                let message = format!("`{}` is already declared in {}", pair[1].name, pair[0].file);
                return Err(Diagnostic::new(&pair[1].file, pair[1].at, message).into());
            }
        }
        for family in &families {
            if !dir.join(&family.template).is_file() {
                let message = format!("template {} does not exist", family.template);
                return Err(Diagnostic::new(&family.file, family.at, message).into());
            }
        }
        Ok(Self { families })
    }

    /// The family called `name`.
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The distinct units of `profile` that are built for `arch`, each checked against its limits.
    ///
    /// # Errors
    /// As [`expand`] and [`Unit::fits`].
    pub fn units(&self, profile: &Profile, arch: &Arch) -> Result<Vec<(&Family, Unit)>, Diagnostic> {
        let mut units = Vec::new();
        for family in &self.families {
            for unit in expand(family, profile)?.into_iter().filter(|unit| unit.runs_on(arch)) {
                unit.fits(family, arch)?;
                units.push((family, unit));
            }
        }
        Ok(units)
    }
}

/// Files below `dir` with the given extension, sorted by path.
pub(crate) fn sources(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, CatalogError> {
    let io = |source| CatalogError::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            found.extend(sources(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// `path` below `dir` with forward slashes on every platform.
fn relative(dir: &Path, path: &Path) -> String {
    let inner = path.strip_prefix(dir).unwrap_or(path);
    inner.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}
