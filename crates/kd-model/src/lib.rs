//! Configurations, checkpoints, and the forward passes of the K2.6 target and the DFlash drafter.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod cuda;
mod drafter;
mod error;
mod inventory;
mod load;
mod seam;
mod share;
mod target;
mod trace;

pub use drafter::{Draft, Drafter, Lent};
pub use error::{ConfigError, ConfigProblem, ModelError};
pub use inventory::{Split, TensorSpec};
pub use share::{Part, Share, ShareError};
pub use target::{Forward, Target};
pub use trace::{OpCounter, Trace};
