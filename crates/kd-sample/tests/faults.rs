//! Hostile rows and parameters, and what draws must not depend on.

use kd_sample::noise::{MAX_GUMBEL, Noise};
use kd_sample::{History, ParamError, SampleError, Sampler, SamplingParams};
use proptest::prelude::*;

fn sampled() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() }
}

/// Parameters that take every path through the sampler.
fn paths() -> Vec<SamplingParams> {
    vec![
        SamplingParams::default(),
        SamplingParams { logprobs: Some(5), ..SamplingParams::default() },
        SamplingParams { repetition_penalty: 1.3, ..SamplingParams::default() },
        sampled(),
        SamplingParams { logit_bias: vec![(0, 5.0)], ..sampled() },
        SamplingParams { top_k: 3, ..sampled() },
        SamplingParams { top_p: 0.9, min_p: 0.01, presence_penalty: 0.5, ..sampled() },
    ]
}

#[test]
fn fault_nan_becomes_a_token() {
    let history = History::new(&[1]);
    let mut sampler = Sampler::new();
    for params in paths() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in [0, 1, 2998, 2999] {
                let mut row: Vec<f32> = (0..3000).map(|i| (i % 13) as f32 * 0.1).collect();
                row[at] = bad;
                let got = sampler.choose(&row, &history, &params, 0, 0);
                assert_eq!(got, Err(SampleError::NoFiniteMaximum), "{bad} at {at}, {params:?}");
            }
            let got = sampler.choose(&[bad; 40], &history, &params, 0, 0);
            assert_eq!(got, Err(SampleError::NoFiniteMaximum));
        }
        let got = sampler.choose(&[f32::NEG_INFINITY; 40], &history, &params, 0, 0);
        assert_eq!(got, Err(SampleError::NoFiniteMaximum));
    }
    assert_eq!(sampler.choose(&[], &history, &sampled(), 0, 0), Err(SampleError::NoFiniteMaximum));
}

#[test]
fn refusal_does_not_depend_on_masks() {
    let params = SamplingParams { forbidden_ids: vec![2], ..sampled() };
    let got = Sampler::new().choose(&[0.0, 1.0, f32::NAN], &History::new(&[]), &params, 0, 0);
    assert_eq!(got, Err(SampleError::NoFiniteMaximum));
}

#[test]
fn minus_infinity_is_never_drawn() {
    let mut row = [f32::NEG_INFINITY; 50];
    (row[7], row[31]) = (-3.0, -3.5);
    let mut sampler = Sampler::new();
    for position in 0..2000 {
        let token = sampler.choose(&row, &History::new(&[]), &sampled(), position, 0).unwrap().token;
        assert!(token == 7 || token == 31, "{token}");
    }
}

/// The largest uniform rounds to 1 in float32, and its noise to infinity.
#[test]
fn fault_largest_uniform_is_infinite_noise() {
    let noise = Noise::new(34_359_738_385, 1, 104_448);
    let largest = (0..64).max_by(|&a, &b| noise.word(a).cmp(&noise.word(b))).unwrap();
    assert_eq!(noise.word(largest) >> 8, 0xff_ffff);
    assert!((MAX_GUMBEL - 1e-6..MAX_GUMBEL).contains(&noise.gumbel(largest)));
}

#[test]
fn extreme_rows_and_parameters_stay_finite() {
    let row = [f32::MAX, f32::MIN, 0.0, -0.0, f32::MIN_POSITIVE];
    let extreme = SamplingParams {
        temperature: 1e-100,
        top_p: 0.5,
        min_p: 1e-300,
        repetition_penalty: 1e-9,
        presence_penalty: -1e9,
        frequency_penalty: -1e9,
        logit_bias: vec![(0, 1e9), (0, 1e9)],
        ..sampled()
    };
    let mut history = History::new(&[0, 1]);
    (0..5).for_each(|id| history.push(id));
    assert_eq!(Sampler::new().choose(&row, &history, &extreme, u64::MAX, u32::MAX).unwrap().token, 0);
    let hot = SamplingParams { temperature: f64::MAX, ..sampled() };
    let kept = Sampler::new().distribution(&row, &history, &hot).unwrap();
    assert!(kept.iter().all(|k| (k.1 - 0.2).abs() < 1e-12), "{kept:?}");
}

