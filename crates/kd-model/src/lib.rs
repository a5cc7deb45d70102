//! Configurations, checkpoints, and the forward passes of the K2.6 target and the DFlash drafter.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
mod error;

pub use error::{ConfigError, ConfigProblem, ModelError};
