//! The inner loops, written once over [`Lanes`] and compiled for each instruction set worth telling apart; the best
//! that the processor has is chosen at run time.
//!
//! A product of two rows always adds element `i` into lane `i mod 16`, in order, and joins the lanes in a fixed tree.
//! So for one instruction set it is bitwise the same whichever kernel computes it, in whatever tile.

mod elementwise;
mod lanes;
mod limits;
mod mix;
mod products;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

pub use elementwise::{dot, exponentials, silu_mul};
use lanes::{Lanes, Portable};
pub(crate) use limits::{multiply_adds, read_all};
pub use mix::mix;
pub(crate) use products::products;
pub(crate) use rows::{Bf16Row, F32Row, Int4Row, WeightRow};

/// An inner loop: everything that is known of it before the instruction set is.
trait Kernel {
    type Output;

    /// Runs it. `ROWS` weight rows and at most `COLUMNS` activation rows fit the registers as one tile; with a single
    /// activation row, `TALL` weight rows keep the multiply-add units busy.
    ///
    /// Implementations are `inline(always)` down to the instructions: code takes on the instruction set of the function
    /// that it is inlined into.
    fn run<L: Lanes, const ROWS: usize, const TALL: usize, const COLUMNS: usize>(
        self,
        lanes: L,
    ) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Debug, Clone, Copy)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Level {
    /// All that there are, the best last.
    fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(x86::Avx2::detect().map(Self::Avx2));
            levels.extend(x86::Avx512::detect().map(Self::Avx512));
        }
        levels
    }

    fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Portable))
    }

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run::<_, 2, 4, 2>(Portable),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token is the proof that the processor has these instructions.
            Self::Avx2(lanes) => unsafe { avx2(kernel, lanes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token is the proof that the processor has these instructions.
            Self::Avx512(lanes) => unsafe { avx512(kernel, lanes) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K, lanes: x86::Avx2) -> K::Output {
    kernel.run::<_, 2, 4, 3>(lanes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn avx512<K: Kernel>(kernel: K, lanes: x86::Avx512) -> K::Output {
    kernel.run::<_, 4, 8, 5>(lanes)
}
