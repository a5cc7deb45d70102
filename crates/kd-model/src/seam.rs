//! Where the ranks of a pass meet: the parts of a layer's output become one residual stream.

use std::iter::once;
use std::ops::Range;

use kd_tensor::ops::{add_assign, rms_norm_rows};
use kd_tensor::{Collective, CollectiveError, Matrix, Pool};

/// Bytes of weights that the caches of a machine may hold.
const CACHED: usize = 32 << 20;
/// Rows a thread that repay reading all weights: with fewer, a multiply-add waits for its weight.
const ROWS: usize = 8;
/// Rows that a part with dear rows may be left with.
const FEWEST: usize = ROWS / 2;
/// What the dearest part may cost of what a part costs on average, which the others wait for.
const LATE: f64 = 1.25;

/// What a thread works on, and with whom.
pub(crate) struct Place<'a> {
    /// Those that have other weights.
    pub(crate) group: &'a dyn Collective,
    /// Those that have other rows.
    pub(crate) parts: &'a dyn Collective,
    /// Its own rows of the pass.
    pub(crate) rows: Range<usize>,
}

/// The parts that the `rows` rows of a pass are cut into, a thread each: then threads wait for each other where rows see each
/// other and nowhere else. But each reads all weights, `bytes` of them, so it is worth it only where they stay in the caches and
/// every thread has enough rows. `costs` are each row's multiply-adds: parts cost about the same. One part is all rows,
/// for all threads together.
pub(crate) fn row_parts(
    pool: &Pool,
    bytes: usize,
    rows: usize,
    costs: impl Iterator<Item = f64>,
) -> Vec<Range<usize>> {
    let threads = pool.threads();
    let repays = threads > 1 && bytes <= CACHED && rows >= ROWS * threads && !pool.is_running_this_thread();
    let parts = repays.then(|| equal_parts(&costs.collect::<Vec<_>>(), threads)).flatten();
    parts.unwrap_or_else(|| once(0..rows).collect())
}

/// Spans of rows, each up to the row in whose middle, or before it, its share of all costs is reached. None if they would be
/// unequal all the same, or have few rows.
fn equal_parts(costs: &[f64], parts: usize) -> Option<Vec<Range<usize>>> {
    let mean = costs.iter().sum::<f64>() / parts as f64;
    let (mut spans, mut start, mut before) = (Vec::with_capacity(parts), 0, 0.0);
    for (row, cost) in costs.iter().enumerate() {
        while spans.len() + 1 < parts && before + cost / 2.0 > mean * (spans.len() + 1) as f64 {
            spans.push(start..row);
            start = row;
        }
        before += cost;
    }
    spans.push(start..costs.len());
    let fits =
        |span: &Range<usize>| span.len() >= FEWEST && costs[span.clone()].iter().sum::<f64>() <= LATE * mean;
    (spans.len() == parts && spans.iter().all(fits)).then_some(spans)
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn parts(threads: usize, bytes: usize, keys: &[usize]) -> Vec<Range<usize>> {
        let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
        row_parts(&pool, bytes, keys.len(), keys.iter().map(|&keys| 760.0 + 2.0 * keys as f64))
    }

    fn whole(rows: usize) -> Vec<Range<usize>> {
        once(0..rows).collect()
    }

    #[test]
    fn few_rows_and_weights_from_memory_are_not_cut() {
        assert_eq!(parts(2, CACHED, &[100; 16]), [0..8, 8..16]);
        assert_eq!(parts(4, CACHED, &[100; 32]), [0..8, 8..16, 16..24, 24..32]);
        assert_eq!(parts(2, CACHED, &[100; 15]), whole(15));
        assert_eq!(parts(2, CACHED + 1, &[100; 16]), whole(16));
        assert_eq!(parts(1, CACHED, &[100; 64]), whole(64));
    }

    /// Equal rows would leave the thread of the long context twice the work of the other.
    #[test]
    fn a_long_context_gets_fewer_rows() {
        let keys = [[1000; 16], [10; 16]].concat();
        assert_eq!(parts(2, CACHED, &keys), [0..10, 10..32]);
        let other: Vec<usize> = keys.into_iter().rev().collect();
        assert_eq!(parts(2, CACHED, &other), [0..22, 22..32]);
        let ascending: Vec<usize> = (0..512).collect();
        let cut = parts(2, CACHED, &ascending)[0].end;
        assert!((257..=320).contains(&cut), "{cut}");
    }

    /// One row that costs as much as all others, and one stream whose few rows do: all threads take their heads.
    #[test]
    fn rows_without_equal_parts_are_not_cut() {
        for dear in [1, 3] {
            let keys = [vec![1_000_000; dear], vec![10; 32 - dear]].concat();
            assert_eq!(parts(2, CACHED, &keys), whole(32), "{dear}");
            assert_eq!(parts(4, CACHED, &keys), whole(32), "{dear}");
        }
    }

    #[test]
    fn a_task_of_the_pool_has_no_other_threads() {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap()).unwrap();
        pool.for_each(vec![(), ()], |()| {
            assert_eq!(row_parts(&pool, 0, 64, [9.0; 64].into_iter()), whole(64));
        });
    }
}
