//! Readers of model folders and kernel bundles.

use std::fs;
use std::path::Path;

use kd_kernels::Bundle;
use kd_model::checkpoint::Checkpoint;
use kd_model::config::{DrafterConfig, GenerationConfig, RopeConfig, TargetConfig};
use kd_tensor::safetensors::SafeTensors;
use serde_json::Value;

use super::{Target, seeds};

pub(super) fn targets() -> Vec<Target> {
    let nothing: fn(&Path) = |_| {};
    vec![
        Target {
            name: "safetensors",
            weight: 4,
            seeds: seeds::safetensors,
            run: safetensors,
            prepare: nothing,
        },
        Target { name: "index", weight: 4, seeds: seeds::index, run: index, prepare: shard },
        Target {
            name: "target_config",
            weight: 10,
            seeds: seeds::target_configs,
            run: target_config,
            prepare: nothing,
        },
        Target {
            name: "drafter_config",
            weight: 10,
            seeds: seeds::drafter_configs,
            run: drafter_config,
            prepare: nothing,
        },
        Target {
            name: "generation_config",
            weight: 10,
            seeds: seeds::generation_configs,
            run: generation_config,
            prepare: nothing,
        },
        Target { name: "kernel_bundle", weight: 10, seeds: seeds::bundles, run: bundle, prepare: nothing },
    ]
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let file = folder.join(name);
    fs::write(&file, bytes).expect("the temporary folder can be written");
    file
}

/// Every tensor that the header promises is there, as long as its type and shape say.
fn safetensors(bytes: &[u8], folder: &Path) {
    let Ok(file) = SafeTensors::open(write(folder, "f.safetensors", bytes)) else { return };
    let mut total = 0;
    for tensor in file.iter() {
        assert_eq!(tensor.dtype.byte_len(tensor.shape), Some(tensor.bytes.len()));
        total += tensor.bytes.len();
        let _ = (file.integers(tensor.name), file.bools(tensor.name), file.storage::<f32>(tensor.name));
    }
    assert!(total <= bytes.len());
}

fn shard(folder: &Path) {
    seeds::write_shard(&folder.join("s.safetensors"));
}

fn index(bytes: &[u8], folder: &Path) {
    write(folder, "model.safetensors.index.json", bytes);
    if let Ok(checkpoint) = Checkpoint::open(folder) {
        // All of the one shard, or an index that names no tensor and so no shard.
        let tensors = checkpoint.iter().count();
        assert!(matches!(tensors, 0 | 4), "{tensors} tensors");
        assert_eq!(checkpoint.finish(&[]).is_ok(), tensors == 0, "nobody took anything");
    }
}

fn parsed(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn finite(rope: &RopeConfig) {
    // The widest heads would make this a test of patience.
    if rope.dim <= 1024 {
        let embedding = rope.embedding();
        assert!(embedding.gain().is_finite() && embedding.inv_freq().iter().all(|freq| freq.is_finite()));
    }
}

/// What is accepted has finite constants, in f32 as well, and sizes that can be multiplied.
fn target_config(bytes: &[u8], _folder: &Path) {
    let Some(Ok(config)) = parsed(bytes).map(|value| TargetConfig::parse(&value)) else { return };
    assert!((config.softmax_scale() as f32).is_finite() && config.softmax_scale() > 0.0);
    assert!((config.rms_norm_eps as f32) > 0.0 && (config.routed_scaling_factor as f32).is_finite());
    finite(&config.rope);
    config.refuses_ranks(8);
    if config.tensor_count() < 10_000 {
        let tensors = config.tensors("");
        assert_eq!(tensors.len(), config.tensor_count());
        assert!(tensors.iter().all(|spec| spec.dtypes[0].byte_len(&spec.shape).is_some()));
    }
}

fn drafter_config(bytes: &[u8], _folder: &Path) {
    let Some(Ok(config)) = parsed(bytes).map(|value| DrafterConfig::parse(&value)) else { return };
    assert!((config.rms_norm_eps as f32) > 0.0 && config.block_size >= 2 && config.tap_width() > 0);
    finite(&config.rope);
}

fn generation_config(bytes: &[u8], _folder: &Path) {
    if let Some(Ok(config)) = parsed(bytes).map(|value| GenerationConfig::parse(&value, 100)) {
        assert!(config.eos_token_ids.iter().all(|&id| id < 100));
    }
}

fn bundle(bytes: &[u8], folder: &Path) {
    if let Ok(bundle) = Bundle::parse(folder, bytes) {
        for unit in &bundle.header().units {
            let _ = bundle.image(unit);
        }
    }
}
