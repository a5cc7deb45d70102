//! Reading the files that flags name.

use std::path::Path;

use anyhow::{Context, Result};
use kd_tensor::file::read_up_to;

/// Most bytes of a file of prompts, messages or cases: far more than any context holds.
const LIMIT: u64 = 256 << 20;

/// The bytes of the file or pipe `path`.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, LIMIT).with_context(|| format!("cannot read {}", path.display()))
}

/// The text of the file or pipe `path`.
pub(crate) fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).with_context(|| format!("{} is not UTF-8", path.display()))
}
