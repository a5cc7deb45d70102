//! Multi-head latent attention over pages and draft trees, drafter attention and rotary embeddings.
//!
//! Keys of a row are always visited in order of position, whether they lie in a page or among the rows of the same
//! pass. So a token gets bitwise the same result as a node of a tree, as a row of a prompt chunk, or alone.
#![forbid(unsafe_code)]

mod batch;
pub mod bench;
mod drafter;
mod leaves;
mod mla;
mod pages;
pub mod prefill;
mod rope;
pub mod selftest;

pub use batch::{Ancestors, Mask, Segment, positions, rows};
pub use drafter::{BlockPass, BlockSegment, GqaConfig, attend_block};
pub use leaves::Leaves;
pub use mla::{Mla, MlaConfig, MlaPass, MlaWeights, QueryProjection};
pub use pages::{CacheError, PAGE_TOKENS, PageId, PagedCache};
pub use rope::{Rope, RopeTable, Yarn};
