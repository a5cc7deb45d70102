//! Kernel declarations, CUDA templates and the generator that joins them.
//!
//! A kernel family is a declaration (`kernels/<group>/<name>.rs`, the `family!` language) beside a CUDA template
//! (`.cuh`). [`Catalog`] reads the declarations, [`expand`] turns a family and a [`Profile`] into [`Unit`]s, and
//! [`emit`] writes what each unit needs: a `.cu`, a shared-memory layout header, and one Rust launcher per family.
//! Nothing here runs a compiler or touches a GPU.
#![forbid(unsafe_code)]

mod arch;
mod catalog;
mod check;
mod decl;
mod diagnostic;
mod dtype;
pub mod emit;
mod expand;
mod expr;
mod expr_parse;
mod layout;
mod parse;
mod profile;

pub use arch::{ARCHS, Arch};
pub use catalog::{Catalog, kernels_dir};
pub use decl::{Constant, Family, Grid, Launch, Operand, SharedMember, Variant};
pub use diagnostic::{At, Diagnostic};
pub use dtype::{Composite, DType, Kind};
pub use expand::{Unit, expand};
pub use expr::{Comparison, EvalError, Expr, Op, Relation, Width};
pub use layout::{Layout, Member};
pub use parse::parse_families;
pub use profile::{Drafter, Profile};
