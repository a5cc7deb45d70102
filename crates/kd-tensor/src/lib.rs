//! Data types, buffers, memory-mapped safetensors, INT4 groups and the CPU operations that carry no model knowledge.

pub mod dtype;
pub mod safetensors;
pub mod storage;
