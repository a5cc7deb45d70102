//! `y = x · Wᵀ` for weights that are decoded row by row.

use std::ops::Range;

use crate::{Bf16Matrix, Matrix, Pool, View, dot, dot4};

/// Columns that one task computes: small enough to share work, large enough to repay handing it out.
const BLOCK: usize = 64;

/// A weight matrix `[rows, cols]` (output features, input features) whose rows can be decoded to f32.
pub trait WeightRows: Sync {
    /// Output features.
    fn rows(&self) -> usize;
    /// Input features.
    fn cols(&self) -> usize;
    /// Writes row `row` into `out`, which has `cols` elements.
    fn decode(&self, row: usize, out: &mut [f32]);
}

impl WeightRows for Bf16Matrix {
    fn rows(&self) -> usize {
        Bf16Matrix::rows(self)
    }

    fn cols(&self) -> usize {
        Bf16Matrix::cols(self)
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        for (out, w) in out.iter_mut().zip(self.row(row)) {
            *out = w.to_f32();
        }
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
    /// The first `width` columns of the block as a block whose columns count from 0.
    ///
    /// # Panics
    /// If the block is narrower.
    pub fn narrow(&mut self, width: usize) -> ColumnBlock<'_> {
        ColumnBlock { columns: 0..width, rows: self.rows.iter_mut().map(|row| &mut row[..width]).collect() }
    }

    /// Computes these columns of `x · Wᵀ`. Each weight row is decoded once for all rows of `x`.
    ///
    /// # Panics
    /// If `x` has other rows than the block or other columns than `w`.
    pub fn multiply(&mut self, x: View<'_>, w: &impl WeightRows) {
        let x: Vec<&[f32]> = (0..x.rows()).map(|m| x.row(m)).collect();
        multiply_rows(w, self.columns.start, &x, &mut self.rows);
    }
}

/// `out[m][i] = Σ_k w[start + i, k] · x[m][k]` for as many weight rows as `out` is wide; each is decoded once.
///
/// # Panics
/// If `x` and `out` have different numbers of rows, or `x` other columns than `w`.
pub fn multiply_rows(w: &impl WeightRows, start: usize, x: &[&[f32]], out: &mut [impl AsMut<[f32]>]) {
    assert_eq!(x.len(), out.len(), "rows of x and of the result");
    let width = out.first_mut().map_or(0, |row| row.as_mut().len());
    let mut weights = vec![0.0; w.cols()];
    for i in 0..width {
        w.decode(start + i, &mut weights);
        let mut m = 0;
        for four in x.chunks_exact(4) {
            let y = dot4(&weights, [four[0], four[1], four[2], four[3]]);
            y.into_iter().enumerate().for_each(|(j, y)| out[m + j].as_mut()[i] = y);
            m += 4;
        }
        for m in m..x.len() {
            out[m].as_mut()[i] = dot(&weights, x[m]);
        }
    }
}

/// `y[m, n] = Σ_k x[m, k] · w[n, k]`, with `x` `[M, K]` and `w` `[N, K]`; returns `y` `[M, N]`.
///
/// # Panics
/// If `x` has other columns than `w`.
pub fn linear(pool: &Pool, x: View<'_>, w: &impl WeightRows) -> Matrix {
    let mut y = Matrix::zeros(x.rows(), w.rows());
    pool.for_each(y.column_blocks(0..w.rows(), BLOCK), |mut block| block.multiply(x, w));
    y
}
