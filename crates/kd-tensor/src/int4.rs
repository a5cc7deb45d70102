//! INT4 weights in groups of 32, as compressed-tensors' `pack-quantized` format stores them.
//!
//! Eight codes a 32-bit word along the input dimension, code `i` in bits `4i … 4i+3`, stored with an offset of 8;
//! one bf16 scale for 32 codes: `w[o][c] = (code − 8) · scale[o][c / 32]`. The product is exact in f32: a code has
//! 4 significant bits and a scale 8.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::bf16;

use crate::WeightRows;
use crate::matrix::{ShapeError, extent};
use crate::simd::{CodeTiles, Level, Rows, product};
use crate::storage::Storage;

/// Columns that share one scale.
pub const GROUP: usize = 32;
/// Codes in one word.
pub const CODES_PER_WORD: usize = 8;

/// A `[rows, cols]` INT4 weight, words `[rows, cols / 8]` and scales `[rows, cols / 32]`, or some rows or groups of one.
///
/// The first product makes a copy in the order in which products read.
#[derive(Debug, Clone)]
pub struct Int4Matrix {
    rows: usize,
    cols: usize,
    /// Columns from one row to the next, as they are stored.
    stride: usize,
    words: Storage<i32>,
    scales: Storage<bf16>,
    tiles: Arc<OnceLock<CodeTiles>>,
}

impl Int4Matrix {
    /// Takes words and scales.
    ///
    /// # Errors
    /// If `cols` is no multiple of [`GROUP`], or a buffer has another length than the shape needs.
    pub fn new(
        rows: usize,
        cols: usize,
        words: impl Into<Storage<i32>>,
        scales: impl Into<Storage<bf16>>,
    ) -> Result<Self, ShapeError> {
        let (words, scales) = (words.into(), scales.into());
        if !cols.is_multiple_of(GROUP) {
            let what = "int4 matrix (columns must be a multiple of 32)";
            return Err(ShapeError { what, rows, cols, expected: cols.next_multiple_of(GROUP), found: cols });
        }
        ShapeError::check("int4 words", rows, cols, cols / CODES_PER_WORD, words.as_slice().len())?;
        ShapeError::check("int4 scales", rows, cols, cols / GROUP, scales.as_slice().len())?;
        Ok(Self { rows, cols, stride: cols, words, scales, tiles: Arc::default() })
    }

    /// Rows `range` as a matrix of their own, in the same memory.
    ///
    /// # Panics
    /// If the range reaches beyond the rows.
    pub fn slice_rows(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows outside the matrix");
        let words = extent(&range, self.stride / CODES_PER_WORD, self.cols / CODES_PER_WORD);
        let scales = extent(&range, self.stride / GROUP, self.cols / GROUP);
        let (words, scales) = (self.words.slice(words), self.scales.slice(scales));
        Self { rows: range.len(), cols: self.cols, stride: self.stride, words, scales, tiles: Arc::default() }
    }

    /// Columns `range` as a matrix of their own, in the same memory: their words together with their scales.
    ///
    /// # Panics
    /// If the range cuts a group, or reaches beyond the columns.
    pub fn slice_columns(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns outside the matrix");
        let whole = range.start.is_multiple_of(GROUP) && range.end.is_multiple_of(GROUP);
        assert!(whole, "columns {range:?} cut a group of {GROUP}");
        let part = |unit: usize| {
            let end = extent(&(0..self.rows), self.stride / unit, range.end / unit).end;
            (range.start / unit).min(end)..end
        };
        let (words, scales) = (self.words.slice(part(CODES_PER_WORD)), self.scales.slice(part(GROUP)));
        Self { rows: self.rows, cols: range.len(), stride: self.stride, words, scales, tiles: Arc::default() }
    }

    /// The scales of row `row`, one for each [`GROUP`] of its columns.
    #[inline(always)]
    pub fn scales(&self, row: usize) -> &[bf16] {
        &self.scales.as_slice()[row * (self.stride / GROUP)..][..self.cols / GROUP]
    }

    /// The codes of row `row`, eight a word.
    #[inline(always)]
    pub fn words(&self, row: usize) -> &[i32] {
        &self.words.as_slice()[row * (self.stride / CODES_PER_WORD)..][..self.cols / CODES_PER_WORD]
    }

    /// The weights in the order in which products read them.
    pub(crate) fn tiles(&self) -> &CodeTiles {
        let row = |row: usize| (self.words(row), self.scales(row));
        self.tiles.get_or_init(|| CodeTiles::new(self.rows, self.cols / GROUP, row))
    }
}

