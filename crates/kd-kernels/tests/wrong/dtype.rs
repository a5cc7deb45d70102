//! An f32 tensor where the kernel reads bf16.

use half::bf16;
use kd_kernels::families::rms_norm::Args;
use kd_kernels::{TensorMut, TensorRef};

fn launch<'a>(x: TensorRef<'a, f32, 2>, gain: TensorRef<'a, bf16, 1>, y: TensorMut<'a, bf16, 2>) -> Args<'a> {
    Args { x, gain, eps: 1e-5, y }
}

fn main() {}
