//! Checkpoints: the goldens are taken whole, and every malformed directory is refused naming tensor and file.

use std::fs;
use std::path::Path;

use half::bf16;
use kd_model::Part;
use kd_model::checkpoint::{Checkpoint, CheckpointError, VISION_PREFIXES};
use kd_model::config::{DrafterConfig, TargetConfig};
use kd_tensor::dtype::DType;
use kd_tensor::safetensors::{SafeTensors, TensorData, write_safetensors};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{demo, golden, json as read_json};

const INDEX: &str = "model.safetensors.index.json";

/// A copy of a golden checkpoint, to be spoilt.
pub(crate) fn copy(of: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    for entry in fs::read_dir(golden(of)).expect("golden") {
        let path = entry.expect("entry").path();
        fs::copy(&path, dir.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    dir
}

/// A tensor that is taken out of a file, to be changed and put back.
pub(crate) struct Edited {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Rewrites a safetensors file; `edit` gives other contents, another name, or nothing for each tensor.
pub(crate) fn rewrite(file: &Path, mut edit: impl FnMut(&str, Edited) -> Option<(String, Edited)>) {
    let old = SafeTensors::open(file).expect("opens");
    let edited = old.iter().filter_map(|tensor| {
        let whole =
            Edited { dtype: tensor.dtype, shape: tensor.shape.to_vec(), bytes: tensor.bytes.to_vec() };
        edit(tensor.name, whole)
    });
    let entries = edited.map(|(name, at)| (name, TensorData::raw(at.dtype, &at.shape, at.bytes)));
    write_safetensors(file, entries.collect::<Vec<_>>()).expect("written");
}

fn edit_index(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let file = dir.join(INDEX);
    let mut index = read_json(&file);
    edit(&mut index);
    fs::write(file, index.to_string()).expect("written");
}

fn refusal(dir: &Path, words: &[&str]) -> CheckpointError {
    let Err(error) = Checkpoint::open(dir) else { panic!("must be refused") };
    assert_says(&error, words);
    error
}

pub(crate) fn assert_says(error: &CheckpointError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{message}` does not say `{word}`");
    }
}

/// Takes everything that a target of this configuration consists of.
fn take_target(checkpoint: &Checkpoint, c: &TargetConfig) -> Result<(), CheckpointError> {
    let prefix = checkpoint.target_prefix();
    let matrix =
        |name: String, out, columns| checkpoint.take::<bf16>(&format!("{prefix}{name}"), &[out, columns]);
    let vector = |name: String, len| checkpoint.take::<bf16>(&format!("{prefix}{name}"), &[len]);
    matrix("lm_head.weight".to_owned(), c.vocab_size, c.hidden_size)?;
    matrix("model.embed_tokens.weight".to_owned(), c.vocab_size, c.hidden_size)?;
    vector("model.norm.weight".to_owned(), c.hidden_size)?;
    let mlp = |at: String, inner| {
        matrix(format!("{at}.gate_proj.weight"), inner, c.hidden_size)?;
        matrix(format!("{at}.up_proj.weight"), inner, c.hidden_size)?;
        matrix(format!("{at}.down_proj.weight"), c.hidden_size, inner)
    };
    for layer in 0..c.num_hidden_layers {
        let at = format!("model.layers.{layer}");
        vector(format!("{at}.input_layernorm.weight"), c.hidden_size)?;
        vector(format!("{at}.post_attention_layernorm.weight"), c.hidden_size)?;
        let attn = format!("{at}.self_attn");
        let heads = c.num_attention_heads;
        match c.q_lora_rank {
            Some(rank) => {
                matrix(format!("{attn}.q_a_proj.weight"), rank, c.hidden_size)?;
                vector(format!("{attn}.q_a_layernorm.weight"), rank)?;
                matrix(format!("{attn}.q_b_proj.weight"), heads * c.qk_head_dim(), rank)?;
            }
            None => drop(matrix(format!("{attn}.q_proj.weight"), heads * c.qk_head_dim(), c.hidden_size)?),
        }
        let latent = c.kv_lora_rank;
        matrix(format!("{attn}.kv_a_proj_with_mqa.weight"), latent + c.qk_rope_head_dim, c.hidden_size)?;
        vector(format!("{attn}.kv_a_layernorm.weight"), latent)?;
        matrix(format!("{attn}.kv_b_proj.weight"), heads * (c.qk_nope_head_dim + c.v_head_dim), latent)?;
        matrix(format!("{attn}.o_proj.weight"), c.hidden_size, heads * c.v_head_dim)?;
        if !c.is_moe(layer) {
            mlp(format!("{at}.mlp"), c.intermediate_size)?;
            continue;
        }
        matrix(format!("{at}.mlp.gate.weight"), c.n_routed_experts, c.hidden_size)?;
        let bias = format!("{prefix}{at}.mlp.gate.e_score_correction_bias");
        checkpoint.take::<f32>(&bias, &[c.n_routed_experts])?;
        mlp(format!("{at}.mlp.shared_experts"), c.n_shared_experts * c.moe_intermediate_size)?;
        for expert in 0..c.n_routed_experts {
            let at = format!("{prefix}{at}.mlp.experts.{expert}");
            let inner = c.moe_intermediate_size;
            checkpoint.take_int4(&format!("{at}.gate_proj"), [inner, c.hidden_size], &Part::Whole)?;
            checkpoint.take_int4(&format!("{at}.up_proj"), [inner, c.hidden_size], &Part::Whole)?;
            checkpoint.take_int4(&format!("{at}.down_proj"), [c.hidden_size, inner], &Part::Whole)?;
        }
    }
    Ok(())
}

fn load_target(dir: &Path) -> Result<usize, CheckpointError> {
    let config = TargetConfig::from_dir(dir).unwrap_or_else(|error| panic!("{error}"));
    let checkpoint = Checkpoint::open(dir)?;
    take_target(&checkpoint, &config)?;
    Ok(checkpoint.finish(VISION_PREFIXES)?.tensors)
}

#[test]
fn golden_targets_are_taken_whole_and_vision_tensors_counted() {
    for variant in ["base", "realdims", "noqlora", "flat", "grouped"] {
        let ignored = &read_json(&golden(&format!("{variant}/golden.json")))["derived"]["ignored_tensors"];
        let skipped =
            load_target(&golden(&format!("{variant}/checkpoint"))).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(&json!(skipped), ignored, "{variant}");
    }
    assert_eq!(load_target(&demo("target")).unwrap_or_else(|error| panic!("{error}")), 0);
}

#[test]
fn total_size_of_the_index_is_what_the_tensors_hold() {
    let checkpoint = Checkpoint::open(golden("base/checkpoint")).expect("opens");
    let total: usize = checkpoint.iter().map(|(_, tensor)| tensor.bytes.len()).sum();
    assert_eq!(json!(total), read_json(&golden("base/checkpoint").join(INDEX))["metadata"]["total_size"]);
}

#[test]
fn a_single_file_needs_no_index() {
    let checkpoint = Checkpoint::open(golden("drafter/causal/checkpoint")).expect("opens");
    assert_eq!(checkpoint.drafter_name("fc.weight"), "model.fc.weight");
    checkpoint.take::<bf16>("model.fc.weight", &[64, 128]).expect("fc");
    let plain = Checkpoint::open(golden("drafter/full/checkpoint")).expect("opens");
    assert_eq!(plain.drafter_name("fc.weight"), "fc.weight");
}

#[test]
fn no_weights_and_no_directory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    assert!(matches!(
        refusal(dir.path(), &["model.safetensors.index.json"]),
        CheckpointError::NoWeights { .. }
    ));
    assert!(matches!(refusal(&dir.path().join("absent"), &["absent"]), CheckpointError::NoWeights { .. }));
}

#[test]
fn malformed_index() {
    for text in ["", "{", "[]", "{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join(INDEX), text).expect("written");
        assert!(matches!(refusal(dir.path(), &[INDEX]), CheckpointError::Index { .. }), "{text}");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let twice = r#"{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}"#;
    fs::write(dir.path().join(INDEX), twice).expect("written");
    refusal(dir.path(), &["`a` occurs twice"]);
}

#[test]
fn shard_names_that_lead_out_of_the_directory() {
    let outside = tempfile::tempdir().expect("temporary directory");
    let file = outside.path().join("x.safetensors");
    write_safetensors(&file, [("a", TensorData::new(&[1], &[1f32]))]).expect("written");
    let absolute = file.to_str().expect("UTF-8");
    for name in [
        absolute,
        "../x.safetensors",
        "sub/x.safetensors",
        "./x.safetensors",
        "..",
        "",
        "x\0.safetensors",
        "a\\x.safetensors",
        "/dev/zero",
        "config.json",
    ] {
        let dir = outside.path().join("model");
        fs::create_dir_all(dir.join("sub")).expect("made");
        fs::copy(&file, dir.join("sub/x.safetensors")).expect("copied");
        fs::write(dir.join(INDEX), json!({ "weight_map": { "a": name } }).to_string()).expect("written");
        let error = refusal(&dir, &["`a`", INDEX]);
        assert!(
            matches!(&error, CheckpointError::ShardName { shard, .. } if shard == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn index_and_shards_must_agree_about_every_tensor() {
    let dir = copy("flat/checkpoint");
    let norm = "model.norm.weight";
    edit_index(dir.path(), |index| index["weight_map"]["ghost"] = json!("model-00004-of-000004.safetensors"));
    let error = refusal(dir.path(), &["`ghost`", "model-00004-of-000004.safetensors"]);
    assert!(matches!(error, CheckpointError::NotInShard { .. }));

    edit_index(dir.path(), |index| {
        index["weight_map"]
            .as_object_mut()
            .expect("object")
            .retain(|name, _| name != "ghost" && name != norm);
    });
    let error = refusal(dir.path(), &["`model.norm.weight`", "model-00004-of-000004.safetensors"]);
    assert!(matches!(error, CheckpointError::NotInIndex { .. }));

    // The same tensor in two shards: the index can mean only one of them.
    edit_index(dir.path(), |index| index["weight_map"][norm] = json!("model-00004-of-000004.safetensors"));
    Checkpoint::open(dir.path()).expect("whole again");
    rewrite(&dir.path().join("model-00001-of-000004.safetensors"), |name, at| {
        let renamed = if name == "model.layers.0.input_layernorm.weight" { norm } else { name };
        Some((renamed.to_owned(), at))
    });
    edit_index(dir.path(), |index| {
        index["weight_map"]
            .as_object_mut()
            .expect("object")
            .retain(|name, _| name != "model.layers.0.input_layernorm.weight");
    });
    let error = refusal(dir.path(), &["`model.norm.weight`", "00001-of", "00004-of"]);
    assert!(matches!(error, CheckpointError::NotInIndex { .. }));
}

#[test]
fn missing_truncated_and_foreign_shards() {
    let shard = "model-00002-of-000004.safetensors";
    let dir = copy("flat/checkpoint");
    let whole = fs::read(dir.path().join(shard)).expect("shard");
    fs::write(dir.path().join(shard), &whole[..whole.len() - 1]).expect("written");
    refusal(dir.path(), &[shard, "`model.layers.1.self_attn.q_b_proj.weight`", "truncated"]);
    fs::write(dir.path().join(shard), b"").expect("written");
    refusal(dir.path(), &[shard]);
    fs::remove_file(dir.path().join(shard)).expect("removed");
    refusal(dir.path(), &[shard]);
    fs::create_dir(dir.path().join(shard)).expect("made");
    refusal(dir.path(), &[shard, "not a regular file"]);
}

#[test]
fn missing_mis_shaped_and_mistyped_tensors_are_named() {
    let checkpoint = Checkpoint::open(golden("flat/checkpoint")).expect("opens");
    let error = checkpoint.take::<bf16>("model.norm.bias", &[96]).expect_err("absent");
    assert_says(&error, &["`model.norm.bias` is missing", "BF16 [96]", "flat/checkpoint"]);
    let error = checkpoint.take::<bf16>("model.norm.weight", &[97]).expect_err("another shape");
    assert_says(
        &error,
        &["`model.norm.weight` is BF16 [96], expected BF16 [97]", "model-00004-of-000004.safetensors"],
    );
    let error = checkpoint.take::<f32>("model.norm.weight", &[96]).expect_err("another type");
    assert_says(&error, &["`model.norm.weight` is BF16 [96], expected F32 [96]"]);
    let error = checkpoint.take::<bf16>("model.norm.weight", &[96, 1]).expect_err("another rank");
    assert_says(&error, &["expected BF16 [96, 1]"]);
    let error = checkpoint.take_integers("model.norm.weight", &[96]).expect_err("no integers");
    assert_says(&error, &["expected I32 or I64 [96]"]);
}

#[test]
fn a_tensor_that_nobody_took_is_an_error() {
    // Fault 10: a head mapped to nowhere leaves the model with a random one.
    let dir = copy("base/checkpoint");
    let shard = "model-00005-of-000007.safetensors";
    let (old, new) = ("language_model.lm_head.weight", "language_model.lm_head.weight_copy");
    rewrite(&dir.path().join(shard), |name, at| Some((name.replace(old, new), at)));
    edit_index(dir.path(), |index| {
        let map = index["weight_map"].as_object_mut().expect("object");
        let file = map.remove(old).expect("present");
        map.insert(new.to_owned(), file);
    });
    assert_says(&load_target(dir.path()).expect_err("no head"), &[old, "is missing"]);

    let checkpoint = Checkpoint::open(dir.path()).expect("opens");
    let error = checkpoint.finish(VISION_PREFIXES).expect_err("nothing was taken");
    assert_says(&error, &[&format!("`{new}` ({shard})"), "…"]);
    assert!(!error.to_string().contains("vision_tower"), "{error}");
    let CheckpointError::LeftOver { count, .. } = error else { panic!("{error}") };
    assert_eq!(count, checkpoint.iter().count() - 35);
    // A drafter has no business with vision tensors.
    let error = Checkpoint::open(dir.path()).expect("opens").finish(&[]).expect_err("nothing was taken");
    assert!(matches!(error, CheckpointError::LeftOver { count, .. } if count == checkpoint.iter().count()));
}

#[test]
fn reduced_vocabularies_map_into_the_target_and_agree_with_their_marks() {
    let source = "drafter/reduced/checkpoint";
    let config = DrafterConfig::from_dir(&golden(source)).expect("supported");
    let vocabulary = |dir: &Path| Checkpoint::open(dir).expect("opens").take_drafter_vocabulary(&config);
    let ids = vocabulary(&golden(source)).expect("sound").expect("reduced").target_ids;
    assert_eq!(ids.len(), 96);
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|&id| id < 320));

    let spoil = |tensor: &str, index: usize, bytes: &[u8], words: &[&str]| {
        let dir = copy(source);
        rewrite(&dir.path().join("model.safetensors"), |name, mut at| {
            if name == tensor {
                at.bytes[index * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            }
            Some((name.to_owned(), at))
        });
        assert_says(&vocabulary(dir.path()).expect_err("spoilt"), words);
    };
    spoil("d2t", 3, &(-4i64).to_le_bytes(), &["`d2t` element 3 is -4"]);
    spoil("d2t", 95, &i64::MAX.to_le_bytes(), &["`d2t` element 95"]);
    let used = i64::from(ids[0]) - 1;
    spoil("d2t", 1, &used.to_le_bytes(), &[&format!("`d2t` element 1 is {used}"), "unused"]);
    spoil("t2d", 319, &[2], &["`t2d` element 319 is 2"]);
    let unmarked = (0..320).find(|id| !ids.contains(id)).expect("some id") as usize;
    spoil("t2d", unmarked, &[1], &[&format!("`t2d` element {unmarked} is true, expected false")]);

    let dir = copy(source);
    rewrite(&dir.path().join("model.safetensors"), |name, at| (name != "d2t").then(|| (name.to_owned(), at)));
    assert_says(&vocabulary(dir.path()).expect_err("no map"), &["`d2t` is missing"]);
    let full = DrafterConfig::from_dir(&golden("drafter/full/checkpoint")).expect("supported");
    let plain = Checkpoint::open(golden("drafter/full/checkpoint")).expect("opens");
    assert_eq!(plain.take_drafter_vocabulary(&full).expect("sound"), None);
}