#[test]
fn parameters_out_of_their_limits_are_named() {
    let bad = |params: SamplingParams, want: &str| {
        assert_eq!(params.validate(10).unwrap_err().to_string(), want);
        let got = Sampler::new().choose(&[0.0; 10], &History::new(&[]), &params, 0, 0);
        assert_eq!(got.unwrap_err().to_string(), want);
    };
    let d = SamplingParams::default;
    for t in [f64::NAN, f64::INFINITY, -0.1, 1e-101] {
        bad(
            SamplingParams { temperature: t, ..d() },
            &format!("temperature is {t}, but must be 0, or finite and at least 1e-100"),
        );
    }
    bad(SamplingParams { top_p: -0.5, ..d() }, "top_p is -0.5, but must be finite and at least 0");
    bad(SamplingParams { top_p: f64::NAN, ..d() }, "top_p is NaN, but must be finite and at least 0");
    bad(SamplingParams { min_p: 1.5, ..d() }, "min_p is 1.5, but must be in 0..=1");
    bad(SamplingParams { min_p: f64::NAN, ..d() }, "min_p is NaN, but must be in 0..=1");
    for r in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        bad(
            SamplingParams { repetition_penalty: r, ..d() },
            &format!("repetition_penalty is {r}, but must be in 1e-9..=1e9"),
        );
    }
    bad(
        SamplingParams { presence_penalty: f64::NAN, ..d() },
        "presence_penalty is NaN, but must be in -1e9..=1e9",
    );
    bad(
        SamplingParams { frequency_penalty: 2e9, ..d() },
        "frequency_penalty is 2000000000, but must be in -1e9..=1e9",
    );
    let bias = |id, value| SamplingParams { logit_bias: vec![(0, 1.0), (id, value)], ..d() };
    bad(bias(3, f64::NEG_INFINITY), "logit_bias of token 3 is -inf, but must be in -1e9..=1e9");
    bad(bias(10, 0.0), "logit_bias names token 10, but must name ids below the vocabulary size 10");
    bad(SamplingParams { logprobs: Some(21), ..d() }, "logprobs is 21, but must be at most 20");
    let id = |field| ParamError::Id { field, id: 11, vocab: 10 }.to_string();
    bad(SamplingParams { forbidden_ids: vec![9, 11], ..d() }, &id("forbidden_ids"));
    bad(SamplingParams { allowed_ids: Some(vec![11]), ..d() }, &id("allowed_ids"));
    bad(SamplingParams { stop_ids: vec![11], ..d() }, &id("stop_ids"));
    d().validate(1).unwrap();
}

#[test]
fn history_outside_the_row_is_an_error_only_for_penalties() {
    let history = History::new(&[12]);
    let mut sampler = Sampler::new();
    let penalised = SamplingParams { repetition_penalty: 1.1, ..SamplingParams::default() };
    let got = sampler.choose(&[0.0; 10], &history, &penalised, 0, 0);
    assert_eq!(got, Err(SampleError::HistoryId { id: 12, vocab: 10 }));
    assert!(sampler.choose(&[0.0; 10], &history, &SamplingParams::default(), 0, 0).is_ok());
}

proptest! {
    /// A token depends on its own inputs: not on the order of a batch, nor on what the sampler did before.
    #[test]
    fn order_of_a_batch_does_not_matter(
        rows in prop::collection::vec(prop::collection::vec(-5.0f32..5.0, 30..60), 2..8),
        order in any::<prop::sample::Index>(),
    ) {
        let history = History::new(&[1, 2, 3]);
        let jobs: Vec<_> = rows.iter().zip(0..).flat_map(|(row, i)| paths().into_iter().map(move |p| (row, i, p))).collect();
        let run = |sampler: &mut Sampler, (row, position, params): &(&Vec<f32>, u64, SamplingParams)| {
            sampler.choose(row, &history, params, *position, 2).unwrap()
        };
        let alone: Vec<_> = jobs.iter().map(|job| run(&mut Sampler::new(), job)).collect();
        let mut sampler = Sampler::new();
        let start = order.index(jobs.len());
        for i in (0..jobs.len()).map(|i| (start + i * (jobs.len() - 1)) % jobs.len()) {
            prop_assert_eq!(&run(&mut sampler, &jobs[i]), &alone[i]);
        }
    }

    /// Walking a branch and back leaves the history as it was; on the branch it equals the one grown plainly.
    #[test]
    fn history_push_and_pop_round_trip(
        prompt in prop::collection::vec(0u32..20, 0..30),
        committed in prop::collection::vec(0u32..20, 0..30),
        branches in prop::collection::vec(prop::collection::vec(0u32..25, 0..16), 0..5),
    ) {
        let grown = |tokens: &[u32]| {
            let mut h = History::new(&prompt);
            tokens.iter().for_each(|&id| h.push(id));
            h
        };
        let mut history = grown(&committed);
        for branch in &branches {
            branch.iter().for_each(|&id| history.push(id));
            let all = [&committed[..], branch].concat();
            prop_assert_eq!(&history, &grown(&all));
            for seen in history.seen() {
                prop_assert_eq!(seen.in_prompt, prompt.contains(&seen.id));
                prop_assert_eq!(seen.generated as usize, all.iter().filter(|&&id| id == seen.id).count());
            }
            history.truncate(committed.len() + branch.len() / 2);
            for id in branch[..branch.len() / 2].iter().rev() {
                prop_assert_eq!(history.pop(), Some(*id));
            }
            prop_assert_eq!(&history, &grown(&committed));
        }
        prop_assert_eq!(history.generated(), &committed[..]);
        history.truncate(0);
        prop_assert_eq!(history.pop(), None);
        prop_assert_eq!(history, History::new(&prompt));
    }
}
