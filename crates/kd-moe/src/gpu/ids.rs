//! Choices of experts that come from the host instead of a router.

use kd_kernels::selftest::upload;
use kd_kernels::{CudaSlice, Stream};

use super::GpuError;

/// Checks that the `top_k` choices of each row differ, as those of a router do: the form for few rows takes them as a set. Negative
/// ones, of padded rows, may repeat.
///
/// # Errors
/// [`GpuError::Repeated`] for the first that does not, [`GpuError::Limit`] for a last row that is not whole.
pub fn check_ids(ids: &[i32], top_k: usize) -> Result<(), GpuError> {
    let rest = ids.len().checked_rem(top_k).unwrap_or(ids.len());
    if rest > 0 {
        return Err(GpuError::Limit {
            what: "the number of choices beyond whole rows",
            found: rest,
            limit: 0,
        });
    }
    for (row, chosen) in ids.chunks_exact(top_k.max(1)).enumerate() {
        let repeated = |(i, id): &(usize, &i32)| **id >= 0 && chosen[..*i].contains(id);
        if let Some((_, &expert)) = chosen.iter().enumerate().find(repeated) {
            return Err(GpuError::Repeated { row, expert });
        }
    }
    Ok(())
}

/// `ids`, `[rows, top_k]`, on the device, for [`Batch::ids`](super::Batch).
///
/// # Errors
/// As [`check_ids`], or a failed allocation.
pub fn upload_ids(stream: &Stream, ids: &[i32], top_k: usize) -> Result<CudaSlice<i32>, GpuError> {
    check_ids(ids, top_k)?;
    Ok(upload(stream, ids)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_row_that_repeats_an_expert_is_refused_by_name() {
        let error = check_ids(&[0, 1, 2, 7, 3, 7], 3).expect_err("7 twice").to_string();
        assert!(error.contains("row 1") && error.contains("expert 7"), "{error}");
        assert!(check_ids(&[5, 1, 1, 5], 2).is_ok(), "other rows may choose the same");
        assert!(check_ids(&[-1, -1, -1], 3).is_ok(), "a padded row");
        assert!(check_ids(&[1, 2, 3], 2).is_err() && check_ids(&[1], 0).is_err(), "no whole rows");
    }

    proptest! {
        #[test]
        fn it_is_refused_just_where_a_set_would_be_smaller(ids in prop::collection::vec(-1i32..6, 12)) {
            let whole = ids.chunks(4).all(|row| {
                let real: Vec<i32> = row.iter().copied().filter(|id| *id >= 0).collect();
                real.iter().collect::<std::collections::BTreeSet<_>>().len() == real.len()
            });
            prop_assert_eq!(check_ids(&ids, 4).is_ok(), whole);
        }
    }
}
