//! The `kd` command.
#![forbid(unsafe_code)]

fn main() {}
