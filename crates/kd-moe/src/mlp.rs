//! The gated MLP of dense layers and shared experts.

use kd_tensor::{Bf16Matrix, Inputs, Matrix, Pool, Task, View, block_width, linear, ops::silu_mul};

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
        let inputs = self.inputs(x);
        let mut hidden = self.hidden(x.rows());
        let block = block_width(pool, self.gate.rows(), x.rows(), 2 * self.gate.cols());
        pool.run(self.gate_up(block, &inputs, &mut hidden));
        linear(pool, hidden.view(), &self.down)
    }

    /// Rows `x` as [`Mlp::gate_up`] takes them.
    pub fn inputs<'x>(&self, x: View<'x>) -> Inputs<'x> {
        Inputs::new(&self.gate, &(0..x.rows()).map(|row| x.row(row)).collect::<Vec<_>>())
    }

    /// Room for what [`Mlp::gate_up`] computes of so many rows.
    pub fn hidden(&self, rows: usize) -> Matrix {
        Matrix::unwritten(rows, self.gate.rows())
    }

    /// Tasks of `block` columns that write `silu(gate x) · up x` to `hidden` `[rows, width]`.
    pub fn gate_up<'a>(&'a self, block: usize, x: &'a Inputs<'_>, hidden: &'a mut Matrix) -> Vec<Task<'a>> {
        let blocks = hidden.column_blocks(0..self.gate.rows(), block).into_iter();
        let task = |mut block: kd_tensor::ColumnBlock<'a>| -> Task<'a> {
            Box::new(move || {
                let mut up = Matrix::unwritten(block.rows.len(), block.columns.len());
                x.multiply(&self.gate, block.columns.start, &mut block.rows);
                x.multiply(&self.up, block.columns.start, &mut up.iter_rows_mut().collect::<Vec<_>>());
                block.rows.iter_mut().zip(up.iter_rows()).for_each(|(gate, up)| silu_mul(gate, up));
            })
        };
        blocks.map(task).collect()
    }
}
