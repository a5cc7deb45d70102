//! What does not fit, or does not fit together, is refused before a weight is loaded.

use kd_engine::cuda::Gpu;
use kd_engine::{Engine, EngineOptions};
use kd_kernels::testing::kernels_or_skip;
use kd_tests::demo_models;

use crate::OPTIONS;

#[test]
fn a_cache_that_does_not_fit_is_refused_before_anything_is_loaded() {
    let test = "a_cache_that_does_not_fit_is_refused_before_anything_is_loaded";
    if kernels_or_skip(test, "demo-tp1").is_none() {
        return;
    }
    let refused = |cache_tokens: usize, max_streams: usize| {
        let models = demo_models();
        let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair").with_nodes(16);
        let mut loaded = 0;
        let options = EngineOptions { cache_tokens, max_streams, ..OPTIONS };
        let made = Engine::on_gpu(models, gpu, options, |_| loaded += 1);
        (made.map(|_| ()), loaded)
    };
    let (made, loaded) = refused(1 << 40, 16);
    let message = made.expect_err("a billion tokens a head").to_string();
    assert!(message.contains("would fit instead of"), "{message}");
    assert_eq!(loaded, 0, "layers were loaded first");
    // What is said to fit fits.
    let tokens = message.split('(').nth(1).and_then(|rest| rest.split(' ').next());
    let tokens: usize = tokens.and_then(|tokens| tokens.parse().ok()).expect("a number of tokens");
    refused(tokens, 16).0.expect("fits");
    let (made, loaded) = refused(4096, 1000);
    let message = made.expect_err("too many rows").to_string();
    assert!(message.contains("the limit is") && loaded == 0, "{message}");
}
