//! The models on a GPU: weights in the order of the kernels, memory planned once, passes of launches alone.
//!
//! [`CudaTarget`] holds one rank's weights and kernels, [`PassState`] everything that passes write. A pass reads its
//! tokens, trees and pages from [`PassInputs`], fixed device memory, so that it can be captured once for a [`Bucket`] and
//! replayed for any round that fits. [`Target`](crate::Target) is the specification.
//!
//! Every row goes through the same arithmetic whatever the bucket holds besides: the bits of a tree's row are those of
//! plain decoding at its position.

mod attention;
mod cache;
mod dims;
mod drafter;
mod error;
mod fit;
mod inputs;
mod kernels;
mod layer;
mod limits;
mod memory;
mod places;
mod plan;
mod prefill;
mod random;
mod rows;
mod state;
mod target;
mod upload;
mod walk;
mod weights;

pub use dims::Dims;
pub use drafter::{
    BestTokens, Blocks, Committed, ContextRows, CudaDrafter, DeviceLent, DraftDims, DraftInputs, DraftLimits,
    SentTokens, open_drafter_kernels,
};
pub use error::CudaError;
pub use fit::Fit;
pub use inputs::{Move, PassInputs};
pub use kd_moe::gpu::MOST_ROWS;
pub use layer::Choices;
pub use limits::{Bucket, Limits};
pub use prefill::{ChunkLimits, PrefillState};
pub use random::RandomWeights;
pub use state::PassState;
pub use target::{CudaTarget, open_kernels};
pub use upload::{DeviceMatrix, Uploader};
pub use walk::Walks;
