//! One pass over a row: its maximum, and the refusal of rows that have none.

/// A logit as it comes from the model (f32) or after processing (f64).
pub(crate) trait Logit: Copy + PartialOrd + Into<f64> {
    const INFINITY: Self;
    const NEG_INFINITY: Self;
}

impl Logit for f32 {
    const INFINITY: Self = f32::INFINITY;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
}

impl Logit for f64 {
    const INFINITY: Self = f64::INFINITY;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
}

/// The largest entry of a row, ties to the lower id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Peak {
    pub(crate) id: u32,
    pub(crate) value: f64,
}

/// Independent running maxima, so that the compiler can use vector registers.
const LANES: usize = 16;
/// Entries per maximum; the winner's block is searched once more for the id.
const BLOCK: usize = 1024;

/// The peak, or `None` if an entry is NaN or +inf, or none is finite. Rows have at most 2^32 entries.
pub(crate) fn peak<T: Logit>(row: &[T]) -> Option<Peak> {
    let (mut best, mut best_block) = (T::NEG_INFINITY, 0);
    for (i, block) in row.chunks(BLOCK).enumerate() {
        let max = block_max(block)?;
        if max > best {
            (best, best_block) = (max, i);
        }
    }
    let start = best_block * BLOCK;
    let offset = row[start..].iter().position(|&x| x == best && x > T::NEG_INFINITY)?;
    Some(Peak { id: (start + offset) as u32, value: best.into() })
}

/// The maximum, or `None` if an entry is NaN or +inf. A maximum alone would drop NaN, so both are watched.
fn block_max<T: Logit>(block: &[T]) -> Option<T> {
    let mut max = [T::NEG_INFINITY; LANES];
    let mut bad = [T::NEG_INFINITY; LANES];
    // Groups of a length that the compiler knows, and no branch: it takes several entries at once.
    let (groups, rest) = block.as_chunks::<LANES>();
    let mut last = [T::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    groups.iter().chain([&last]).for_each(|group| {
        for i in 0..LANES {
            max[i] = if group[i] > max[i] { group[i] } else { max[i] };
            bad[i] = if group[i] < T::INFINITY { bad[i] } else { T::INFINITY };
        }
    });
    if bad.contains(&T::INFINITY) {
        return None;
    }
    Some(max.into_iter().fold(T::NEG_INFINITY, |a, x| if x > a { x } else { a }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_max_drops_nan() {
        for len in [1, 15, 16, 17, 1023, 1024, 1025, 3000] {
            let row: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
            for at in [0, len / 2, len - 1] {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    let mut row = row.clone();
                    row[at] = bad;
                    assert_eq!(peak(&row), None, "{bad} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        for (a, b) in [(0, 1), (15, 16), (3, 2000), (1023, 1024), (1024, 2047)] {
            let mut row = vec![-1.0_f64; 2050];
            (row[a], row[b]) = (2.5, 2.5);
            assert_eq!(peak(&row), Some(Peak { id: a as u32, value: 2.5 }));
        }
    }

    #[test]
    fn no_finite_entry_is_no_peak() {
        assert_eq!(peak::<f32>(&[]), None);
        assert_eq!(peak(&[f32::NEG_INFINITY; 1030]), None);
        assert_eq!(peak(&[f64::NEG_INFINITY, f64::MIN]), Some(Peak { id: 1, value: f64::MIN }));
    }
}
