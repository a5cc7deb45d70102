//! The inner loops, written once over [`Lanes`] and compiled for each instruction set worth telling apart; the best
//! that the processor has is chosen at run time.
//!
//! Weights are read in tiles of sixteen output features, a feature a lane ([`tiles`]): a lane adds up its own product, in
//! order of the columns, whatever else is in the tile. So for one instruction set a product is bitwise the same for any
//! number of activation rows, wherever the output features are cut.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod dense;
mod digits;
mod dots;
mod elementwise;
mod inputs;
mod lanes;
mod limits;
mod mix;
mod product;
mod rows;
#[cfg(test)]
mod tests;
mod tiles;

use std::sync::OnceLock;

pub(crate) use dots::dots;
pub use elementwise::{add_scaled, dot, exp_sum, exponentials, scale, silu_mul};
pub(crate) use elementwise::{rms_norms, rms_norms_in_place};
pub(crate) use inputs::Rows;
pub use inputs::{InputPart, Inputs};
use lanes::{Lanes, Portable};
pub(crate) use limits::{multiply_adds, read_all};
pub use mix::{mix, mix_new};
pub(crate) use product::product;
pub(crate) use rows::PlainRow;
pub(crate) use tiles::{CodeTiles, DenseTiles, LANES};

/// A loop: everything that is known of it before the instruction set is.
pub trait Kernel {
    type Output;

    /// Runs it.
    ///
    /// Implementations are `inline(always)` down to the instructions: code takes on the instruction set of the function
    /// that it is inlined into.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
}

impl Level {
    /// All that there are, the best last.
    fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(avx2::Avx2::detect().map(Self::Avx2));
            levels.extend(avx512::Avx512::detect().map(Self::Avx512));
        }
        levels
    }

    fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Portable))
    }

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => Portable.apart(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(lanes) => lanes.apart(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(lanes) => lanes.apart(kernel),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K, lanes: avx2::Avx2) -> K::Output {
    kernel.run(lanes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn avx512<K: Kernel>(kernel: K, lanes: avx512::Avx512) -> K::Output {
    kernel.run(lanes)
}
