//! Content keys: what an image depends on, hashed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::paths;

/// Lower-case hexadecimal SHA-256.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `template` and everything it includes from `kernels`, by path below `kernels`, each with its text.
pub(crate) fn includes(kernels: &Path, template: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut open = vec![template.to_owned()];
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let text = paths::read(&kernels.join(&name))?;
        open.extend(text.lines().filter_map(quoted_include).map(str::to_owned));
        found.insert(name, text);
    }
    Ok(found)
}

/// The path of `#include "path"`; system headers in angle brackets belong to the toolchain.
fn quoted_include(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("#include")?.trim_start().strip_prefix('"')?.split('"').next()
}

/// Hashes named parts so that no two different lists of parts give the same bytes.
pub(crate) fn content_key<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut hash = Sha256::new();
    for (name, text) in parts {
        for field in [name, text] {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_apart_where_a_part_ends() {
        assert_ne!(content_key([("a", "bc")]), content_key([("ab", "c")]));
        assert_ne!(content_key([("a", "b"), ("c", "d")]), content_key([("a", "bcd")]));
        assert_eq!(sha256_hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn includes_are_followed_through_every_level() {
        let found = includes(&kernel_gen::kernels_dir(), "norm/rms_norm.cuh").expect("includes");
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["kd/base.cuh", "kd/vec.cuh", "norm/rms_norm.cuh", "ptx/memory.cuh", "ptx/pdl.cuh"]
        );
    }
}
