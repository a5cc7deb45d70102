//! `kd golden sampling`: fills every `expect` of a file of sampling cases.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kd_sample::noise::Noise;
use kd_sample::philox::Philox4x32_10;
use kd_sample::{History, SampleError, Sampler, SamplingParams};
use kd_tensor::Storage;
use kd_tensor::safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json_file;

/// Entries of the row that a case reports log-probabilities of.
const TOP_LOGPROBS: u32 = 5;
/// Draws whose two best values are closer than this may fall the other way in another arithmetic.
const CLOSE: f64 = 1e-5;
/// Largest number of noise values or draws of one item; it bounds time and memory.
const MAX_COUNT: u64 = 100_000_000;

#[derive(Deserialize)]
struct PhiloxCase {
    counter: [u32; 4],
    key: [u32; 2],
}

#[derive(Deserialize)]
struct NoiseCase {
    seed: u64,
    position: u64,
    choice: u32,
    n: u32,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    vocab: usize,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    choice: u32,
    /// In `cases`.
    position: Option<u64>,
    /// In `statistics`.
    first_position: Option<u64>,
    draws: Option<u64>,
    params: Params,
}

#[derive(Deserialize)]
struct Params {
    temperature: f64,
    top_k: u32,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    logit_bias: Vec<(u32, f64)>,
    forbidden_ids: Vec<u32>,
    allowed_ids: Option<Vec<u32>>,
    min_tokens: usize,
    stop_ids: Vec<u32>,
    seed: u64,
}

/// Reads the case file `cases` and the logits file that it names (relative to it), and writes the same JSON to `out` with
/// every `expect` filled in.
///
/// Any of the sections `philox`, `noise`, `cases` and `statistics` may be missing.
///
/// # Errors
/// A file that cannot be read or written, or an item of another form; the error names the file, section and index. Rows
/// and parameters that the sampler refuses are no failure: their `expect` holds the error text.
pub(super) fn run(cases: &Path, out: &Path) -> Result<()> {
    let mut file: Value = json_file::read(cases)?;
    let logits = match file.get("logits") {
        None => None,
        Some(Value::String(name)) => Some(SafeTensors::open(beside(cases, name)?)?),
        Some(other) => bail!("{}: `logits` is {other}, but must be a file name", cases.display()),
    };
    let filled = fill(&mut file, "philox", philox)?
        + fill(&mut file, "noise", noise)?
        + fill(&mut file, "cases", |case| choose(&case, &row(logits.as_ref(), &case)?))?
        + fill(&mut file, "statistics", |case| count(&case, &row(logits.as_ref(), &case)?))?;
    ensure!(filled > 0, "{} holds no sampling cases", cases.display());
    json_file::write(out, &file)
}

/// The file `name` in the folder of `cases` or below it.
fn beside(cases: &Path, name: &str) -> Result<PathBuf> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        inside && !name.is_empty(),
        "{}: `logits` is {name:?}, but must be a file beside the case file",
        cases.display()
    );
    Ok(cases.with_file_name(name))
}

/// Sets the `expect` of every item of a section and returns how many there are.
fn fill<T: for<'a> Deserialize<'a>>(
    file: &mut Value,
    section: &str,
    mut expect: impl FnMut(T) -> Result<Value>,
) -> Result<usize> {
    let Some(items) = file.get_mut(section) else { return Ok(0) };
    let items = items.as_array_mut().with_context(|| format!("`{section}` is not a list"))?;
    for (i, item) in items.iter_mut().enumerate() {
        let place = || format!("{section}[{i}]");
        let value = expect(T::deserialize(&*item).with_context(place)?).with_context(place)?;
        item.as_object_mut().with_context(place)?.insert("expect".into(), value);
    }
    Ok(items.len())
}

fn philox(case: PhiloxCase) -> Result<Value> {
    Ok(json!(Philox4x32_10::new(case.key).block(case.counter)))
}

fn noise(case: NoiseCase) -> Result<Value> {
    ensure!(u64::from(case.n) <= MAX_COUNT, "n is {}, but must be at most {MAX_COUNT}", case.n);
    let noise = Noise::new(case.seed, case.choice, case.position);
    let x: Vec<u32> = (0..case.n).map(|id| noise.word(id)).collect();
    let gumbel: Vec<f64> = (0..case.n).map(|id| noise.gumbel(id)).collect();
    Ok(json!({ "x": x, "gumbel": gumbel }))
}

