//! Routed experts: grouped INT4 products in which each weight is decoded once for all of its rows.

use kd_tensor::{Int4Matrix, Matrix, Pool, View, WeightRows, multiply_rows, ops::silu_mul};

use crate::{Groups, Routing};

/// Weight rows that one task handles.
const BLOCK: usize = 32;

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
    fn gate_up(&self, pool: &Pool, x: View<'_>, groups: &Groups) -> Matrix {
        let width = self.0.first().map_or(0, |e| e.gate.rows());
        let mut hidden = Matrix::zeros(groups.assignments(), width);
        let mut rows = hidden.iter_rows_mut();
        let mut tasks = Vec::new();
        for group in groups.iter() {
            let x: Vec<&[f32]> = group.rows.iter().map(|&r| x.row(r as usize)).collect();
            let mut blocks: Vec<_> = rows.by_ref().take(x.len()).map(|row| row.chunks_mut(BLOCK)).collect();
            for start in (0..width).step_by(BLOCK) {
                let out: Vec<&mut [f32]> = blocks.iter_mut().filter_map(Iterator::next).collect();
                tasks.push((group.expert, start, x.clone(), out));
            }
        }
        pool.for_each(tasks, |(expert, start, x, mut out)| {
            let expert = &self.0[expert];
            let mut up = vec![vec![0.0; out[0].len()]; out.len()];
            multiply_rows(&expert.gate, start, &x, &mut out);
            multiply_rows(&expert.up, start, &x, &mut up);
            out.iter_mut().zip(&up).for_each(|(gate, up)| silu_mul(gate, up));
        });
        hidden
    }

    /// The weighted sum of the down products: `[rows, hidden]`.
    fn down(&self, pool: &Pool, rows: usize, hidden: &Matrix, routing: &Routing, groups: &Groups) -> Matrix {
        let out_features = self.0.first().map_or(0, |e| e.down.rows());
        let mut y = Matrix::zeros(rows, out_features);
        pool.for_each(y.column_blocks(0..out_features, BLOCK), |mut block| {
            for group in groups.iter() {
                let x: Vec<&[f32]> = (0..group.rows.len()).map(|i| hidden.row(group.start + i)).collect();
                let mut part = vec![vec![0.0; block.columns.len()]; x.len()];
                multiply_rows(&self.0[group.expert].down, block.columns.start, &x, &mut part);
                for ((&row, &slot), part) in group.rows.iter().zip(group.slots).zip(&part) {
                    let weight = routing.weights[slot as usize];
                    let y = block.rows[row as usize].iter_mut();
                    y.zip(part).for_each(|(y, part)| *y += weight * part);
                }
            }
        });
        y
    }
}
