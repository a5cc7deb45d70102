//! The routed experts on the GPU.

pub mod layout;
