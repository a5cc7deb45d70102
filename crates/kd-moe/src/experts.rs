//! Routed experts: grouped INT4 products in which each weight is read once for all of its rows.

use kd_tensor::ops::{add_scaled, silu_mul};
use kd_tensor::{
    Bf16Matrix, InputPart, Inputs, Int4Matrix, Matrix, Pool, View, WeightRows, block_width, task_count,
};

use crate::grouping::Group;
use crate::{Groups, Routing};

/// Output features that a task must not cut: two tiles, which share what is loaded of the rows.
pub(crate) const TILE: usize = 32;

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

/// What the first products of a pass gave: a row for each assignment, in the groups' order, as the last products take them.
#[derive(Debug)]
pub struct Hidden(Inputs<'static>);

/// The rows of a group, columns from where on, where they go, and where whole rows go as the last products take them.
type FirstHalf<'g, 'o, 'p> = (Group<'g>, usize, Vec<&'o mut [f32]>, Option<InputPart<'p>>);

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
    pub fn gate_up(&self, pool: &Pool, x: View<'_>, groups: &Groups) -> Hidden {
        self.first_half(pool, &self.inputs(x), groups)
    }

    /// Rows `x` as the first products take them.
    pub(crate) fn inputs(&self, x: View<'_>) -> Inputs<'static> {
        let mut inputs = Inputs::int4(x.rows(), x.cols());
        let rows: Vec<&[f32]> = (0..x.rows()).map(|row| x.row(row)).collect();
        inputs.parts(std::iter::once(x.rows())).into_iter().for_each(|part| part.write(&rows));
        inputs
    }

    /// As [`Experts::gate_up`] of rows that are ready for it.
    pub(crate) fn first_half(&self, pool: &Pool, x: &Inputs<'_>, groups: &Groups) -> Hidden {
        let width = self.0.first().map_or(0, |expert| expert.gate.rows());
        let mut ready = Inputs::int4(groups.assignments(), width);
        let Some(first) = self.0.first() else { return Hidden(ready) };
        let mut hidden = Matrix::unwritten(groups.assignments(), width);
        let mut rows = hidden.iter_rows_mut();
        // An expert is only cut if there are too few for all threads.
        let weights = 2 * width * first.gate.cols();
        let cuts = task_count(pool, groups.rows_each(), weights)
            .min((8 * pool.threads()).div_ceil(groups.distinct().max(1)));
        let block = width.div_ceil(cuts).next_multiple_of(TILE);
        let mut tasks: Vec<FirstHalf<'_, '_, '_>> = Vec::with_capacity(groups.distinct() * cuts);
        let parts = ready.parts(groups.iter().map(|group| group.rows.len()));
        for (group, part) in groups.iter().zip(parts) {
            let rows = rows.by_ref().take(group.rows.len());
            if block >= width {
                tasks.push((group, 0, rows.collect(), Some(part)));
                continue;
            }
            let mut blocks: Vec<_> = rows.map(|row| row.chunks_mut(block)).collect();
            for start in (0..width).step_by(block) {
                let rows = blocks.iter_mut().map(|row| row.next().expect("a block for each start"));
                tasks.push((group, start, rows.collect(), None));
            }
        }
        pool.for_each(tasks, |(group, start, mut out, part)| {
            let expert = &self.0[group.expert];
            let x = x.select(group.rows.iter().map(|&r| r as usize));
            let mut up = Matrix::unwritten(out.len(), out[0].len());
            x.multiply(&expert.gate, start, &mut out);
            x.multiply(&expert.up, start, &mut up.iter_rows_mut().collect::<Vec<_>>());
            out.iter_mut().zip(up.iter_rows()).for_each(|(gate, up)| silu_mul(gate, up));
            // Whoever has whole rows in its caches turns them into what the last products take.
            if let Some(part) = part {
                part.write(&out.iter().map(|row| &**row).collect::<Vec<_>>());
            }
        });
        if block < width {
            let rows: Vec<&[f32]> = hidden.iter_rows().collect();
            ready.parts(std::iter::once(rows.len())).into_iter().for_each(|part| part.write(&rows));
        }
        Hidden(ready)
    }

    /// The weighted sum of the down products: `[rows, hidden]`.
    pub fn down(
        &self,
        pool: &Pool,
        rows: usize,
        hidden: &Hidden,
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
        hidden: &Hidden,
        routing: &Routing,
        groups: &Groups,
        plus: Option<(&Bf16Matrix, &Matrix)>,
    ) -> Matrix {
        let out_features = self.0.first().map_or(0, |e| e.down.rows());
        let mut y = Matrix::zeros(rows, out_features);
        let Some(first) = self.0.first() else { return y };
        let plus = plus.map(|(w, x)| (w, Inputs::new(w, &x.iter_rows().collect::<Vec<_>>())));
        let read = groups.distinct() * first.down.cols() + plus.as_ref().map_or(0, |(w, _)| w.cols());
        let block = block_width(pool, out_features, groups.rows_each(), read);
        pool.for_each(y.column_blocks(0..out_features, block), |mut block| {
            for group in groups.iter() {
                let x = hidden.0.select(group.start..group.start + group.rows.len());
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
