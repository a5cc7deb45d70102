//! What does not fit is refused before a weight is loaded, and loading takes hardly more than it leaves. Tests of what is free need the
//! device alone: no other process, and `--test-threads=1`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use kd_attn::PAGE_TOKENS;
use kd_engine::cuda::Gpu;
use kd_engine::{Engine, EngineOptions, Models};
use kd_kernels::testing::{kernels_or_skip, taken};
use kd_model::cuda::CudaTarget;
use kd_model::{Drafter, Target};
use kd_tensor::safetensors::{SafeTensors, TensorData, write_safetensors};
use kd_tests::{demo, demo_models, json};

use crate::OPTIONS;

/// Layers of the deep target: enough that its weights are many times what loading may take besides.
const LAYERS: usize = 240;
/// What the engine that is refused may take of the device, which others may use as well.
const MEMORY: usize = 4 << 30;
/// The same for an engine with a deep target, whose graphs may take more than half of it.
const DEEP_MEMORY: usize = 8 << 30;
/// Layers of the target whose graphs are looked at: as many as K2.6 has.
const DEEP: usize = 61;
/// What loading may take at most beside what it leaves.
const BESIDE: usize = 64 << 20;

#[test]
fn a_cache_that_does_not_fit_is_refused_before_anything_is_loaded() {
    let test = "a_cache_that_does_not_fit_is_refused_before_anything_is_loaded";
    let Some((device, _)) = kernels_or_skip(test, "demo-tp1") else { return };
    let kept = || device.kept().expect("bytes of buffers").0 as usize;
    let engine = |cache_tokens: usize, max_streams: usize| {
        let models = demo_models();
        let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair").with_nodes(16);
        let mut loaded = 0;
        let options = EngineOptions { cache_tokens, max_streams, ..OPTIONS };
        let made = Engine::on_gpu(models, gpu.with_memory(MEMORY), options, |_| loaded += 1);
        (made, loaded)
    };
    let refused = |cache_tokens: usize, max_streams: usize| {
        let (before, (made, loaded)) = (kept(), engine(cache_tokens, max_streams));
        assert_eq!((loaded, kept()), (0, before), "layers were loaded first");
        made.map(drop).expect_err("too much").to_string()
    };
    let message = refused(1 << 40, 16);
    assert!(message.contains("would fit instead of"), "{message}");
    // What is said to fit fits, and a page more is refused.
    let tokens = message.split('(').nth(1).and_then(|rest| rest.split(' ').next());
    let tokens: usize = tokens.and_then(|tokens| tokens.parse().ok()).expect("a number of tokens");
    let message = refused(tokens + PAGE_TOKENS, 16);
    assert!(message.contains("would fit instead of"), "{message}");
    let before = kept();
    let fits = engine(tokens, 16).0.expect("fits");
    let kept = kept().saturating_sub(before);
    assert!(kept <= MEMORY && kept > MEMORY * 3 / 4, "{kept} bytes of {MEMORY} were taken");
    drop(fits);
    let message = refused(4096, 1000);
    assert!(message.contains("the limit is"), "{message}");
}

/// An engine with a deep target, whose graphs take more than everything else that is not a buffer, stays within what it may take; so
/// does one with a drafter, whose rounds have longer graphs.
#[test]
fn graphs_take_what_was_planned() {
    let Some((device, _)) = kernels_or_skip("graphs_take_what_was_planned", "demo-tp1") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    deepened(folder.path(), DEEP);
    let target = Arc::new(Target::load(folder.path()).expect("a deep target"));
    let free = || device.context().mem_get_info().expect("free memory").0;
    let kept = || device.kept().expect("bytes of buffers").0 as usize;
    let drafts = tempfile::tempdir().expect("a folder");
    for drafter in [None, Some(Arc::new(drafter_of(drafts.path(), DEEP)))] {
        let what = if drafter.is_some() { "with a drafter" } else { "alone" };
        let engine = |cache_tokens: usize| {
            let models = Models { target: target.clone(), drafter: drafter.clone(), tokenizer: None };
            let gpu = Gpu::open(0, &models).expect("a GPU with kernels for the demo pair");
            let gpu = gpu.with_nodes(64).with_memory(DEEP_MEMORY);
            Engine::on_gpu(models, gpu, EngineOptions { cache_tokens, ..OPTIONS }, |_| ())
        };
        let message = engine(1 << 40).map(drop).expect_err("too much").to_string();
        let tokens = message.split('(').nth(1).and_then(|rest| rest.split(' ').next());
        let tokens: usize = tokens.and_then(|tokens| tokens.parse().ok()).expect("a number of tokens");
        let before = (free(), kept());
        let held = engine(tokens).expect("fits");
        let (taken, buffers) = (taken(before.0, free()), kept().saturating_sub(before.1));
        println!("{what}: {taken} bytes taken of {DEEP_MEMORY}, {buffers} by buffers");
        assert!(
            taken <= DEEP_MEMORY,
            "{what}: {taken} bytes of {DEEP_MEMORY} were taken, {buffers} by buffers"
        );
        let graphs = taken.saturating_sub(buffers);
        assert!(graphs > 256 << 20, "{what}: {graphs} bytes of graphs and kernels are of little consequence");
        drop(held);
    }
}

