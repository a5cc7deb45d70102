//! The law of the draws: equal to the plainly written specification, and chi-square tests at 10^5 draws.

mod common;

use common::{Expected, chi_square, specification};
use kd_sample::{History, SampleError, Sampler, SamplingParams};
use proptest::prelude::*;

const DRAWS: u64 = 100_000;

/// Eight logits with a tie, a close pair and an entry that is nearly impossible.
const ROW: [f32; 8] = [1.2, -0.4, 0.7, 0.7, -1.5, 2.0, -6.0, 1.9];

fn sampled(temperature: f64, seed: u64) -> SamplingParams {
    SamplingParams { temperature, seed, ..SamplingParams::default() }
}

/// ddtree.md section 5, row 13: draws whose law differs from the target's at T > 0.
#[test]
fn fault_sampled_law_differs_from_target() {
    let history = History::new(&[]);
    let mut sampler = Sampler::new();
    for temperature in [0.3, 1.0, 1.5] {
        for (top_k, top_p) in [(0, 1.0), (5, 1.0), (0, 0.9), (6, 0.8)] {
            let params = SamplingParams { top_k, top_p, ..sampled(temperature, 11) };
            let want = specification(&ROW, &[], &[], &params, 0, 0).unwrap();
            let mut probabilities = [0.0; ROW.len()];
            want.kept.iter().for_each(|&(id, p)| probabilities[id as usize] = p);
            let mut counts = [0_u64; ROW.len()];
            for position in 0..DRAWS {
                counts[sampler.choose(&ROW, &history, &params, position, 0).unwrap().token as usize] += 1;
            }
            for (id, (&count, &p)) in counts.iter().zip(&probabilities).enumerate() {
                assert!(count == 0 || p > 0.0, "token {id} was cut but drawn {count} times");
            }
            // Mean df, deviation sqrt(2 df): about seven deviations, with room for the skew of few degrees.
            let df = want.kept.len() as f64 - 1.0;
            let chi = chi_square(&counts, &probabilities);
            assert!(
                chi <= df + 6.0 * (2.0 * df).sqrt() + 12.0,
                "T {temperature} k {top_k} p {top_p}: chi-square {chi}"
            );
        }
    }
}

/// Draws of neighbouring positions, of choices and of seeds are independent: the pairs have the product law.
#[test]
fn neighbouring_draws_are_independent() {
    let history = History::new(&[]);
    let mut sampler = Sampler::new();
    let mut draw = |seed, position, choice| {
        let token = sampler.choose(&ROW, &history, &sampled(1.0, seed), position, choice).unwrap().token;
        token as usize
    };
    let single = specification(&ROW, &[], &[], &sampled(1.0, 0), 0, 0).unwrap().kept;
    let product: Vec<f64> = single.iter().flat_map(|a| single.iter().map(move |b| a.1 * b.1)).collect();
    let mut counts = [[0_u64; 64]; 3];
    for i in 0..DRAWS {
        let here = draw(5, 2 * i, 0);
        for (count, other) in
            counts.iter_mut().zip([draw(5, 2 * i + 1, 0), draw(5, 2 * i, 1), draw(6, 2 * i, 0)])
        {
            count[8 * here + other] += 1;
        }
    }
    for (count, what) in counts.iter().zip(["positions", "choices", "seeds"]) {
        let chi = chi_square(count, &product);
        assert!(chi < 63.0 + 6.0 * 126.0_f64.sqrt() + 12.0, "{what}: chi-square {chi}");
    }
}

/// Rows with ties, signed zeros and impossible entries; some with outliers, which leave little to draw from.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let near = prop_oneof![
        8 => -4.0f32..4.0,
        2 => (-3i8..4).prop_map(f32::from),
        1 => Just(-0.0f32),
        1 => Just(f32::NEG_INFINITY),
    ];
    let far = prop_oneof![3 => -1e4f32..1e4, 1 => Just(f32::NEG_INFINITY)];
    prop_oneof![5 => prop::collection::vec(near, 1..700), 1 => prop::collection::vec(far, 1..700)]
}

