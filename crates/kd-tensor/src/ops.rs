//! Row-wise operations: embedding gather, RMSNorm, SiLU·mul, softmax numerators.

use thiserror::Error;

pub use crate::simd::{add_scaled, exp_sum, exponentials, scale, silu_mul};
use crate::simd::{rms_norms, rms_norms_in_place};
use crate::{Bf16Matrix, Matrix};

/// A token id outside the embedding table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("token id {id} is outside the vocabulary of {vocab} ids")]
pub struct TokenOutOfRange {
    /// The id.
    pub id: u32,
    /// Rows of the table.
    pub vocab: usize,
}

/// Gathers rows `ids` of `table` `[vocab, hidden]` as f32 `[ids, hidden]`.
pub fn embed(table: &Bf16Matrix, ids: &[u32]) -> Result<Matrix, TokenOutOfRange> {
    check_ids(ids, table.rows())?;
    Ok(embed_part(table, 0, ids))
}

/// Checks that all ids lie in a vocabulary of `vocab`.
pub fn check_ids(ids: &[u32], vocab: usize) -> Result<(), TokenOutOfRange> {
    let outside = ids.iter().find(|&&id| id as usize >= vocab);
    outside.map_or(Ok(()), |&id| Err(TokenOutOfRange { id, vocab }))
}

/// As [`embed`] with the rows of ids `first`, `first + 1`, … alone; other ids give zeros. Over parts that make up a
/// vocabulary, the sum is what the whole table gives.
pub fn embed_part(part: &Bf16Matrix, first: usize, ids: &[u32]) -> Matrix {
    let mut out = Matrix::zeros(ids.len(), part.cols());
    for (row, &id) in out.iter_rows_mut().zip(ids) {
        let Some(id) = (id as usize).checked_sub(first).filter(|&id| id < part.rows()) else { continue };
        // As `to_f32`, but for the payload of a NaN, and without its branch.
        row.iter_mut()
            .zip(part.row(id))
            .for_each(|(out, w)| *out = f32::from_bits(u32::from(w.to_bits()) << 16));
    }
    out
}

/// `out = x / sqrt(mean(x²) + eps) · gain` for one row; all three have the same length.
///
/// Zhang and Sennrich, *Root Mean Square Layer Normalization*, eq. 4.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(
        (x.len(), out.len()),
        (gain.len(), gain.len()),
        "lengths of the row, the result and the gains"
    );
    rms_norms(x, gain, eps, out);
}

/// [`rms_norm`] of each `gain.len()` elements, in place of `x`.
///
/// # Panics
/// If `x` is no whole number of them.
pub fn rms_norm_in_place(x: &mut [f32], gain: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(gain.len()), "{} elements and {} gains", x.len(), gain.len());
    rms_norms_in_place(x, gain, eps);
}

/// [`rms_norm`] of every row.
pub fn rms_norm_rows(x: &Matrix, gain: &[f32], eps: f32) -> Matrix {
    assert_eq!(x.cols(), gain.len(), "columns and gains");
    let mut out = Matrix::unwritten(x.rows(), x.cols());
    rms_norms(x.data(), gain, eps, out.data_mut());
    out
}

/// `y += x` element by element.
pub fn add_assign(y: &mut Matrix, x: &Matrix) {
    add_scaled(y.data_mut(), 1.0, x.data());
}
