//! Row-major matrices: f32 activations that the engine writes, and bf16 weights that it only reads.

use std::borrow::Borrow;
use std::ops::Range;
use std::slice::{ChunksExact, ChunksExactMut};
use std::sync::{Arc, OnceLock};

use half::bf16;
use thiserror::Error;

use crate::WeightRows;
use crate::buffer::Buffer;
use crate::simd::{DenseTiles, Level, Rows, product};
use crate::storage::Storage;

/// A buffer whose length does not fit the shape it was given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}: shape [{rows}, {cols}] needs {expected} elements, found {found}")]
pub struct ShapeError {
    /// What the buffer holds.
    pub what: &'static str,
    /// Rows of the wanted shape.
    pub rows: usize,
    /// Columns of the wanted shape.
    pub cols: usize,
    /// Elements that the shape needs.
    pub expected: usize,
    /// Elements that the buffer has.
    pub found: usize,
}

impl ShapeError {
    pub(crate) fn check(
        what: &'static str,
        rows: usize,
        cols: usize,
        per_row: usize,
        found: usize,
    ) -> Result<(), Self> {
        match rows.checked_mul(per_row) {
            Some(expected) if expected == found => Ok(()),
            expected => Err(Self { what, rows, cols, expected: expected.unwrap_or(usize::MAX), found }),
        }
    }
}

/// A row-major `[rows, cols]` matrix of f32 activations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Buffer,
}

impl Matrix {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: Buffer::zeros(rows * cols) }
    }

    /// A matrix to be written: until then its elements are whatever the memory held before, and NaN where debug assertions
    /// are on.
    pub fn unwritten(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: Buffer::unwritten(rows * cols) }
    }

    /// Copies `data`, which must hold `rows * cols` elements.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<f32>) -> Result<Self, ShapeError> {
        ShapeError::check("matrix", rows, cols, cols, data.len())?;
        Ok(Self { rows, cols, data: Buffer::from(data.as_slice()) })
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All elements, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All elements, row after row, to be written.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..][..self.cols]
    }

    /// Row `i`, to be written.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..][..self.cols]
    }

    /// The rows in order; nothing for a matrix without columns.
    pub fn iter_rows(&self) -> ChunksExact<'_, f32> {
        self.data.chunks_exact(self.cols.max(1))
    }

    /// The rows in order, to be written.
    pub fn iter_rows_mut(&mut self) -> ChunksExactMut<'_, f32> {
        self.data.chunks_exact_mut(self.cols.max(1))
    }

    /// The whole matrix as a view.
    pub fn view(&self) -> View<'_> {
        self.columns(0..self.cols)
    }

    /// Some columns of every row.
    ///
    /// # Panics
    /// If the range reaches beyond the columns.
    pub fn columns(&self, columns: Range<usize>) -> View<'_> {
        assert!(columns.start <= columns.end && columns.end <= self.cols, "columns outside the matrix");
        View {
            data: &self.data,
            rows: self.rows,
            stride: self.cols,
            start: columns.start,
            cols: columns.len(),
        }
    }

    /// Splits the columns in `columns` into blocks of `width` that can be written independently.
    pub fn column_blocks(&mut self, columns: Range<usize>, width: usize) -> Vec<crate::ColumnBlock<'_>> {
        crate::linear::column_blocks(self, columns, width)
    }

    /// The columns of all parts side by side.
    ///
    /// # Panics
    /// If the parts have different numbers of rows, or there are none.
    pub fn beside(parts: &[impl Borrow<Self>]) -> Self {
        let parts: Vec<&Self> = parts.iter().map(Borrow::borrow).collect();
        let mut all = Self::unwritten(parts[0].rows, parts.iter().map(|part| part.cols).sum());
        let mut start = 0;
        for part in parts {
            assert_eq!(part.rows, all.rows, "parts of equally many rows");
            for (all, part) in all.iter_rows_mut().zip(part.iter_rows()) {
                all[start..start + part.len()].copy_from_slice(part);
            }
            start += part.cols;
        }
        all
    }

    /// The rows of all parts one after the other.
    ///
    /// # Panics
    /// If the parts have different numbers of columns, or there are none.
    pub fn below(parts: &[impl Borrow<Self>]) -> Self {
        let parts: Vec<&Self> = parts.iter().map(Borrow::borrow).collect();
        let mut all = Self::unwritten(parts.iter().map(|part| part.rows).sum(), parts[0].cols);
        let mut rest = &mut *all.data;
        for part in parts {
            assert_eq!(part.cols, all.cols, "parts of equally many columns");
            let own = rest.split_off_mut(..part.data.len()).expect("as many rows as the parts have");
            own.copy_from_slice(&part.data);
        }
        all
    }

    /// A new matrix of the named rows, in that order.
    pub fn gather(&self, rows: impl ExactSizeIterator<Item = usize>) -> Self {
        let mut out = Self::unwritten(rows.len(), self.cols);
        out.iter_rows_mut().zip(rows).for_each(|(out, row)| out.copy_from_slice(self.row(row)));
        out
    }
}

