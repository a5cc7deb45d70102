//! Reading and writing case files.

use std::path::Path;

use anyhow::{Context, Result};
use kd_tensor::file::write_atomically;
use serde::{Serialize, de::DeserializeOwned};

/// Reads a JSON file.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = crate::input::bytes(path)?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not a JSON file of cases", path.display()))
}

/// Writes a JSON file, whole or not at all.
pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(value).context("the result is no JSON")?;
    write_atomically(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}
