//! Routed experts: grouped INT4 products in which each weight is read once for all of its rows.

use kd_tensor::ops::{add_scaled, silu_mul};
use kd_tensor::{Bf16Matrix, Inputs, Int4Matrix, Matrix, Pool, View, WeightRows, block_width, task_count};

use crate::{Groups, Routing};

/// Output features that a task must not cut: two tiles, which share what is loaded of the rows.
const TILE: usize = 32;

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
        let mut hidden = Matrix::unwritten(groups.assignments(), width);
        let Some(first) = self.0.first() else { return hidden };
        let x = Inputs::new(&first.gate, &(0..x.rows()).map(|r| x.row(r)).collect::<Vec<_>>());
        let mut rows = hidden.iter_rows_mut();
        let mut tasks = Vec::new();
        // An expert is only cut if there are too few for all threads.
        let weights = 2 * width * first.gate.cols();
        let cuts = task_count(pool, groups.rows_each(), weights)
            .min((8 * pool.threads()).div_ceil(groups.distinct().max(1)));
        let block = width.div_ceil(cuts).next_multiple_of(TILE);
        for group in groups.iter() {
            let mut blocks: Vec<_> =
                rows.by_ref().take(group.rows.len()).map(|row| row.chunks_mut(block)).collect();
            for start in (0..width).step_by(block) {
                let out: Vec<&mut [f32]> = blocks.iter_mut().filter_map(Iterator::next).collect();
                tasks.push((group, start, out));
            }
        }
        pool.for_each(tasks, |(group, start, mut out)| {
            let expert = &self.0[group.expert];
            let x = x.select(group.rows.iter().map(|&r| r as usize));
            let mut up = Matrix::unwritten(out.len(), out[0].len());
            x.multiply(&expert.gate, start, &mut out);
            x.multiply(&expert.up, start, &mut up.iter_rows_mut().collect::<Vec<_>>());
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
        self.down_with(pool, rows, hidden, routing, groups, None)
    }

    /// As [`Experts::down`], plus `weights · x` for every row if given.
    pub(crate) fn down_with(
        &self,
        pool: &Pool,
        rows: usize,
        hidden: &Matrix,
        routing: &Routing,
        groups: &Groups,
        plus: Option<(&Bf16Matrix, &Matrix)>,
    ) -> Matrix {
        let out_features = self.0.first().map_or(0, |e| e.down.rows());
        let mut y = Matrix::zeros(rows, out_features);
        let Some(first) = self.0.first() else { return y };
        let inputs = Inputs::new(&first.down, &hidden.iter_rows().collect::<Vec<_>>());
        let plus = plus.map(|(w, x)| (w, Inputs::new(w, &x.iter_rows().collect::<Vec<_>>())));
        let read = groups.distinct() * hidden.cols() + plus.as_ref().map_or(0, |(w, _)| w.cols());
        let block = block_width(pool, out_features, groups.rows_each(), read);
        pool.for_each(y.column_blocks(0..out_features, block), |mut block| {
            for group in groups.iter() {
                let x = inputs.select(group.start..group.start + group.rows.len());
                let mut part = Matrix::unwritten(x.len(), block.columns.len());
                let mut out: Vec<&mut [f32]> = part.iter_rows_mut().collect();
                x.multiply(&self.0[group.expert].down, block.columns.start, &mut out);
                for ((&row, &slot), part) in group.rows.iter().zip(group.slots).zip(part.iter_rows()) {
                    add_scaled(block.rows[row as usize], routing.weights[slot as usize], part);
                }
            }
            if let Some((w, x)) = &plus {
                let mut part = Matrix::unwritten(x.len(), block.columns.len());
                x.multiply(*w, block.columns.start, &mut part.iter_rows_mut().collect::<Vec<_>>());
                for (y, part) in block.rows.iter_mut().zip(part.iter_rows()) {
                    add_scaled(y, 1.0, part);
                }
            }
        });
        y
    }
}
