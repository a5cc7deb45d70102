//! Multi-head latent attention over pages and draft trees, drafter attention and rotary embeddings.
//!
//! Keys of a row are always visited in order of position, whether they lie in a page or among the rows of the same
//! pass. So a token gets bitwise the same result as a node of a tree, as a row of a prompt chunk, or alone.
#![forbid(unsafe_code)]

mod batch;
pub mod bench;
mod block_attention;
mod drafter;
mod fp8;
mod leaves;
mod mla;
mod pages;
pub mod prefill;
mod rope;
pub mod selftest;

pub use batch::{Ancestors, Mask, Segment, positions, rows};
pub use drafter::{BlockPass, BlockSegment, GqaConfig, attend_block};
pub use fp8::Fp8Entry;
pub use leaves::Leaves;
pub use mla::{Mla, MlaConfig, MlaPass, MlaWeights, QueryProjection};
pub use pages::{CacheError, KvCacheDtype, PAGE_TOKENS, PageId, PagedCache, Tokens};
pub use rope::{Rope, RopeTable, Yarn};
