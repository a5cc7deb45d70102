//! Kernels against their CPU operation, on the device at hand: what tests, `gpu_check` and the doctor run.

mod norm;
mod random;

pub use norm::norms;

use cudarc::driver::DriverError;

use crate::KernelError;

/// Row counts that exercise one row, partial and whole CTAs, one wave and more.
pub const ROWS: [usize; 5] = [1, 7, 33, 132, 528];

/// One unit at one row count, found right.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Unit.
    pub unit: String,
    /// Rows of the launch.
    pub rows: usize,
    /// Largest error, as a fraction of what rounding allows.
    pub error: f64,
    /// Time of one launch in a row of many, in microseconds.
    pub micros: f64,
    /// Bytes that the operation must read and write.
    pub bytes: usize,
}

/// Why a self-test failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The kernel could not run.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel ran and is wrong.
    #[error("{unit} with {rows} rows: {what}")]
    Wrong {
        /// Unit.
        unit: String,
        /// Rows of the launch.
        rows: usize,
        /// What differs, where.
        what: String,
    },
}

/// A failed allocation, copy or event.
fn driver(error: DriverError) -> KernelError {
    KernelError::driver("self-test memory or timing", error)
}
