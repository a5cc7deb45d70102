//! INT4 weights in groups of 32, as compressed-tensors' `pack-quantized` format stores them.
//!
//! Eight codes a 32-bit word along the input dimension, code `i` in bits `4i … 4i+3`, stored with an offset of 8;
//! one bf16 scale for 32 codes: `w[o][c] = (code − 8) · scale[o][c / 32]`. The product is exact in f32: a code has
//! 4 significant bits and a scale 8.

use half::bf16;

use crate::WeightRows;
use crate::matrix::ShapeError;
use crate::simd::Int4Row;
use crate::storage::Storage;

/// Columns that share one scale.
pub const GROUP: usize = 32;
/// Codes in one word.
pub const CODES_PER_WORD: usize = 8;

/// A `[rows, cols]` INT4 weight: words `[rows, cols / 8]` and scales `[rows, cols / 32]`.
#[derive(Debug, Clone)]
pub struct Int4Matrix {
    rows: usize,
    cols: usize,
    words: Storage<i32>,
    scales: Storage<bf16>,
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
        Ok(Self { rows, cols, words, scales })
    }

    /// The codes, eight a word, `[rows, cols / 8]`.
    pub fn words(&self) -> &[i32] {
        self.words.as_slice()
    }

    /// The scales, `[rows, cols / 32]`.
    pub fn scales(&self) -> &[bf16] {
        self.scales.as_slice()
    }
}

impl WeightRows for Int4Matrix {
    type Row<'a> = Int4Row<'a>;

    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    #[inline(always)]
    fn row(&self, row: usize) -> Int4Row<'_> {
        let (words, groups) = (self.cols / CODES_PER_WORD, self.cols / GROUP);
        Int4Row::new(
            &self.words.as_slice()[row * words..][..words],
            &self.scales.as_slice()[row * groups..][..groups],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    /// Row `row` of `m`, as the kernels decode it.
    fn decode(m: &Int4Matrix, row: usize) -> Vec<f32> {
        let coefficients: Vec<f32> = (0..m.rows()).map(|r| if r == row { 1.0 } else { 0.0 }).collect();
        let mut out = vec![0.0; m.cols()];
        mix(&[&coefficients], m, &mut [&mut out]);
        out
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

    #[test]
    fn a_shape_that_does_not_fit_is_refused() {
        let error = Int4Matrix::new(1, 48, vec![0; 6], vec![bf16::ONE]).unwrap_err();
        assert!(error.to_string().contains("multiple of 32"), "{error}");
        let error = Int4Matrix::new(2, 32, vec![0; 8], vec![bf16::ONE; 3]).unwrap_err();
        assert_eq!(error.to_string(), "int4 scales: shape [2, 32] needs 2 elements, found 3");
    }
}
