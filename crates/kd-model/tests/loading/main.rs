//! Configurations and checkpoints: the goldens load, and everything malformed or unsupported is refused by name.

mod checkpoint;
mod common;
mod drafter_config;
mod int4;
mod inventory;
mod target_config;
