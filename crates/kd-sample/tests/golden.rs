//! The golden cases: Philox, noise, every parameter, refusals and counted draws.

use std::path::Path;

use kd_sample::noise::Noise;
use kd_sample::philox::Philox4x32_10;
use kd_sample::{History, Sampler, SamplingParams};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/sampling");

/// The relative form lets values around 1 differ by 1e-9, far below what a float32 result would.
const TOLERANCE: f64 = 1e-9;

#[derive(Deserialize)]
struct Golden {
    philox: Vec<PhiloxCase>,
    noise: Vec<NoiseCase>,
    cases: Vec<Case<CaseExpect>>,
    statistics: Vec<Case<StatisticsExpect>>,
}

#[derive(Deserialize)]
struct PhiloxCase {
    counter: [u32; 4],
    key: [u32; 2],
    expect: [u32; 4],
}

#[derive(Deserialize)]
struct NoiseCase {
    seed: u64,
    position: u64,
    choice: u32,
    n: u32,
    expect: NoiseExpect,
}

#[derive(Deserialize)]
struct NoiseExpect {
    x: Vec<u32>,
    gumbel: Vec<f64>,
}

#[derive(Deserialize)]
struct Case<E> {
    name: String,
    vocab: usize,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    choice: u32,
    #[serde(alias = "first_position")]
    position: u64,
    #[serde(default)]
    draws: u64,
    params: Value,
    expect: E,
}

#[derive(Deserialize)]
struct CaseExpect {
    error: Option<String>,
    token: Option<u32>,
    kept: Option<Vec<u32>>,
    logprob: Option<f64>,
    top_logprobs: Option<Vec<(u32, f64)>>,
}

#[derive(Deserialize)]
struct StatisticsExpect {
    kept: Vec<u32>,
    probabilities: Vec<f64>,
    counts: Vec<u64>,
    #[serde(rename = "draws_closer_than_1e-5")]
    close: u64,
}

impl<E> Case<E> {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.param("temperature"),
            top_k: self.param("top_k"),
            top_p: self.param("top_p"),
            min_p: self.param("min_p"),
            repetition_penalty: self.param("repetition_penalty"),
            presence_penalty: self.param("presence_penalty"),
            frequency_penalty: self.param("frequency_penalty"),
            logit_bias: self.param("logit_bias"),
            forbidden_ids: self.param("forbidden_ids"),
            allowed_ids: self.param("allowed_ids"),
            min_tokens: self.param("min_tokens"),
            stop_ids: self.param("stop_ids"),
            seed: self.param("seed"),
            logprobs: Some(5),
        }
    }

    fn param<T: DeserializeOwned>(&self, name: &str) -> T {
        let value = self.params.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.name));
        T::deserialize(value).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name))
    }

    fn history(&self) -> History {
        let mut history = History::new(&self.prompt_ids);
        self.output_ids.iter().for_each(|&id| history.push(id));
        history
    }

    fn row(&self, file: &SafeTensors) -> Vec<f32> {
        let bytes = file.tensor(&self.name).unwrap().data();
        let row: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(row.len(), self.vocab, "{}", self.name);
        row
    }
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(Path::new(DIR).join("sampling.json")).unwrap()).unwrap()
}

fn logits() -> Vec<u8> {
    std::fs::read(Path::new(DIR).join("logits.safetensors")).unwrap()
}

fn assert_near(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= TOLERANCE * want.abs().max(1.0), "{what}: {got} instead of {want}");
}

#[test]
fn philox_known_answers() {
    let cases = golden().philox;
    assert_eq!(cases.len(), 3);
    for c in cases {
        assert_eq!(Philox4x32_10::new(c.key).block(c.counter), c.expect);
    }
}

#[test]
fn noise() {
    let cases = golden().noise;
    assert!(!cases.is_empty());
    for c in cases {
        let noise = Noise::new(c.seed, c.choice, c.position);
        assert_eq!((0..c.n).map(|id| noise.word(id)).collect::<Vec<_>>(), c.expect.x);
        for (id, want) in (0..c.n).zip(c.expect.gumbel) {
            assert_near(noise.gumbel(id), want, &format!("noise of id {id}"));
        }
    }
}

#[test]
fn cases() {
    let (golden, bytes) = (golden(), logits());
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(golden.cases.len() > 180);
    let mut sampler = Sampler::new();
    for c in golden.cases {
        let (row, history, params, name) = (c.row(&file), c.history(), c.params(), &c.name);
        let got = sampler.choose(&row, &history, &params, c.position, c.choice);
        let kept = sampler.distribution(&row, &history, &params);
        if let Some(error) = c.expect.error {
            assert_eq!(got.unwrap_err().to_string(), error, "{name}");
            assert_eq!(kept.unwrap_err().to_string(), error, "{name}");
            continue;
        }
        let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(Some(got.token), c.expect.token, "{name}");
        let kept = kept.unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(Some(kept), c.expect.kept, "{name}");
        assert_near(got.logprob.unwrap(), c.expect.logprob.unwrap(), name);
        let want = c.expect.top_logprobs.unwrap();
        assert_eq!(got.top_logprobs.len(), want.len(), "{name}");
        for (got, want) in got.top_logprobs.iter().zip(want) {
            assert_eq!(got.0, want.0, "{name}");
            assert_near(got.1, want.1, name);
        }
    }
}

#[test]
fn statistics() {
    let (golden, bytes) = (golden(), logits());
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(!golden.statistics.is_empty());
    let mut sampler = Sampler::new();
    for c in golden.statistics {
        let (row, history, params, name) = (c.row(&file), c.history(), c.params(), &c.name);
        let kept = sampler.distribution(&row, &history, &params).unwrap();
        assert_eq!(kept.iter().map(|k| k.0).collect::<Vec<_>>(), c.expect.kept, "{name}");
        for (id, p) in kept {
            assert_near(p, c.expect.probabilities[id as usize], name);
        }
        let mut counts = vec![0; c.vocab];
        for position in c.position..c.position + c.draws {
            let choice = sampler.choose(&row, &history, &params, position, c.choice).unwrap();
            counts[choice.token as usize] += 1;
        }
        for (got, want) in counts.iter().zip(&c.expect.counts) {
            assert!(
                want.abs_diff(*got) <= c.expect.close,
                "{name}: {counts:?} instead of {:?}",
                c.expect.counts
            );
        }
    }
}
