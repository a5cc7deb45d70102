//! Row-wise operations: embedding gather, RMSNorm, SiLU·mul, softmax numerators.

use thiserror::Error;

pub use crate::simd::{exponentials, silu_mul};
use crate::{Bf16Matrix, Matrix, dot};

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
    let mut out = Matrix::zeros(ids.len(), table.cols());
    for (row, &id) in out.iter_rows_mut().zip(ids) {
        if id as usize >= table.rows() {
            return Err(TokenOutOfRange { id, vocab: table.rows() });
        }
        for (out, w) in row.iter_mut().zip(table.row(id as usize)) {
            *out = w.to_f32();
        }
    }
    Ok(out)
}

/// `out = x / sqrt(mean(x²) + eps) · gain` for one row; all three have the same length.
///
/// Zhang and Sennrich, *Root Mean Square Layer Normalization*, eq. 4.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((out, x), gain) in out.iter_mut().zip(x).zip(gain) {
        *out = x * scale * gain;
    }
}

/// [`rms_norm`] that overwrites its input.
pub fn rms_norm_in_place(x: &mut [f32], gain: &[f32], eps: f32) {
    let scale = inverse_rms(x, eps);
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = *x * scale * gain;
    }
}

/// [`rms_norm`] of every row.
pub fn rms_norm_rows(x: &Matrix, gain: &[f32], eps: f32) -> Matrix {
    let mut out = Matrix::zeros(x.rows(), x.cols());
    for (out, x) in out.iter_rows_mut().zip(x.iter_rows()) {
        rms_norm(x, gain, eps, out);
    }
    out
}

fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// `y += x` element by element.
pub fn add_assign(y: &mut Matrix, x: &Matrix) {
    for (y, x) in y.data_mut().iter_mut().zip(x.data()) {
        *y += x;
    }
}
