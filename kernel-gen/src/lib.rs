//! Kernel declarations, CUDA templates and the generator that joins them.
#![forbid(unsafe_code)]
