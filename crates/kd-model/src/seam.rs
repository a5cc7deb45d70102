//! Where the ranks of a pass meet: the parts of a layer's output become one residual stream.

use kd_tensor::ops::{add_assign, rms_norm_rows};
use kd_tensor::{Collective, CollectiveError, Matrix};

/// Adds the sum of all ranks' parts to the residual stream, which every rank holds whole.
pub(crate) fn reduce_add(
    group: &dyn Collective,
    part: Matrix,
    hidden: &mut Matrix,
) -> Result<(), CollectiveError> {
    add_assign(hidden, &group.all_reduce(part)?);
    Ok(())
}

/// As [`reduce_add`], and returns the stream normed for what comes next.
pub(crate) fn reduce_add_norm(
    group: &dyn Collective,
    part: Matrix,
    hidden: &mut Matrix,
    gain: &[f32],
    eps: f32,
) -> Result<Matrix, CollectiveError> {
    reduce_add(group, part, hidden)?;
    Ok(rms_norm_rows(hidden, gain, eps))
}

/// The results of all ranks. All of them succeeded: ranks of one process run one program, and where one of them panics,
/// the panic was passed on before.
pub(crate) fn succeeded<T>(results: Vec<Result<T, CollectiveError>>) -> Vec<T> {
    results.into_iter().map(|r| r.unwrap_or_else(|error| panic!("ranks of one process: {error}"))).collect()
}

/// What ranks computed for their own spans of the vocabulary, side by side. A single part is the whole.
pub(crate) fn side_by_side(mut parts: Vec<Matrix>) -> Matrix {
    if parts.len() == 1 { parts.remove(0) } else { Matrix::beside(&parts) }
}
