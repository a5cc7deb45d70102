//! What can go wrong between a model and a GPU.

use kd_kernels::KernelError;
use kd_moe::gpu::GpuError;
use kd_tensor::ops::TokenOutOfRange;

/// Why a model cannot be brought to a GPU, or a pass not be run there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A kernel that is missing or refused, a failed copy or launch.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Experts that cannot be packed or run.
    #[error(transparent)]
    Experts(Box<GpuError>),
    /// A token id outside the vocabulary.
    #[error(transparent)]
    Token(#[from] TokenOutOfRange),
    /// A shape that no kernels are declared for.
    #[error(
        "no kernels are declared for {shape}; declare a profile in kernel-gen/src/profile.rs, then run \
         `cargo xtask build-kernels --profile NAME`, or use --device cpu"
    )]
    NoProfile {
        /// The sizes that were looked for.
        shape: String,
    },
    /// Something that the GPU forward does not implement.
    #[error("`{key}` = {found} is not implemented on GPUs ({supported}); use --device cpu")]
    Unsupported {
        /// Key of the configuration.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is implemented.
        supported: &'static str,
    },
    /// Memory that the device does not have.
    #[error(
        "out of GPU memory: {what} {} MiB, {} MiB are free; {fits}",
        .needed.div_ceil(1 << 20), .free / (1 << 20)
    )]
    OutOfMemory {
        /// What needs it, with its verb.
        what: &'static str,
        /// Bytes.
        needed: usize,
        /// Bytes.
        free: usize,
        /// What would fit.
        fits: String,
    },
    /// A number over a limit that was fixed when memory was planned.
    #[error("{what} is {found}, the limit is {limit}")]
    Limit {
        /// What.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The most.
        limit: usize,
    },
}

// Boxed, or every result of a launch would be as large as the rarest error.
impl From<GpuError> for CudaError {
    fn from(error: GpuError) -> Self {
        Self::Experts(Box::new(error))
    }
}

/// Fails unless `found` is at most `limit`.
pub(crate) fn within(what: &'static str, found: usize, limit: usize) -> Result<(), CudaError> {
    if found <= limit { Ok(()) } else { Err(CudaError::Limit { what, found, limit }) }
}
