//! What generated launchers are made of.

pub mod arith;
mod boxes;
mod geometry;
mod int4;
mod kernels;
mod params;
mod product;
mod residency;
mod select;
mod shapes;
mod tensor;
mod unit;

pub(crate) use crate::{KernelError, Stream};
pub use geometry::Blocks;
pub(crate) use geometry::Geometry;
pub use int4::Int4Ref;
pub use kernels::{Kernels, Units};
pub(crate) use params::Params;
pub use product::Product;
pub use select::{Choice, Selection, Source};
pub(crate) use shapes::Shapes;
pub use tensor::{TensorMut, TensorRef};
pub use unit::LoadedUnit;

/// What a launcher knows about its family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Name.
    pub(crate) name: &'static str,
    /// Fingerprint of the declaration.
    pub(crate) contract: &'static str,
    /// Variants, preferred first.
    pub(crate) variants: &'static [&'static str],
    /// All CTAs resident at once.
    pub(crate) cooperative: bool,
    /// May overlap the end of the kernel before it.
    pub(crate) pdl: bool,
}
