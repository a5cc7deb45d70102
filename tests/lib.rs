//! Shared helpers of the cross-crate tests.
#![forbid(unsafe_code)]
