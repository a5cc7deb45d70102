//! Compiled CUDA kernel images and their typed launchers; the only crate with unsafe launches.
