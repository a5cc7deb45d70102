//! Configurations, checkpoints, and the forward passes of the K2.6 target and the DFlash drafter.
#![forbid(unsafe_code)]
