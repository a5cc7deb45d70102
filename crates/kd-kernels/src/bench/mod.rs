//! Measurements of kernels beside what bounds them and beside the vendor's library, in one run.

mod cublas;
mod dense;
mod rows;

pub use dense::{DenseLine, DenseShape, K26_TP1, K26_TP8, dense};
pub use rows::{RowsLine, rows};

use crate::{KernelError, Stream};

/// What the device can do at most. Both are measured: reads far past L2, and `mma.sync` on registers alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes a second that are read from memory.
    pub bytes: f64,
    /// Operations a second; a product and its sum are two.
    pub operations: f64,
}

/// Replays of a timing, after one to warm up; the fastest counts.
const REPLAYS: usize = 3;

/// Microseconds of one of the `launches` launches that `record` makes.
///
/// # Errors
/// A launch that cannot be captured or run.
fn time<R>(
    stream: &Stream,
    launches: usize,
    resources: R,
    record: fn(&Stream, &mut R) -> Result<(), KernelError>,
) -> Result<f64, KernelError> {
    let graph = stream.capture(resources, record)?;
    graph.launch()?;
    let mut best = f64::INFINITY;
    for _ in 0..REPLAYS {
        best = best.min(graph.time_one()? / launches as f64);
    }
    Ok(best)
}
