//! The gated MLP of dense layers and shared experts.

use kd_tensor::{Bf16Matrix, Matrix, Pool, View, linear, ops::silu_mul};

/// `down(silu(gate x) · up x)` with bf16 weights.
#[derive(Debug, Clone)]
pub struct Mlp {
    /// `[width, hidden]`.
    pub gate: Bf16Matrix,
    /// `[width, hidden]`.
    pub up: Bf16Matrix,
    /// `[hidden, width]`.
    pub down: Bf16Matrix,
}

impl Mlp {
    /// `x` `[rows, hidden]` to `[rows, hidden]`.
    pub fn forward(&self, pool: &Pool, x: View<'_>) -> Matrix {
        let mut gate = linear(pool, x, &self.gate);
        silu_mul(gate.data_mut(), linear(pool, x, &self.up).data());
        linear(pool, gate.view(), &self.down)
    }
}
