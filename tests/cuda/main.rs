//! The engine on a GPU: what must hold of `kd generate --device cuda`. Skips without a GPU or kernels for the demo pair.

mod antifake;
mod chunks;
mod company;
mod cpu;
mod lossless;
mod memory;
mod rounds;
mod speed;
mod sticky;
mod teacher;

use kd_engine::cuda::Gpu;
use kd_engine::{Engine, EngineOptions, Request, SamplingParams, Speculation};
use kd_kernels::testing::kernels_or_skip;
use kd_tests::{demo, demo_models, ids, json};

/// Room for the largest test.
const OPTIONS: EngineOptions =
    EngineOptions { max_streams: 16, cache_tokens: 16 * 512, prefill_chunk: 256, mixed_chunk: 256 };
/// Tokens that are generated of each prompt.
const TOKENS: usize = 128;

/// An engine on device 0 for trees of up to `nodes` nodes, or `None` after a counted line.
fn engine(test: &str, nodes: usize, options: EngineOptions) -> Option<Engine> {
    kernels_or_skip(test, "demo-tp1")?;
    let models = demo_models();
    let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair");
    Some(Engine::on_gpu(models, gpu.with_nodes(nodes), options, |_| {}).expect("room for the demo pair"))
}

/// The prompts of the demo pair's goldens and pieces of them: as many as are asked for, all different.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let golden = json(&demo("golden/golden.json"));
    let cases = golden["cases"].as_array().expect("cases");
    let whole: Vec<Vec<u32>> = cases.iter().map(|case| ids(&case["prompt"])).collect();
    let piece = |i: usize| {
        let prompt = &whole[i % whole.len()];
        // Whole ones first, then shorter and shorter beginnings.
        prompt[..prompt.len() - (i / whole.len()) * prompt.len() / 10].to_vec()
    };
    (0..count).map(piece).collect()
}

fn request(prompt: Vec<u32>, temperature: f64, speculation: Speculation) -> Request {
    let params = SamplingParams { temperature, seed: 7, ..SamplingParams::default() };
    Request { params, speculation, ..Request::new(prompt, TOKENS) }
}
