//! Shared helpers of the cross-crate tests.
#![forbid(unsafe_code)]

pub mod binary;
pub mod compare;
pub mod drive;
#[path = "fuzz/mod.rs"]
pub mod fuzz;
pub mod layers;
pub mod random;
pub mod tidy;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kd_engine::Models;
use kd_model::{Drafter, Target};
use kd_text::Tokenizer;
use serde_json::Value;

/// The top of the repository: where this was built, or what `KD_REPOSITORY` names on another machine.
pub fn repository() -> &'static Path {
    static TOP: OnceLock<PathBuf> = OnceLock::new();
    TOP.get_or_init(|| {
        let moved = std::env::var_os("KD_REPOSITORY").map(PathBuf::from);
        moved.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/..").into())
    })
}

/// A file of the golden set.
pub fn golden(path: &str) -> PathBuf {
    repository().join("tests/golden").join(path)
}

/// A file of the demo pair.
pub fn demo(path: &str) -> PathBuf {
    repository().join("models/demo").join(path)
}

/// A parsed JSON file.
///
/// # Panics
/// If it cannot be read or parsed.
pub fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A list of token ids.
///
/// # Panics
/// If it is none.
pub fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| u32::try_from(id).expect("a token id")).collect()
}

/// A list of whole numbers.
///
/// # Panics
/// If it is none.
pub fn numbers(value: &Value) -> Vec<usize> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().map(|n| n.as_u64().unwrap_or_else(|| panic!("no count: {n}")) as usize).collect()
}

/// The demo pair, loaded once.
pub fn demo_models() -> Models {
    static MODELS: OnceLock<Models> = OnceLock::new();
    MODELS.get_or_init(|| sharded_demo_models(1)).clone()
}

/// The demo pair, shared by so many ranks.
///
/// # Panics
/// If they cannot share it.
pub fn sharded_demo_models(ranks: usize) -> Models {
    let ranks = NonZeroUsize::new(ranks).expect("at least one rank");
    Models {
        target: Arc::new(Target::load_sharded(&demo("target"), ranks).expect("the demo target")),
        drafter: Some(Arc::new(Drafter::load_sharded(&demo("drafter"), ranks).expect("the demo drafter"))),
        tokenizer: Some(Tokenizer::from_dir(demo("target")).expect("the demo tokenizer")),
    }
}

/// Text from ids below 512: byte tokens, then control ids.
pub fn byte_tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_dir(golden("base/checkpoint")).expect("a tokenizer")).clone()
}
