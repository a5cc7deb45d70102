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

/// Writes all rows of `inputs`, some on each thread.
fn write_all(pool: &Pool, inputs: &mut Inputs<'static>, rows: &[&[f32]]) {
    let shares: Vec<&[&[f32]]> = rows.chunks(rows.len().div_ceil(pool.threads()).max(1)).collect();
    let parts = inputs.parts(shares.iter().map(|rows| rows.len()));
    pool.for_each(parts.into_iter().zip(shares).collect(), |(part, rows)| part.write(rows));
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
    pub fn gate_up(&self, pool: &Pool, x: View<'_>, groups: &Groups) -> Hidden {
        self.first_half(pool, &self.inputs(pool, x), groups)
    }

    /// Rows `x` as the first products take them.
    pub(crate) fn inputs(&self, pool: &Pool, x: View<'_>) -> Inputs<'static> {
        let mut inputs = Inputs::int4(x.rows(), x.cols());
        write_all(pool, &mut inputs, &(0..x.rows()).map(|row| x.row(row)).collect::<Vec<_>>());
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
        let distinct = groups.distinct().max(1);
        let cuts = task_count(pool, groups.rows_each(), weights)
            .min((8 * pool.threads()).div_ceil(distinct))
            .max(task_count(pool, groups.rows_each(), weights * distinct) / distinct);
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
            write_all(pool, &mut ready, &hidden.iter_rows().collect::<Vec<_>>());
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
            let mut factors = Vec::new();
            for group in groups.iter() {
                factors.clear();
                factors.extend(group.slots.iter().map(|&slot| routing.weights[slot as usize]));
                // Nearly always one run: a row may name an expert twice.
                let mut start = 0;
                for run in group.rows.chunk_by(|a, b| a < b) {
                    let (mut all, mut out) = (block.rows.iter_mut(), Vec::with_capacity(run.len()));
                    let mut before = 0;
                    for &row in run {
                        let row = row as usize;
                        out.extend(all.nth(row - before).map(|row| &mut **row));
                        before = row + 1;
                    }
                    let end = start + run.len();
                    hidden.0.add_scaled(
                        group.start + start..group.start + end,
                        &self.0[group.expert].down,
                        block.columns.start,
                        &factors[start..end],
                        &mut out,
                    );
                    start = end;
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use half::bf16;
    use kd_tensor::{linear, linears};

    use super::*;

    fn noise(seed: usize, i: usize) -> u32 {
        ((seed << 20 | i) as u32).wrapping_mul(2_654_435_761).rotate_left(13)
    }

    fn weight(rows: usize, cols: usize, seed: usize) -> Int4Matrix {
        let words: Vec<i32> = (0..rows * cols / 8).map(|i| noise(seed, i) as i32).collect();
        let scale = |i| bf16::from_f32(0.01 + 0.001 * (i % 7) as f32);
        Int4Matrix::new(rows, cols, words, (0..rows * cols / 32).map(scale).collect::<Vec<_>>()).unwrap()
    }

    /// Design §5a, where outputs and rows are cut between threads: the bits of one product after the other.
    #[test]
    fn a_layer_has_the_bits_of_its_single_products_on_any_number_of_threads() {
        let (hidden, width, rows) = (256, 128, 40);
        let expert = |e: usize| Expert {
            gate: weight(width, hidden, 3 * e),
            up: weight(width, hidden, 3 * e + 1),
            down: weight(hidden, width, 3 * e + 2),
        };
        let experts = Experts((0..3).map(expert).collect());
        let values = (0..rows * hidden).map(|i| noise(9, i) as f32 * 2f32.powi(-31) - 1.0).collect();
        let x = Matrix::from_vec(rows, hidden, values).unwrap();
        let routing = Routing {
            top_k: 2,
            ids: (0..rows).flat_map(|m| [[0, 1], [1, 2], [0, 2]][m % 3]).collect(),
            weights: (0..2 * rows).map(|i| 0.25 + i as f32 / 100.0).collect(),
            scores: Matrix::zeros(rows, 3),
        };
        let (single, mut want) = (Pool::single(), Matrix::zeros(rows, hidden));
        for (e, expert) in experts.0.iter().enumerate() {
            let [mut gate, up] = linears(&single, x.view(), [&expert.gate, &expert.up]);
            gate.iter_rows_mut().zip(up.iter_rows()).for_each(|(gate, up)| silu_mul(gate, up));
            let y = linear(&single, gate.view(), &expert.down);
            for slot in (0..2 * rows).filter(|&slot| routing.ids[slot] == e as u32) {
                add_scaled(want.row_mut(slot / 2), routing.weights[slot], y.row(slot / 2));
            }
        }
        for threads in 1..=4 {
            let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            assert!(experts.forward(&pool, x.view(), &routing) == want, "{threads} threads");
        }
    }
}
