//! Data types, buffers, memory-mapped safetensors, INT4 groups and the CPU operations that carry no model knowledge.