fn off_or<T: Clone + std::fmt::Debug + 'static>(
    off: T,
    on: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![Just(off), on].boxed()
}

/// Parameters for a row of `vocab` entries.
fn params(vocab: usize) -> impl Strategy<Value = SamplingParams> {
    let ids = move |n: usize| prop::collection::vec(0..vocab as u32, 0..n);
    let cuts = (off_or(0, 1u32..40), off_or(1.0, 0.0f64..1.0), off_or(0.0, 1e-4f64..1.0));
    let penalties = (off_or(1.0, 0.5f64..2.0), off_or(0.0, -2.0f64..2.0), off_or(0.0, -2.0f64..2.0));
    let bias = prop::collection::vec((0..vocab as u32, -20.0f64..20.0), 0..6);
    let allowed = prop_oneof![3 => Just(None), 1 => ids(60).prop_map(Some)];
    let temperature = prop_oneof![1 => Just(0.0), 5 => 0.05f64..4.0];
    let masks = (ids(5), allowed, 0usize..6, ids(4));
    (temperature, any::<u64>(), cuts, penalties, bias, masks).prop_map(
        |(
            temperature,
            seed,
            (top_k, top_p, min_p),
            (r, p, f),
            logit_bias,
            (forbidden_ids, allowed_ids, n, stops),
        )| {
            SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: r,
                presence_penalty: p,
                frequency_penalty: f,
                logit_bias,
                forbidden_ids,
                allowed_ids,
                min_tokens: n,
                stop_ids: stops,
                seed,
                logprobs: None,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The shortcuts (selection, pruned noise, sparse processing) never change a token or a kept set.
    #[test]
    fn equals_the_plain_specification(
        (row, params, prompt, generated) in rows().prop_flat_map(|row| {
            let n = row.len();
            let ids = move || prop::collection::vec(0..n as u32, 0..12);
            (Just(row), params(n), ids(), ids())
        }),
        position in any::<u64>(),
        choice in any::<u32>(),
    ) {
        let mut history = History::new(&prompt);
        generated.iter().for_each(|&id| history.push(id));
        let mut sampler = Sampler::new();
        let token = sampler.choose(&row, &history, &params, position, choice).map(|c| c.token);
        let kept = sampler.distribution(&row, &history, &params);
        match specification(&row, &prompt, &generated, &params, position, choice) {
            None => {
                prop_assert_eq!(token, Err(SampleError::NoFiniteMaximum));
                prop_assert_eq!(kept, Err(SampleError::NoFiniteMaximum));
            }
            Some(Expected { token: want, kept: want_kept }) => {
                prop_assert_eq!(token, Ok(want));
                let kept = kept.unwrap();
                prop_assert_eq!(kept.len(), want_kept.len());
                for (got, want) in kept.iter().zip(&want_kept) {
                    prop_assert_eq!(got.0, want.0);
                    prop_assert!((got.1 - want.1).abs() < 1e-12);
                }
            }
        }
    }
}

/// The cumulative probability reaches top_p exactly, in short and in long rows.
#[test]
fn exact_top_p_boundary_of_equal_logits() {
    for vocab in [4, 64, 128, 256, 4096] {
        for (top_p, part) in [(0.25, 4), (0.5, 2)] {
            let params = SamplingParams { top_p, ..sampled(1.0, 0) };
            let kept = Sampler::new().distribution(&vec![0.5; vocab], &History::new(&[]), &params).unwrap();
            let ids: Vec<u32> = kept.into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids, (0..(vocab / part) as u32).collect::<Vec<_>>(), "{top_p} of {vocab}");
        }
    }
}

/// Logits so large that rounding swallows the noise: all sums are equal, and the lower id wins.
#[test]
fn equal_sums_go_to_the_lower_id() {
    for top_k in [0, 10] {
        for position in 0..20 {
            let params = SamplingParams { top_k, ..sampled(1.0, 4) };
            let choice = Sampler::new().choose(&[1e30; 50], &History::new(&[]), &params, position, 0);
            assert_eq!(choice.unwrap().token, 0);
        }
    }
}
