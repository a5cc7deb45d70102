//! Measurements of kernels beside what bounds them and beside the vendor's library, in one run.

mod cublas;
mod dense;
mod head;
mod rates;
mod router;
mod rows;

pub use dense::{DenseLine, DenseShape, K26_TP1, K26_TP8, dense};
pub use rates::Rates;
pub use router::{RouterLine, router};
pub use rows::{RowsLine, rows};

use crate::{Graph, KernelError};

/// Microseconds of each of `replays` replays, after one to warm up.
///
/// # Errors
/// A launch that fails.
fn samples<R>(graph: &Graph<R>, replays: usize) -> Result<Vec<f64>, KernelError> {
    graph.time_one()?;
    (0..replays).map(|_| graph.time_one()).collect()
}

/// The middle one, the later of two; NaN if there are none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