/// Some columns of every row of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    stride: usize,
    start: usize,
    cols: usize,
}

impl<'a> View<'a> {
    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride + self.start..][..self.cols]
    }
}

/// A row-major `[rows, cols]` bf16 weight, owned or mapped from a checkpoint, or some rows or columns of one.
///
/// The first product makes a copy in the order in which products read. Rows of a matrix share its copy.
#[derive(Debug, Clone)]
pub struct Bf16Matrix {
    /// Which rows of `whole`.
    rows: Range<usize>,
    whole: Arc<Whole>,
}

#[derive(Debug)]
struct Whole {
    rows: usize,
    cols: usize,
    /// Elements from one row to the next.
    stride: usize,
    /// From the first element to the last.
    data: Storage<bf16>,
    tiles: OnceLock<DenseTiles>,
}

impl Whole {
    #[inline]
    fn row(&self, row: usize) -> &[bf16] {
        &self.data.as_slice()[row * self.stride..][..self.cols]
    }

    fn tiles(&self) -> &DenseTiles {
        self.tiles.get_or_init(|| DenseTiles::new(self.rows, self.cols, |row| self.row(row)))
    }
}

impl Bf16Matrix {
    /// Takes `data`, which must hold `rows * cols` elements.
    pub fn new(rows: usize, cols: usize, data: impl Into<Storage<bf16>>) -> Result<Self, ShapeError> {
        let data = data.into();
        ShapeError::check("bf16 matrix", rows, cols, cols, data.as_slice().len())?;
        Ok(Self::of(Whole { rows, cols, stride: cols, data, tiles: OnceLock::new() }))
    }

    fn of(whole: Whole) -> Self {
        Self { rows: 0..whole.rows, whole: Arc::new(whole) }
    }

    /// Number of rows (output features).
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Number of columns (input features).
    #[inline]
    pub fn cols(&self) -> usize {
        self.whole.cols
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &[bf16] {
        debug_assert!(i < self.rows(), "row {i} of {}", self.rows());
        self.whole.row(self.rows.start + i)
    }

    /// Rows `range` as a matrix of their own, in the same memory.
    ///
    /// # Panics
    /// If the range reaches beyond the rows.
    pub fn slice_rows(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows(), "rows outside the matrix");
        let rows = self.rows.start + range.start..self.rows.start + range.end;
        Self { rows, whole: Arc::clone(&self.whole) }
    }

    /// Columns `range` as a matrix of their own, in the same memory.
    ///
    /// # Panics
    /// If the range reaches beyond the columns.
    pub fn slice_columns(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols(), "columns outside the matrix");
        let stride = self.whole.stride;
        let end = extent(&self.rows, stride, range.end).end;
        let data = self.whole.data.slice((self.rows.start * stride + range.start).min(end)..end);
        let (rows, cols) = (self.rows(), range.len());
        Self::of(Whole { rows, cols, stride, data, tiles: OnceLock::new() })
    }
}

impl WeightRows for Bf16Matrix {
    fn rows(&self) -> usize {
        Bf16Matrix::rows(self)
    }

    fn cols(&self) -> usize {
        Bf16Matrix::cols(self)
    }

    fn multiply(&self, level: Level, start: usize, x: &Rows<'_>, out: &mut [&mut [f32]]) {
        product(level, self.whole.tiles(), self.rows.start + start, x.plain(), out, None);
    }
}

/// Elements from the first to the last of `rows` rows of `cols` elements that begin `stride` elements apart.
pub(crate) fn extent(rows: &Range<usize>, stride: usize, cols: usize) -> Range<usize> {
    match rows.len() {
        0 => 0..0,
        _ => rows.start * stride..(rows.end - 1) * stride + cols,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of rows, columns of columns, and both in either order are the elements of the whole.
    #[test]
    fn slices_of_slices_hold_the_elements_of_the_whole() {
        let (rows, cols) = (5, 7);
        let values: Vec<bf16> = (0..rows * cols).map(|i| bf16::from_f32(i as f32)).collect();
        let whole = Bf16Matrix::new(rows, cols, values).unwrap();
        let part = whole.slice_rows(1..5).slice_columns(2..7);
        let other = whole.slice_columns(1..7).slice_columns(1..6).slice_rows(1..5);
        for (i, row) in (1..5).enumerate() {
            assert_eq!(part.row(i), &whole.row(row)[2..7]);
            assert_eq!(other.row(i), part.row(i));
        }
        assert_eq!((part.rows(), part.cols()), (4, 5));
        assert_eq!(whole.slice_rows(5..5).rows(), 0);
        assert_eq!(whole.slice_rows(2..2).slice_columns(3..7).cols(), 4);
        assert_eq!(whole.slice_columns(7..7).row(4), [bf16::ZERO; 0]);
    }
}
