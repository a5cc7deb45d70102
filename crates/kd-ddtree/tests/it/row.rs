//! Top-K rows: order, normaliser, and what is not a number.

use kd_ddtree::{Child, DraftRow, RowError, RowShard, draft_rows};
use proptest::prelude::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// Sorts everything, in f64.
fn by_sorting(logits: &[f32], k: usize) -> (Vec<u32>, Vec<f64>) {
    let mut all: Vec<(u32, f64)> =
        (0u32..).zip(logits.iter().map(|&x| f64::from(x))).filter(|(_, x)| x.is_finite()).collect();
    let max = all.iter().map(|(_, x)| *x).fold(f64::MIN, f64::max);
    let log_sum = all.iter().map(|(_, x)| (x - max).exp()).sum::<f64>().ln() + max;
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.into_iter().take(k).map(|(token, x)| (token, x - log_sum)).unzip()
}

fn tokens(row: &DraftRow) -> Vec<u32> {
    row.children().iter().map(|c| c.token).collect()
}

fn check(row: &DraftRow, logits: &[f32], k: usize) {
    let (expected, logprobs) = by_sorting(logits, k);
    assert_eq!(tokens(row), expected);
    for (got, want) in row.children().iter().map(|c| c.logprob).zip(logprobs) {
        assert!((f64::from(got) - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
    }
}

proptest! {
    #[test]
    fn top_k_is_the_head_of_the_sorted_row(
        logits in proptest::collection::vec(prop_oneof![(-9i8..9).prop_map(f32::from), -50f32..50.0], 1..900),
        k in 0usize..130,
    ) {
        let row = DraftRow::from_logits(&logits, k).expect("finite");
        check(&row, &logits, k);
    }

    /// Fault 26: a vocabulary shard's local index is not a token id; 1, 2 and 8 ranks must give one row.
    #[test]
    fn shards_of_the_vocabulary_merge_to_the_whole_row(
        logits in proptest::collection::vec((-40i8..40).prop_map(|x| f32::from(x) / 4.0), 8..300),
        k in 1usize..70,
        ranks in prop_oneof![Just(1usize), Just(2), Just(8)],
    ) {
        let part = logits.len().div_ceil(ranks);
        let mut shards: Vec<RowShard> = logits
            .chunks(part)
            .enumerate()
            .map(|(rank, chunk)| RowShard::scan(chunk, (rank * part) as u32, k))
            .collect();
        shards.reverse();
        let merged = DraftRow::merge(&shards, k).expect("finite");
        check(&merged, &logits, k);
    }
}

#[test]
fn rising_and_falling_rows_of_full_vocabulary_size() {
    let rising: Vec<f32> = (0..163_840).map(|x| x as f32 * 1e-4).collect();
    let falling: Vec<f32> = rising.iter().rev().copied().collect();
    for logits in [rising, falling] {
        for k in [1, 64, 128] {
            check(&DraftRow::from_logits(&logits, k).expect("finite"), &logits, k);
        }
    }
}

#[test]
fn ties_go_to_the_lower_token_and_the_two_zeros_tie() {
    let row = DraftRow::from_logits(&[1.0, -0.0, 0.0, -0.0, 1.0], 5).expect("finite");
    assert_eq!(tokens(&row), [0, 4, 1, 2, 3]);
    let equal = vec![0.25f32; 1000];
    let row = DraftRow::from_logits(&equal, 64).expect("finite");
    assert_eq!(tokens(&row), (0..64).collect::<Vec<u32>>());
}

#[test]
fn nan_counts_as_impossible() {
    let row = DraftRow::from_logits(&[NAN, 2.0, -NAN, 1.0, -INF], 5).expect("finite maximum");
    check(&row, &[-INF, 2.0, -INF, 1.0, -INF], 5);
    assert_eq!(tokens(&row), [1, 3], "impossible tokens are no candidates");
}

#[test]
fn rows_without_a_finite_maximum_are_refused() {
    for logits in [&[NAN; 4][..], &[-INF; 4], &[0.0, INF, 1.0], &[NAN, INF], &[]] {
        assert_eq!(DraftRow::from_logits(logits, 4), None, "{logits:?}");
        assert_eq!(DraftRow::from_logits(logits, 0), None, "{logits:?}");
    }
}

#[test]
fn a_refused_row_cuts_the_block() {
    for bad in [NAN, -INF, INF] {
        let block = [0.0, 1.0, 2.0, 0.5, bad, bad, 3.0, 4.0];
        let rows = draft_rows(&block, 2, 2);
        assert_eq!(rows.len(), 2, "rows after one of {bad} mean nothing");
    }
    assert!(draft_rows(&[1.0], 0, 4).is_empty());
}

#[test]
fn a_saturated_row_has_probability_one_exactly() {
    let row = DraftRow::from_logits(&[0.0, 3.0e38, -3.0e38], 3).expect("finite");
    let child = |token, logprob| Child { token, logprob };
    assert_eq!(row.children(), [child(1, 0.0), child(0, -3.0e38)]);
}

#[test]
fn lists_that_are_no_row_are_refused_by_name() {
    let row = |logprobs: &[f32]| DraftRow::from_top_k(&[0, 1, 2], logprobs);
    assert_eq!(row(&[-1.0]), Err(RowError::Length { tokens: 3, logprobs: 1 }));
    assert_eq!(row(&[-1.0, -2.0, -INF]), Err(RowError::NotFinite { rank: 2, value: -INF }));
    assert_eq!(
        row(&[-1.0, -3.0, -2.0]),
        Err(RowError::NotDescending { rank: 2, value: -2.0, previous: -3.0 })
    );
    assert!(matches!(row(&[-1.0, NAN, -2.0]), Err(RowError::NotFinite { rank: 1, .. })));
    assert!(row(&[-1.0, -1.0, -2.0]).is_ok());
}