impl WeightRows for Int4Matrix {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn inputs<'x>(level: Level, x: &[&'x [f32]]) -> Rows<'x> {
        Rows::digits(level, x)
    }

    fn multiply(&self, level: Level, start: usize, x: &Rows<'_>, out: &mut [&mut [f32]]) {
        x.with_digits(|x| product(level, self.tiles(), start, x, out, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multiply_rows;

    /// Row `row` of `m`, as the kernels decode it.
    fn decode(m: &Int4Matrix, row: usize) -> Vec<f32> {
        let unit = |k: usize| (0..m.cols()).map(|c| if c == k { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        let value = |k: usize| {
            let mut out = [f32::NAN];
            multiply_rows(m, row, &[&unit(k)], &mut [&mut out]);
            out[0]
        };
        (0..m.cols()).map(value).collect()
    }

    /// Fault k26.md §5 rows 5 and 6: reversed nibbles; 15 of 16 codes.
    #[test]
    fn all_sixteen_codes_decode_exactly_and_in_order() {
        // Columns 0…15 hold codes 0…15, columns 16…31 the same backwards.
        let code = |c: usize| if c < 16 { c } else { 31 - c };
        let words: Vec<i32> = (0..4)
            .map(|j| (0..8).fold(0u32, |w, i| w | (code(8 * j + i) as u32) << (4 * i)) as i32)
            .collect();
        for scale in [0.0, 0.171875, -3.0, 2f32.powi(-40)] {
            let m = Int4Matrix::new(1, 32, words.clone(), vec![bf16::from_f32(scale)]).unwrap();
            for (c, value) in decode(&m, 0).into_iter().enumerate() {
                assert_eq!(value, (code(c) as f32 - 8.0) * scale, "column {c}");
            }
        }
    }

    /// Fault k26.md §5 row 3: a scale taken from the wrong group.
    #[test]
    fn each_group_of_each_row_uses_its_own_scale() {
        let scales: Vec<bf16> = (1..=6).map(|s| bf16::from_f32(s as f32)).collect();
        let m = Int4Matrix::new(2, 96, vec![0x9999_9999u32 as i32; 24], scales).unwrap();
        for row in 0..2 {
            for (c, value) in decode(&m, row).into_iter().enumerate() {
                assert_eq!(value, (row * 3 + c / 32 + 1) as f32);
            }
        }
    }

    /// Faults marlin.md §5 rows 10 and 26: a part of the input columns with the scales of another part, or with none.
    #[test]
    fn a_slice_of_columns_takes_its_own_scales_along() {
        let (rows, cols) = (3, 128);
        let words: Vec<i32> =
            (0..rows * cols / 8).map(|i| (i as u32).wrapping_mul(2_654_435_761) as i32).collect();
        let scales: Vec<bf16> = (1..=rows * cols / 32).map(|s| bf16::from_f32(s as f32)).collect();
        let whole = Int4Matrix::new(rows, cols, words, scales).unwrap();
        for ranks in [2, 4] {
            let width = cols / ranks;
            for (rank, columns) in (0..ranks).map(|rank| (rank, rank * width..(rank + 1) * width)) {
                let part = whole.slice_columns(columns.clone());
                assert_eq!((part.rows(), part.cols()), (rows, width));
                for row in 0..rows {
                    assert_eq!(
                        decode(&part, row),
                        decode(&whole, row)[columns.clone()],
                        "rank {rank} of {ranks}"
                    );
                }
            }
        }
        let part = whole.slice_rows(1..3).slice_columns(32..96);
        let other = whole.slice_columns(32..96).slice_rows(1..3);
        for row in 0..2 {
            assert_eq!(decode(&part, row), decode(&whole, row + 1)[32..96]);
            assert_eq!(decode(&other, row), decode(&part, row));
        }
        assert_eq!(whole.slice_columns(128..128).cols(), 0);
    }

    #[test]
    #[should_panic(expected = "cut a group of 32")]
    fn a_slice_of_columns_never_cuts_a_group() {
        Int4Matrix::new(1, 64, vec![0; 8], vec![bf16::ONE; 2]).unwrap().slice_columns(0..48);
    }

    #[test]
    fn a_shape_that_does_not_fit_is_refused() {
        let error = Int4Matrix::new(1, 48, vec![0; 6], vec![bf16::ONE]).unwrap_err();
        assert!(error.to_string().contains("multiple of 32"), "{error}");
        let error = Int4Matrix::new(2, 32, vec![0; 8], vec![bf16::ONE; 3]).unwrap_err();
        assert_eq!(error.to_string(), "int4 scales: shape [2, 32] needs 2 elements, found 3");
    }
}
