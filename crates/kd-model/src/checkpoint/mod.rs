//! Checkpoints: sharded or single safetensors, taken tensor by tensor until nothing is left.

mod drafter;
mod error;
mod index;
mod int4;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use kd_tensor::dtype::Element;
use kd_tensor::safetensors::{SafeTensors, TensorView};
use kd_tensor::storage::Storage;

pub use self::drafter::DrafterVocabulary;
pub use self::error::CheckpointError;

/// Prefixes of the tensors that belong to the vision half of K2.5 and K2.6, which a text engine has no use for.
pub const VISION_PREFIXES: &[&str] = &["vision_tower.", "mm_projector."];

/// How many left-over tensors an error lists.
const LISTED: usize = 8;

/// The weights of a model, memory-mapped. Tensors are *taken*: what nobody took is an error at the end.
///
/// All methods take `&self`, so that layers can be loaded from several threads.
pub struct Checkpoint {
    dir: PathBuf,
    shards: Vec<SafeTensors>,
    tensors: BTreeMap<String, Slot>,
}

struct Slot {
    shard: usize,
    taken: AtomicBool,
}

/// Tensors that were left alone on purpose: worth one notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub tensors: usize,
    /// Their size.
    pub bytes: usize,
}

impl Checkpoint {
    /// Opens the shards that `dir/model.safetensors.index.json` names, or `dir/model.safetensors`.
    ///
    /// # Errors
    /// [`CheckpointError`] if a file is missing or damaged, if index and shards disagree about a single tensor, or if
    /// a shard's name leads out of `dir`.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let dir = dir.into();
        let (shards, tensors) = index::open(&dir)?;
        let slot = |(name, shard)| (name, Slot { shard, taken: AtomicBool::new(false) });
        Ok(Self { dir, shards, tensors: tensors.into_iter().map(slot).collect() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All tensors with their files, in lexicographic order of their names. Looking takes nothing.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, TensorView<'_>)> {
        self.tensors.iter().filter_map(|(name, slot)| {
            let shard = &self.shards[slot.shard];
            Some((shard.path(), shard.tensor(name).ok()?))
        })
    }

    /// What stands in front of `lm_head.weight` and `model.…` in a target: `language_model.` in K2.5 and K2.6, nothing
    /// in K2 and K2-Thinking. The tensors decide, whatever the configuration looks like.
    pub fn target_prefix(&self) -> &'static str {
        if self.contains("language_model.model.embed_tokens.weight") { "language_model." } else { "" }
    }

    /// Takes a tensor of `T`s of exactly this shape.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] or [`CheckpointError::Mismatch`].
    pub fn take<T: Element>(&self, name: &str, shape: &[usize]) -> Result<Storage<T>, CheckpointError> {
        let shard = self.shard(name, || format!("{} {shape:?}", T::DTYPE))?;
        let found = shard.tensor(name)?;
        if found.dtype != T::DTYPE || found.shape != shape {
            return Err(mismatch(shard, found, T::DTYPE.name(), shape));
        }
        self.mark(name);
        Ok(shard.storage(name)?)
    }

    /// Takes an I32 or I64 tensor of exactly this shape.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] or [`CheckpointError::Mismatch`].
    pub fn take_integers(&self, name: &str, shape: &[usize]) -> Result<Vec<i64>, CheckpointError> {
        const EXPECTED: &str = "I32 or I64";
        let shard = self.shard(name, || format!("{EXPECTED} {shape:?}"))?;
        let found = shard.tensor(name)?;
        if !matches!(found.dtype.name(), "I32" | "I64") || found.shape != shape {
            return Err(mismatch(shard, found, EXPECTED, shape));
        }
        self.mark(name);
        Ok(shard.integers(name)?)
    }

    /// Takes a BOOL tensor of exactly this shape.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`], [`CheckpointError::Mismatch`], or the file's error if an element is no boolean.
    pub fn take_bools(&self, name: &str, shape: &[usize]) -> Result<Vec<bool>, CheckpointError> {
        const EXPECTED: &str = "BOOL";
        let shard = self.shard(name, || format!("{EXPECTED} {shape:?}"))?;
        let found = shard.tensor(name)?;
        if found.dtype.name() != EXPECTED || found.shape != shape {
            return Err(mismatch(shard, found, EXPECTED, shape));
        }
        self.mark(name);
        Ok(shard.bools(name)?)
    }

    /// Ends loading: everything must have been taken, but for names that begin with one of `skip`.
    ///
    /// # Errors
    /// [`CheckpointError::LeftOver`] listing tensors and files.
    pub fn finish(&self, skip: &[&str]) -> Result<Skipped, CheckpointError> {
        let mut skipped = Skipped::default();
        let mut left = Vec::new();
        for (name, slot) in self.tensors.iter().filter(|(_, slot)| !slot.taken.load(Ordering::Relaxed)) {
            let shard = &self.shards[slot.shard];
            if skip.iter().any(|prefix| name.starts_with(prefix)) {
                skipped.tensors += 1;
                skipped.bytes += shard.tensor(name)?.bytes.len();
            } else {
                left.push((name, shard));
            }
        }
        if left.is_empty() {
            return Ok(skipped);
        }
        let listed = left.iter().take(LISTED).map(|(name, shard)| format!("`{name}` ({})", file_name(shard)));
        let mut listed: Vec<String> = listed.collect();
        if left.len() > LISTED {
            listed.push("…".to_owned());
        }
        Err(CheckpointError::LeftOver { dir: self.dir.clone(), count: left.len(), listed: listed.join(", ") })
    }

    fn shard(&self, name: &str, expected: impl FnOnce() -> String) -> Result<&SafeTensors, CheckpointError> {
        match self.tensors.get(name) {
            Some(slot) => Ok(&self.shards[slot.shard]),
            None => Err(CheckpointError::Missing {
                dir: self.dir.clone(),
                tensor: name.to_owned(),
                expected: expected(),
            }),
        }
    }

    fn mark(&self, name: &str) {
        if let Some(slot) = self.tensors.get(name) {
            // Only `finish` reads it, after every thread that loads has been joined.
            slot.taken.store(true, Ordering::Relaxed);
        }
    }
}

fn file_name(shard: &SafeTensors) -> String {
    shard.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn mismatch(
    shard: &SafeTensors,
    found: TensorView<'_>,
    expected: &'static str,
    expected_shape: &[usize],
) -> CheckpointError {
    CheckpointError::Mismatch {
        file: shard.path().to_path_buf(),
        tensor: found.name.to_owned(),
        found: found.dtype,
        found_shape: found.shape.to_vec(),
        expected,
        expected_shape: expected_shape.to_vec(),
    }
}
