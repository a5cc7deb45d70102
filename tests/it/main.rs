//! Cross-crate tests.

mod antifake;
mod bench;
mod budget;
mod chat;
mod cli;
mod demo;
mod device;
mod faults;
mod goldens;
mod kv_fp8;
mod layering;
mod lossless;
mod lossless_ends;
mod pairs;
mod ranks;
mod text_goldens;
