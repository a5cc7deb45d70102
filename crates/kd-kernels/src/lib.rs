//! Compiled CUDA kernel images and their typed launchers; the only crate with unsafe launches.
//!
//! A [`Device`] is probed without ever panicking, a [`Bundle`] of images is found for its architecture, and
//! [`Kernels`] loads the units of a family. Launchers are generated from the declarations in `kernel-gen/kernels`, one
//! module per family in [`families`]; each checks its operands before it launches.
//!
//! Event tracking of the driver wrapper is off from the start, so that launches can be captured in graphs: work on
//! other streams must be ordered by the caller.

pub mod bench;
pub mod bundle;
mod dense;
mod dense_cost;
mod dense_scratch;
mod device;
mod error;
mod fork;
mod graph;
mod head_product;
#[rustfmt::skip]
mod generated;
mod landing;
mod launch;
mod outbox;
pub mod probe;
mod profile;
pub mod ranks;
mod router_product;
mod search;
pub mod selftest;
mod staging;
pub mod testing;

pub use bundle::Bundle;
pub use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr, DriverError, ValidAsZeroBits};
pub use dense::{DenseProduct, if_built};
pub use dense_scratch::DenseScratch;
pub use device::{Device, Stream, driver_version};
pub use error::KernelError;
pub use fork::Fork;
pub use graph::{Buffer, Element, Graph, Marks};
pub use head_product::HeadProduct;
pub use landing::{Arrived, Landing, Sent};
pub use launch::{
    Blocks, Choice, Int4Ref, Kernels, LoadedUnit, Product, Selection, Source, TensorMut, TensorRef, Units,
    arith,
};
pub use outbox::Outbox;
pub use profile::{Drafter, Profile};
pub use router_product::RouterProduct;
pub use search::Search;
pub use staging::Staging;

/// Tokens of the vocabulary in a tile that `lm_head` describes.
pub const HEAD_TILE: usize = 80;

/// A launcher that uses every clause of the language must compile, though no kernel of a release does yet.
#[cfg(test)]
#[rustfmt::skip]
#[path = "../../../kernel-gen/tests/snapshots/every_clause.rs.txt"]
pub mod every_clause;

/// Typed launchers, one module per kernel family.
pub mod families {
    pub use crate::generated::*;
}