fn choose(case: &Case, row: &[f32]) -> Result<Value> {
    let position = case.position.with_context(|| format!("case {} has no `position`", case.name))?;
    let (history, params) = (history(case), params(case));
    let mut sampler = Sampler::new();
    let chosen = sampler
        .choose(row, &history, &params, position, case.choice)
        .and_then(|chosen| Ok((chosen, sampler.distribution(row, &history, &params)?)));
    Ok(match chosen {
        Err(error) => refusal(&error),
        Ok((chosen, kept)) => json!({
            "error": null,
            "token": chosen.token,
            "kept": kept.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
            "logprob": chosen.logprob,
            "top_logprobs": chosen.top_logprobs,
        }),
    })
}

fn count(case: &Case, row: &[f32]) -> Result<Value> {
    let positions = positions(case)?;
    let (history, params) = (history(case), SamplingParams { logprobs: None, ..params(case) });
    let mut sampler = Sampler::new();
    let kept = match sampler.distribution(row, &history, &params) {
        Err(error) => return Ok(refusal(&error)),
        Ok(kept) => kept,
    };
    let mut counts = vec![0_u64; row.len()];
    let mut close = 0;
    for position in positions.clone() {
        counts[sampler.choose(row, &history, &params, position, case.choice)?.token as usize] += 1;
        close += u64::from(margin(&kept, &Noise::new(params.seed, case.choice, position)) < CLOSE);
    }
    let mut probabilities = vec![0.0; row.len()];
    kept.iter().for_each(|&(id, p)| probabilities[id as usize] = p);
    let draws = (positions.end - positions.start) as f64;
    let term = |&(id, p): &(u32, f64)| (counts[id as usize] as f64 - draws * p).powi(2) / (draws * p);
    Ok(json!({
        "kept": kept.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
        "probabilities": probabilities,
        "counts": counts,
        "chi_square": kept.iter().filter(|k| k.1 > 0.0).map(term).sum::<f64>(),
        "degrees_of_freedom": kept.len() - 1,
        "draws_closer_than_1e-5": close,
    }))
}

fn positions(case: &Case) -> Result<Range<u64>> {
    let (Some(first), Some(draws)) = (case.first_position, case.draws) else {
        bail!("case {} needs `first_position` and `draws`", case.name);
    };
    ensure!(draws <= MAX_COUNT, "`draws` is {draws}, but must be at most {MAX_COUNT}");
    let end =
        first.checked_add(draws).with_context(|| format!("position {first} + {draws} exceeds 64 bits"))?;
    Ok(first..end)
}

/// How far the winner leads: the noise is added to log-probabilities, which differ from scaled logits by a constant.
fn margin(kept: &[(u32, f64)], noise: &Noise) -> f64 {
    let (mut first, mut second) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for &(id, p) in kept {
        let value = p.ln() + noise.gumbel(id);
        second = second.max(value.min(first));
        first = first.max(value);
    }
    if kept.len() < 2 { f64::INFINITY } else { first - second }
}

fn refusal(error: &SampleError) -> Value {
    json!({ "error": error.to_string() })
}

fn history(case: &Case) -> History {
    let mut history = History::new(&case.prompt_ids);
    case.output_ids.iter().for_each(|&id| history.push(id));
    history
}

fn params(case: &Case) -> SamplingParams {
    let p = &case.params;
    SamplingParams {
        temperature: p.temperature,
        top_k: p.top_k,
        top_p: p.top_p,
        min_p: p.min_p,
        repetition_penalty: p.repetition_penalty,
        presence_penalty: p.presence_penalty,
        frequency_penalty: p.frequency_penalty,
        logit_bias: p.logit_bias.clone(),
        forbidden_ids: p.forbidden_ids.clone(),
        allowed_ids: p.allowed_ids.clone(),
        min_tokens: p.min_tokens,
        stop_ids: p.stop_ids.clone(),
        seed: p.seed,
        logprobs: Some(TOP_LOGPROBS),
    }
}

fn row(logits: Option<&SafeTensors>, case: &Case) -> Result<Storage<f32>> {
    let name = &case.name;
    let logits = logits.context("the file names no `logits`")?;
    let shape = logits.tensor(name)?.shape;
    ensure!(shape == [case.vocab], "row {name} has shape {shape:?}, but must have [{}]", case.vocab);
    Ok(logits.storage(name)?)
}
