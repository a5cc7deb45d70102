//! Configurations of targets.

use std::fs;

use serde_json::{Value, json};

use crate::case::{Case, all_refused, edit_json, golden_model};

#[test]
fn hostile_configurations() {
    all_refused(&target(), &kd_tests::golden("base/checkpoint"), golden_model);
}

#[test]
fn hostile_generation_configurations() {
    all_refused(&generation(), &kd_tests::golden("base/checkpoint"), golden_model);
}

/// Sets `text_config.key`.
fn set(key: &'static str, value: Value) -> Case {
    let name = format!("{key} = {value}");
    Case::new(&name, &[key.rsplit('.').next().expect("a part")], move |dir| {
        edit_json(dir.join("config.json"), |config| {
            let (section, key) =
                key.rsplit_once('.').map_or((None, key), |(section, key)| (Some(section), key));
            let text = &mut config["text_config"];
            match section {
                Some(section) => text[section][key] = value.clone(),
                None => text[key] = value.clone(),
            }
        });
    })
}

fn text(name: &str, says: &[&str], text: String) -> Case {
    Case::new(name, says, move |dir| fs::write(dir.join("config.json"), &text).expect("written"))
}

pub(crate) fn target() -> Vec<Case> {
    const HUGE: u64 = u64::MAX;
    let mut cases = vec![
        text("an empty file", &["config.json", "malformed JSON"], String::new()),
        text("half a file", &["malformed JSON"], "{\"model_type\": \"kimi".to_owned()),
        text("a list", &["(top level)"], "[]".to_owned()),
        text("null", &["(top level)"], "null".to_owned()),
        text("no keys", &["model_type"], "{}".to_owned()),
        text("lists without end", &["malformed JSON", "recursion"], "[".repeat(1 << 20)),
        text("broken UTF-16", &["malformed JSON"], "{\"a\": \"\\ud800\"}".to_owned()),
        Case::new("no file", &["config.json", "does not exist"], |dir| {
            fs::remove_file(dir.join("config.json")).expect("removed");
        }),
        Case::new("a folder", &["not a regular file"], |dir| {
            fs::remove_file(dir.join("config.json")).expect("removed");
            fs::create_dir(dir.join("config.json")).expect("made");
        }),
        Case::new("17 MiB of spaces", &["config.json", "17825792", "16777216"], |dir| {
            fs::write(dir.join("config.json"), vec![b' '; 17 << 20]).expect("written");
        }),
    ];
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "vocab_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "intermediate_size",
        "max_position_embeddings",
    ] {
        cases.push(set(key, json!(0)));
        cases.push(set(key, json!(HUGE)));
    }
    cases.extend([
        // Each in its limits, the product of heads and head beyond what the checkpoint holds.
        set("num_attention_heads", json!(65_536)),
        set("hidden_size", json!(-128)),
        set("hidden_size", json!(128.5)),
        set("hidden_size", json!("128")),
        set("hidden_size", json!([128])),
        set("hidden_size", json!(100)),
        set("hidden_size", Value::Null),
        set("max_position_embeddings", json!(1u64 << 32)),
        set("max_position_embeddings", json!(1e30)),
        set("qk_rope_head_dim", json!(15)),
        set("num_experts_per_tok", json!(17)),
        set("n_group", json!(3)),
        set("topk_group", json!(2)),
        set("first_k_dense_replace", json!(5)),
        set("num_key_value_heads", json!(2)),
        set("rms_norm_eps", json!(0)),
        set("rms_norm_eps", json!(-1e-5)),
        set("rms_norm_eps", json!(1e-300)),
        set("rms_norm_eps", json!("1e-5")),
        set("routed_scaling_factor", json!(1e300)),
        set("routed_scaling_factor", json!(0)),
        set("rope_theta", json!(1)),
        set("rope_theta", json!(1e300)),
        set("rope_theta", json!(-50_000)),
        set("rope_scaling.factor", json!(0)),
        set("rope_scaling.factor", json!(1e300)),
        set("rope_scaling.mscale", json!(1e300)),
        set("rope_scaling.mscale_all_dim", json!(-1)),
        set("rope_scaling.beta_fast", json!(1e-300)),
        set("rope_scaling.beta_slow", json!(64)),
        set("rope_scaling.original_max_position_embeddings", json!(HUGE)),
        set("rope_scaling.type", json!("dynamic")),
        set("rope_scaling.surprise", json!(1)),
        set("eos_token_id", json!(512)),
        set("eos_token_id", json!([258, -1])),
        set("bos_token_id", json!(1u64 << 32)),
        set("norm_topk_prob", json!(1)),
        set("scoring_func", json!("softmax")),
        set("model_type", json!("llama")),
        set("num_nextn_predict_layers", json!(1)),
        set("attention_bias", json!(true)),
        set("quantization_config.quant_method", json!("fp8")),
        set("quantization_config.format", json!("float-quantized")),
        set("quantization_config.config_groups", json!({})),
    ]);
    cases
}

pub(crate) fn generation() -> Vec<Case> {
    let file = |name: &str, says: &[&str], text: &'static str| {
        let says = [&["generation_config.json"], says].concat();
        Case::new(name, &says, move |dir| {
            fs::write(dir.join("generation_config.json"), text).expect("written")
        })
    };
    vec![
        file("an empty file", &["malformed JSON"], ""),
        file("a list", &["(top level)"], "[]"),
        file("an id beyond the vocabulary", &["eos_token_id", "512"], "{\"eos_token_id\": 512}"),
        file("an id in words", &["eos_token_id"], "{\"eos_token_id\": \"258\"}"),
        file("a negative id in a list", &["eos_token_id"], "{\"eos_token_id\": [258, -1]}"),
        file("a list in a list", &["eos_token_id"], "{\"eos_token_id\": [[258]]}"),
    ]
}
