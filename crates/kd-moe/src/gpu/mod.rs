//! The routed experts of one layer on the GPU: packed weights, planned scratch, and the launches of a layer.
//!
//! [`Experts`](crate::Experts) is the specification. Sums over k are those of fixed segments in their order and a row's
//! experts are added in the order of its choices, so a row's bits depend neither on how many rows there are nor on which.

mod ids;
mod layer;
pub mod layout;
mod scratch;
mod weights;
mod wgmma;

pub use ids::{check_ids, upload_ids};
pub use layer::{Batch, ExpertKernels, Form};
pub(crate) use scratch::Ones;
pub use scratch::{Plan, Scratch};
pub use weights::{DeviceExperts, Packer};

use kd_kernels::KernelError;

/// Most rows of one run.
pub const MOST_ROWS: usize = 4096;

/// Sizes of one layer's routed experts on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Intermediate width of an expert on this rank.
    pub width: usize,
    /// Experts of this rank.
    pub experts: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
}

/// Why experts cannot be packed or run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GpuError {
    /// A kernel that is missing or refused, or a failed allocation.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Matrices that the layout does not hold.
    #[error(transparent)]
    Layout(#[from] layout::LayoutError),
    /// A number over a limit.
    #[error("{what} is {found}, but the most is {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// A row that chose an expert more than once.
    #[error("row {row} chose expert {expert} more than once: the choices of a row must differ")]
    Repeated {
        /// The row.
        row: usize,
        /// The expert.
        expert: i32,
    },
    /// A form that a shape lacks, or the device.
    #[error("the form `{form}` is not there for experts of {shape:?} on this device: run another")]
    Form {
        /// Its name.
        form: &'static str,
        /// The layer's.
        shape: Shape,
    },
    /// An expert of another shape than the layer's.
    #[error("expert {expert} has a {matrix} of {found:?}, but this layer's are {expected:?}")]
    Expert {
        /// Its number on this rank.
        expert: usize,
        /// The matrix.
        matrix: &'static str,
        /// Rows and columns.
        found: [usize; 2],
        /// Rows and columns of the layer's.
        expected: [usize; 2],
    },
}

impl Shape {
    /// Packed words of one expert: gate and up, and down.
    pub(crate) fn expert_words(&self) -> Result<[usize; 2], GpuError> {
        let pair = self.width.saturating_mul(2);
        Ok([layout::packed_words(pair, self.hidden)?, layout::packed_words(self.hidden, self.width)?])
    }

    /// Bytes of the packed experts.
    ///
    /// # Errors
    /// Sizes that the layout does not hold.
    pub fn weight_bytes(&self) -> Result<usize, GpuError> {
        let [gate_up, down] = self.expert_words()?;
        let limit = usize::MAX / size_of::<u32>();
        let words = gate_up.checked_add(down).and_then(|words| words.checked_mul(self.experts));
        let words = words.filter(|words| *words <= limit);
        let error = GpuError::Limit { what: "the size of a layer", found: usize::MAX, limit };
        words.map(|words| words * size_of::<u32>()).ok_or(error)
    }
}
