//! Where the ranks of a pass meet: the parts of a layer's output become one residual stream.

use kd_tensor::ops::{add_assign, rms_norm_rows};
use kd_tensor::{Collective, CollectiveError, Matrix, Pool};

/// Bytes of weights that the caches of a machine may hold.
const CACHED: usize = 32 << 20;
/// Rows a thread that repay reading all weights: with fewer, a multiply-add waits for its weight.
const ROWS: usize = 8;

/// Whom a thread works with.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Those that have other weights.
    pub(crate) group: &'a dyn Collective,
    /// Those that have other rows.
    pub(crate) parts: &'a dyn Collective,
}

/// Into how many parts the `rows` rows of a pass are cut, a thread each: then threads wait for each other where rows see each other
/// and nowhere else. But each reads all weights, `bytes` of them, so it is worth it only where they stay in the caches and
/// every thread has enough rows.
pub(crate) fn row_parts(pool: &Pool, rows: usize, bytes: usize) -> usize {
    if bytes <= CACHED && rows >= ROWS * pool.threads() { pool.threads() } else { 1 }
}

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