/// Free memory is watched by a thread all the while, on a checkpoint of as many shards as layers.
#[test]
fn loading_takes_little_more_than_the_weights() {
    let test = "loading_takes_little_more_than_the_weights";
    let Some((device, kernels)) = kernels_or_skip(test, "demo-tp1") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    deepened(folder.path(), LAYERS);
    let target = Target::load(folder.path()).expect("a deep target");
    let stream = device.stream().expect("a stream");
    let context = device.context().clone();
    let free = || context.mem_get_info().expect("free memory").0;
    // Modules are loaded once.
    drop(CudaTarget::load(&stream, &kernels, &demo_models().target, 0, &mut |_, _| ()).expect("the demo"));
    stream.synchronize().expect("done");
    let (before, least, done) = (free(), AtomicUsize::new(usize::MAX), AtomicBool::new(false));
    let (begin, mut seen) = (Instant::now(), 0);
    let loaded = std::thread::scope(|scope| {
        scope.spawn(|| {
            context.bind_to_thread().expect("a context");
            while !done.load(Ordering::Relaxed) {
                least.fetch_min(free(), Ordering::Relaxed);
            }
        });
        let loaded = CudaTarget::load(&stream, &kernels, &target, 0, &mut |layers, _| seen = layers);
        done.store(true, Ordering::Relaxed);
        loaded.expect("the deep target")
    });
    let seconds = begin.elapsed().as_secs_f64();
    let (after, weights) = (free(), loaded.dims().weight_bytes().expect("a size"));
    let [peak, left] = [least.into_inner().min(after), after].map(|free| taken(before, free));
    println!("{weights} bytes of weights in {seconds:.2} s: {left} taken, {peak} at the peak");
    assert_eq!(seen, LAYERS);
    assert!(weights > 4 * BESIDE && left >= weights, "{left} bytes taken for {weights} of weights");
    // Compared with the weights: memory that was given back may still be taken from the device.
    assert!(peak >= left && peak <= weights + BESIDE, "{peak} bytes at the peak for {weights} of weights");
}

/// The demo target with its layers repeated, each in a shard of its own.
fn deepened(folder: &Path, layers: usize) {
    let mut index: BTreeMap<String, String> = BTreeMap::new();
    let shards: Vec<SafeTensors> = fs::read_dir(demo("target"))
        .expect("the demo target")
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
        .map(|path| SafeTensors::open(path).expect("a shard"))
        .collect();
    let mut write = |file: String, chosen: &dyn Fn(&str) -> Option<String>| {
        let views = shards.iter().flat_map(SafeTensors::iter);
        let tensors: Vec<_> = views
            .filter_map(|view| {
                Some((chosen(view.name)?, TensorData::raw(view.dtype, view.shape, view.bytes)))
            })
            .collect();
        index.extend(tensors.iter().map(|(name, _)| (name.clone(), file.clone())));
        write_safetensors(folder.join(file), tensors).expect("a shard");
    };
    let part = |name: &str, layer: usize| name.contains(&format!(".layers.{layer}."));
    for layer in 0..layers {
        let from = if layer == 0 { 0 } else { 1 + layer % 5 };
        write(format!("layer-{layer}.safetensors"), &|name| {
            let own = |name: &str| name.replace(&format!(".layers.{from}."), &format!(".layers.{layer}."));
            part(name, from).then(|| own(name))
        });
    }
    write("rest.safetensors".to_owned(), &|name| (!name.contains(".layers.")).then(|| name.to_owned()));
    let index = serde_json::json!({ "metadata": {}, "weight_map": index });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).expect("the index");
    let mut config = json(&demo("target/config.json"));
    config["text_config"]["num_hidden_layers"] = layers.into();
    fs::write(folder.join("config.json"), config.to_string()).expect("the configuration");
}

/// The demo's drafter, for a target of so many layers.
fn drafter_of(folder: &Path, layers: usize) -> Drafter {
    for file in fs::read_dir(demo("drafter")).expect("the demo drafter") {
        let file = file.expect("a file");
        fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
    }
    let mut config = json(&demo("drafter/config.json"));
    config["num_target_layers"] = layers.into();
    fs::write(folder.join("config.json"), config.to_string()).expect("the configuration");
    Drafter::load(folder).expect("the drafter")
}
