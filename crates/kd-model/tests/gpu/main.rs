//! The models on a GPU against those on the CPU, where there is a GPU.

mod common;
mod contexts;
mod drafter;
mod passes;
mod prompts;
mod random;
mod replays;
mod rows;
