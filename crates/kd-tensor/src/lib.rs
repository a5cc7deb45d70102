//! Data types, buffers, memory-mapped safetensors, INT4 groups and the CPU operations that carry no model
//! knowledge.
//!
//! Every operation here is a specification: the CUDA kernel of the same name is tested against it. All of them
//! compute a row from that row alone, in one fixed order, so a row's result is bitwise independent of how many
//! rows there are, of its neighbours and of the number of threads.

mod buffer;
pub mod dtype;
pub mod file;
pub mod guard;
pub mod int4;
mod lasting;
pub mod linear;
pub mod machine;
pub mod matrix;
pub mod ops;
pub mod pool;
pub mod ranks;
pub mod safetensors;
mod simd;
pub mod storage;

pub use dtype::DType;
pub use int4::Int4Matrix;
pub use linear::{
    ColumnBlock, PlainRows, RowList, WeightRows, block_width, linear, linears, multiply_all, multiply_rows,
    task_count,
};
pub use matrix::{Bf16Matrix, Matrix, ShapeError, View};
pub use pool::{Pool, Task};
pub use ranks::{Alone, Collective, CollectiveError};
pub use simd::{InputPart, Inputs, dot, mix};
pub use storage::Storage;
