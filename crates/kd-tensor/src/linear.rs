//! `y = x · Wᵀ` for weights that are decoded as they are read.

use std::ops::Range;

use crate::simd::{Inputs, LANES, Level, PlainRow, Rows, dots};
use crate::{Bf16Matrix, Matrix, Pool, View};

/// Multiply-adds that repay handing a task to another thread: some microseconds of one core.
const TASK: usize = 1 << 17;
/// Multiply-adds from which a thread's share is cut, so that one that falls behind is helped: some tens of microseconds.
const SHARE: usize = 1 << 21;
/// Multiply-adds from which it is cut further, as one thread may be slower than another all along: some hundreds of microseconds.
const LONG: usize = 1 << 25;
/// Multiply-adds that take as long as to read a weight.
const READ: usize = 4;

/// A weight matrix `[rows, cols]` (output features, input features) in some stored form.
pub trait WeightRows: Sync {
    /// Output features.
    fn rows(&self) -> usize;

    /// Input features.
    fn cols(&self) -> usize;

    /// Rows of activations in the form that products with these weights take.
    #[doc(hidden)]
    fn inputs<'x>(_level: Level, x: &[&'x [f32]]) -> Rows<'x> {
        Rows::Plain(x.to_vec())
    }

    /// Products with rows `start …`, as many as `out` is wide.
    #[doc(hidden)]
    fn multiply(&self, level: Level, start: usize, x: &Rows<'_>, out: &mut [&mut [f32]]);
}

/// Weights whose rows can be read in the order of their elements, as [`crate::mix`] does.
pub trait PlainRows: WeightRows {
    /// Row `row`.
    fn plain(&self, row: usize) -> impl PlainRow;
}

impl PlainRows for Bf16Matrix {
    #[inline(always)]
    fn plain(&self, row: usize) -> impl PlainRow {
        self.row(row)
    }
}

impl PlainRows for RowList<'_> {
    #[inline(always)]
    fn plain(&self, row: usize) -> impl PlainRow {
        self.0[row]
    }
}

/// f32 rows of one length that lie anywhere, as cached keys do.
#[derive(Debug, Clone, Copy)]
pub struct RowList<'a>(pub &'a [&'a [f32]]);

impl WeightRows for RowList<'_> {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn cols(&self) -> usize {
        self.0.first().map_or(0, |row| row.len())
    }

    fn multiply(&self, level: Level, start: usize, x: &Rows<'_>, out: &mut [&mut [f32]]) {
        let width = out.first().map_or(0, |row| row.len());
        dots(level, &self.0[start..start + width], x.plain(), out);
    }
}

/// A few neighbouring columns of every row of a matrix, to be written by one task.
#[derive(Debug)]
pub struct ColumnBlock<'a> {
    /// The columns, counted from the start of the range that was split.
    pub columns: Range<usize>,
    /// One slice a row.
    pub rows: Vec<&'a mut [f32]>,
}

pub(crate) fn column_blocks(y: &mut Matrix, columns: Range<usize>, width: usize) -> Vec<ColumnBlock<'_>> {
    let (rows, n) = (y.rows(), columns.len());
    let mut blocks: Vec<ColumnBlock<'_>> = (0..n.div_ceil(width))
        .map(|b| ColumnBlock { columns: b * width..((b + 1) * width).min(n), rows: Vec::with_capacity(rows) })
        .collect();
    for row in y.iter_rows_mut() {
        for (block, slice) in blocks.iter_mut().zip(row[columns.clone()].chunks_mut(width)) {
            block.rows.push(slice);
        }
    }
    blocks
}

impl ColumnBlock<'_> {
    /// Some of the block's columns, counted from its first, as a block whose columns count from 0.
    ///
    /// # Panics
    /// If the block is narrower.
    pub fn part(&mut self, columns: Range<usize>) -> ColumnBlock<'_> {
        let rows = self.rows.iter_mut().map(|row| &mut row[columns.clone()]).collect();
        ColumnBlock { columns: 0..columns.len(), rows }
    }

    /// Computes these columns of `x · Wᵀ`. Each weight row is read once for all rows of `x`.
    ///
    /// # Panics
    /// If `x` has other rows than the block or other columns than `w`.
    pub fn multiply(&mut self, x: View<'_>, w: &impl WeightRows) {
        let x: Vec<&[f32]> = (0..x.rows()).map(|m| x.row(m)).collect();
        Inputs::new(w, &x).multiply(w, self.columns.start, &mut self.rows);
    }
}

