//! What a fake or half-broken engine could not do on a GPU either.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kd_engine::cuda::Gpu;
use kd_engine::{Engine, FinishReason, Models, Request, Speculation, StreamError};
use kd_kernels::testing::kernels_or_skip;
use kd_model::Target;
use kd_tests::drive::{Answer, Arrival, run};
use kd_tests::random::scrambled_drafter;
use kd_tests::{demo, demo_models, json};

use crate::{OPTIONS, engine, prompts, request};

/// A token that the poisoned target cannot read.
const POISON: u32 = 4000;

fn with(models: Models, nodes: usize) -> Engine {
    let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair");
    Engine::on_gpu(models, gpu.with_nodes(nodes), OPTIONS, |_| {}).expect("room for the demo pair")
}

fn rate(answers: &[Answer]) -> f64 {
    let tokens: u64 = answers.iter().map(|answer| answer.stats.round_tokens).sum();
    tokens as f64 / answers.iter().map(|answer| answer.stats.rounds).sum::<u64>() as f64
}

#[test]
fn a_scrambled_drafter_changes_speed_and_never_tokens() {
    let test = "a_scrambled_drafter_changes_speed_and_never_tokens";
    let Some(mut trained) = engine(test, 16, OPTIONS) else { return };
    let drafter = Some(Arc::new(scrambled_drafter(&demo("drafter"), 3)));
    let mut scrambled = with(Models { drafter, ..demo_models() }, 16);
    let requests: Vec<Arrival> = prompts(8)
        .into_iter()
        .map(|prompt| request(prompt, 0.0, Speculation::Tree { nodes: 16 }).into())
        .collect();
    let (good, bad) = (run(&mut trained, &requests), run(&mut scrambled, &requests));
    for (i, (good, bad)) in good.iter().zip(&bad).enumerate() {
        bad.assert_equals(good, &format!("prompt {i}"));
        assert!(bad.rounds.iter().all(|round| round.tree.len() == 16), "drafts are really made");
    }
    let (good, bad) = (rate(&good), rate(&bad));
    assert!(good > 2.0 && bad < 1.3, "{good} tokens a round from the drafter, {bad} from the scrambled one");
}

#[test]
fn without_a_drafter_or_nodes_the_automatic_budget_is_plain_decoding() {
    let test = "without_a_drafter_or_nodes_the_automatic_budget_is_plain_decoding";
    let Some(mut plain) = engine(test, 0, OPTIONS) else { return };
    let requests = |way| -> Vec<Arrival> {
        prompts(4).into_iter().map(|prompt| request(prompt, 0.0, way).into()).collect()
    };
    let wanted = run(&mut plain, &requests(Speculation::Plain));
    let alone = with(Models { drafter: None, ..demo_models() }, 16);
    for (what, mut engine) in [("no drafter", alone), ("no nodes", plain)] {
        for (i, (found, wanted)) in
            run(&mut engine, &requests(Speculation::Auto)).iter().zip(&wanted).enumerate()
        {
            found.assert_equals(wanted, &format!("{what}, prompt {i}"));
        }
    }
}

#[test]
fn a_row_of_nan_ends_its_request_and_publishes_nothing() {
    let test = "a_row_of_nan_ends_its_request_and_publishes_nothing";
    if kernels_or_skip(test, "demo-tp1").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let models = Models { target: Arc::new(poisoned(folder.path())), ..demo_models() };
    let mut engine = with(models, 16);
    for way in [Speculation::Plain, Speculation::Tree { nodes: 16 }] {
        let mut requests: Vec<Request> = prompts(6).into_iter().map(|p| request(p, 1.0, way)).collect();
        let clean = run(&mut engine, &requests.iter().cloned().map(Arrival::from).collect::<Vec<_>>());
        assert!(clean.iter().all(|answer| answer.end == Some(Ok(FinishReason::Length))));
        // Its last token, and one in the middle: every row behind it sees it.
        requests[1].prompt.push(POISON);
        requests[4].prompt[10] = POISON;
        let mut dirty: Vec<Arrival> = requests.into_iter().map(Arrival::from).collect();
        // One that gets the pages of those that failed.
        dirty.push(Arrival { joins: 2, ..dirty[0].clone() });
        let answers = run(&mut engine, &dirty);
        for at in [1, 4] {
            let end = &answers[at].end;
            assert!(matches!(end, Some(Err(StreamError::Sample { .. }))), "stream {at}: {end:?}");
            assert!(answers[at].choices.is_empty(), "stream {at} has tokens");
        }
        for (at, of) in [(0, 0), (2, 2), (3, 3), (5, 5), (6, 0)] {
            answers[at].assert_equals(&clean[of], &format!("{way:?}, stream {at}"));
        }
    }
}

/// The demo target, but that the embedding of [`POISON`] is NaN.
fn poisoned(folder: &Path) -> Target {
    let source = demo("target");
    for file in fs::read_dir(&source).expect("the demo target").map(|file| file.expect("a file").path()) {
        fs::copy(&file, folder.join(file.file_name().expect("a name"))).expect("a copy");
    }
    let index = json(&folder.join("model.safetensors.index.json"));
    let map = index["weight_map"].as_object().expect("a map");
    let (name, shard) =
        map.iter().find(|(name, _)| name.ends_with("embed_tokens.weight")).expect("an embedding");
    let path = folder.join(shard.as_str().expect("a file name"));
    let mut bytes = fs::read(&path).expect("a shard");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let start = tensors[name]["data_offsets"][0].as_u64().expect("an offset") as usize;
    let width = tensors[name]["shape"][1].as_u64().expect("a width") as usize;
    let row = 8 + header + start + 2 * width * POISON as usize;
    let nan = half::bf16::NAN.to_le_bytes();
    bytes[row..row + 2 * width].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&nan));
    fs::write(&path, bytes).expect("the shard");
    Target::load(folder).expect("the poisoned target")
}
