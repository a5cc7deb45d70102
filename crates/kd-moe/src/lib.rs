//! Mixture of experts: router, grouping, INT4 experts, shared expert and dense MLP.
//!
//! The CPU form is the specification. A row's result depends on that row alone: its experts are summed in
//! ascending id, whatever the other rows chose.
#![forbid(unsafe_code)]

pub mod bench;
mod experts;
pub mod gpu;
mod grouping;
mod mlp;
mod moe;
mod router;
pub mod selftest;

pub use experts::{Expert, Experts, Hidden};
pub use grouping::Groups;
pub use mlp::Mlp;
pub use moe::Moe;
pub use router::{Router, RouterConfig, Routing};