/// `out[m][i] = Σ_k w[start + i, k] · x[m][k]` for as many weight rows as `out` is wide; each is read once.
///
/// # Panics
/// If `x` and `out` have different numbers of rows, or `x` other columns than `w`.
pub fn multiply_rows(w: &impl WeightRows, start: usize, x: &[&[f32]], out: &mut [&mut [f32]]) {
    // An empty list of rows has no width.
    if out.first().is_some_and(|row| !row.is_empty()) {
        Inputs::new(w, x).multiply(w, start, out);
    }
}

/// Tasks into which `pool` should divide products of `rows` rows with so many weights: one, one for each thread, or up to
/// four, of long ones up to sixteen.
pub fn task_count(pool: &Pool, rows: usize, weights: usize) -> usize {
    let (work, threads) = ((rows + READ) * weights, pool.threads());
    let tasks = (work / TASK).min(threads).max((work / SHARE).min(4 * threads));
    let tasks = tasks.max((work / LONG).min(16 * threads));
    if tasks > 1 { tasks.next_multiple_of(threads) } else { 1 }
}

/// Columns a task should have, where there are `columns` in all, each a product of `rows` rows with `weights` weights:
/// pairs of tiles of weights, which share what is loaded of the rows.
pub fn block_width(pool: &Pool, columns: usize, rows: usize, weights: usize) -> usize {
    columns.div_ceil(task_count(pool, rows, columns * weights)).next_multiple_of(2 * LANES).max(2 * LANES)
}

/// `y[m, n] = Σ_k x[m, k] · w[n, k]`, with `x` `[M, K]` and `w` `[N, K]`; returns `y` `[M, N]`.
///
/// # Panics
/// If `x` has other columns than `w`.
pub fn linear(pool: &Pool, x: View<'_>, w: &impl WeightRows) -> Matrix {
    let [y] = linears(pool, x, [w]);
    y
}

/// [`linear`] of the same rows with several weights of one form, as one parallel region.
///
/// # Panics
/// If `x` has other columns than a weight.
pub fn linears<W: WeightRows, const N: usize>(pool: &Pool, x: View<'_>, weights: [&W; N]) -> [Matrix; N] {
    let mut y = weights.map(|w| Matrix::unwritten(x.rows(), w.rows()));
    multiply_all(pool, x, &weights, &mut y);
    y
}

/// [`linears`] of any number of weights into results of their shapes.
///
/// # Panics
/// If `x` has other columns than a weight, or a result another shape.
pub fn multiply_all<W: WeightRows>(pool: &Pool, x: View<'_>, weights: &[&W], y: &mut [Matrix]) {
    let columns: usize = weights.iter().map(|w| w.rows()).sum();
    let Some(first) = weights.first() else { return };
    let width = block_width(pool, columns, x.rows(), first.cols());
    let inputs = Inputs::new(*first, &(0..x.rows()).map(|m| x.row(m)).collect::<Vec<_>>());
    let mut tasks = Vec::new();
    for (w, y) in weights.iter().zip(y) {
        tasks.extend(y.column_blocks(0..w.rows(), width).into_iter().map(|block| (*w, block)));
    }
    pool.for_each(tasks, |(w, mut block)| inputs.multiply(w, block.columns.start, &mut block.rows));
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use half::bf16;

    use super::*;

    /// A thread that is slower than another all along needs something that it can leave to it; short tasks cost more than that.
    #[test]
    fn long_operations_are_cut_into_more_tasks_than_short_ones() {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap()).unwrap();
        for (rows, weights, tasks) in
            [(1, 1 << 10, 1), (17, 4352 * 256, 8), (1, 8 * 2048 * 7168, 18), (33, 8 * 2048 * 7168, 32)]
        {
            assert_eq!(task_count(&pool, rows, weights), tasks, "{rows} rows, {weights} weights");
        }
    }

    /// Design §5a, and wide enough that the columns are split.
    #[test]
    fn a_product_is_bitwise_the_same_on_any_number_of_threads() {
        let noise = |i: usize| (i * 2_654_435_761 % 1021) as f32 / 510.5 - 1.0;
        let (m, n, k) = (7, 1026, 300);
        let x = Matrix::from_vec(m, k, (0..m * k).map(noise).collect()).unwrap();
        let weights: Vec<bf16> = (0..n * k).map(|i| bf16::from_f32(noise(i + 7))).collect();
        let w = Bf16Matrix::new(n, k, weights).unwrap();
        let alone = linear(&Pool::single(), x.view(), &w);
        for threads in 2..=4 {
            let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            assert!(block_width(&pool, n, m, k) < n, "split over {threads} threads");
            assert_eq!(linear(&pool, x.view(), &w), alone, "{threads} threads");
        }
    }
}
