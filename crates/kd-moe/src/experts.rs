//! Routed experts: grouped INT4 products in which each weight is read once for all of its rows.

use kd_tensor::{Int4Matrix, Matrix, Pool, View, WeightRows, block_width, multiply_rows, ops::silu_mul};

use crate::{Groups, Routing};

/// One routed expert.
#[derive(Debug, Clone)]
pub struct Expert {
    /// `[width, hidden]`.
    pub gate: Int4Matrix,
    /// `[width, hidden]`.
    pub up: Int4Matrix,
    /// `[hidden, width]`.
    pub down: Int4Matrix,
}

/// The routed experts of one layer, all of one shape.
#[derive(Debug, Clone)]
pub struct Experts(pub Vec<Expert>);

impl Experts {
    /// `Σ_e weight_e · expert_e(x)` for each row of `x` `[rows, hidden]`, summed in ascending expert id.
    pub fn forward(&self, pool: &Pool, x: View<'_>, routing: &Routing) -> Matrix {
        let groups = Groups::new(routing, self.0.len());
        let hidden = self.gate_up(pool, x, &groups);
        self.down(pool, x.rows(), &hidden, routing, &groups)
    }

    /// `silu(gate x) · up x` for each assignment, in the groups' order: `[assignments, width]`.
    pub fn gate_up(&self, pool: &Pool, x: View<'_>, groups: &Groups) -> Matrix {
        let width = self.0.first().map_or(0, |e| e.gate.rows());
        let mut hidden = Matrix::zeros(groups.assignments(), width);
        let mut rows = hidden.iter_rows_mut();
        let mut tasks = Vec::new();
        for group in groups.iter() {
            let block = block_width(pool, width, 2 * group.rows.len() * x.cols());
            let mut blocks: Vec<_> =
                rows.by_ref().take(group.rows.len()).map(|row| row.chunks_mut(block)).collect();
            for start in (0..width).step_by(block) {
                let out: Vec<&mut [f32]> = blocks.iter_mut().filter_map(Iterator::next).collect();
                tasks.push((group, start, out));
            }
        }
        pool.for_each(tasks, |(group, start, mut out)| {
            let expert = &self.0[group.expert];
            let x: Vec<&[f32]> = group.rows.iter().map(|&r| x.row(r as usize)).collect();
            let mut up = Matrix::zeros(out.len(), out[0].len());
            multiply_rows(&expert.gate, start, &x, &mut out);
            multiply_rows(&expert.up, start, &x, &mut up.iter_rows_mut().collect::<Vec<_>>());
            out.iter_mut().zip(up.iter_rows()).for_each(|(gate, up)| silu_mul(gate, up));
        });
        hidden
    }

    /// The weighted sum of the down products: `[rows, hidden]`.
    pub fn down(
        &self,
        pool: &Pool,
        rows: usize,
        hidden: &Matrix,
        routing: &Routing,
        groups: &Groups,
    ) -> Matrix {
        let out_features = self.0.first().map_or(0, |e| e.down.rows());
        let mut y = Matrix::zeros(rows, out_features);
        let block = block_width(pool, out_features, groups.assignments() * hidden.cols());
        pool.for_each(y.column_blocks(0..out_features, block), |mut block| {
            for group in groups.iter() {
                let x: Vec<&[f32]> = (0..group.rows.len()).map(|i| hidden.row(group.start + i)).collect();
                let mut part = Matrix::zeros(x.len(), block.columns.len());
                let mut out: Vec<&mut [f32]> = part.iter_rows_mut().collect();
                multiply_rows(&self.0[group.expert].down, block.columns.start, &x, &mut out);
                for ((&row, &slot), part) in group.rows.iter().zip(group.slots).zip(part.iter_rows()) {
                    let weight = routing.weights[slot as usize];
                    let y = block.rows[row as usize].iter_mut();
                    y.zip(part).for_each(|(y, part)| *y += weight * part);
                }
            }
        });
        y
    }
}
