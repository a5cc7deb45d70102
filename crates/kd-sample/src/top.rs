//! The k best entries of a row without sorting it.

use std::cmp::Ordering;

use crate::scan::Logit;

/// An entry that is still in the running: its score (a logit, scaled or not) and its token id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) score: f64,
    pub(crate) id: u32,
}

/// An entry as one integer, larger for what comes first in the order of steps 6 and 7: by logit, then by lower id. 0 for
/// what is no token (NaN and -inf), so that a cut of 0 keeps every token.
///
/// min_p, top_k and top_p each keep a prefix of that order, so the key of the last entry kept says all that they decided.
pub fn cut_key(logit: f32, id: u32) -> u64 {
    if logit.is_nan() || logit == f32::NEG_INFINITY {
        return 0;
    }
    let bits = (logit + 0.0).to_bits(); // -0 becomes +0
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

/// Descending score, equal scores (also 0 and -0) by ascending id. Scores are never NaN.
pub(crate) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Overwrites `out` with the `k` best of the finite entries that are at least `floor`, in no particular order.
///
/// A buffer of twice the size is cut back to k whenever it is full. Each cut raises the entry price, so few entries
/// pay it; since ids ascend, a later entry that equals the k-th best is always the one to drop.
pub(crate) fn top_k<T: Logit>(row: &[T], k: usize, floor: f64, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    let full = k.saturating_mul(2).max(256);
    // Exclusive, so that -inf stays out.
    let mut price = floor.next_down();
    for (id, &x) in row.iter().enumerate() {
        let score: f64 = x.into();
        if score > price {
            out.push(Candidate { score, id: id as u32 });
            if out.len() == full {
                cut(out, k);
                price = out[k - 1].score;
            }
        }
    }
    if out.len() > k {
        cut(out, k);
    }
}

/// Keeps the k best and puts the worst of them last.
fn cut(out: &mut Vec<Candidate>, k: usize) {
    out.select_nth_unstable_by(k - 1, best_first);
    out.truncate(k);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_order_as_the_cuts_do() {
        let row = [f32::INFINITY, 2.0, 1e-40, 0.0, -1e-40, -2.0, f32::MIN];
        for (i, a) in row.iter().enumerate() {
            assert!(row[i + 1..].iter().all(|b| cut_key(*a, 9) > cut_key(*b, 0)), "{a}");
            assert!(cut_key(*a, 0) > cut_key(*a, 1) && cut_key(*a, u32::MAX) > 0, "{a}");
        }
        assert_eq!(cut_key(-0.0, 7), cut_key(0.0, 7));
        assert_eq!([cut_key(f32::NAN, 0), cut_key(f32::NEG_INFINITY, 0)], [0, 0]);
    }

    proptest! {
        #[test]
        fn equals_a_full_sort(
            row in prop::collection::vec(prop_oneof![4 => (-9i8..9).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY), 1 => Just(-0.0)], 0..900),
            k in 0usize..1000,
            floor in prop_oneof![Just(f64::NEG_INFINITY), (-9.0f64..9.0).prop_map(f64::round)],
        ) {
            let mut want: Vec<Candidate> = row.iter().enumerate()
                .map(|(id, &x)| Candidate { score: x.into(), id: id as u32 })
                .filter(|c| c.score >= floor && c.score.is_finite())
                .collect();
            want.sort_by(best_first);
            want.truncate(k);
            let mut got = vec![Candidate { score: 0.0, id: 7 }];
            top_k(&row, k, floor, &mut got);
            got.sort_by(best_first);
            prop_assert_eq!(got, want);
        }
    }
}
