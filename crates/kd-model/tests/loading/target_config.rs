//! Target configurations: every golden one, both spellings of everything, and a refusal for all that is not implemented.

use crate::common::{assert_close, assert_rope, demo, golden, json};
use kd_model::ConfigProblem;
use kd_model::config::{LATENT_NORM_EPS, TargetConfig};
use serde_json::{Value, json};

const VARIANTS: [&str; 5] = ["base", "realdims", "noqlora", "flat", "grouped"];

fn config(variant: &str) -> Value {
    json(&golden(&format!("{variant}/checkpoint/config.json")))
}

/// Sets (or, with null, unsets) a dotted key, making objects on the way.
fn set(config: &mut Value, key: &str, value: Value) {
    let slot = key.split('.').fold(config, |at, part| &mut at[part]);
    *slot = value;
}

fn refusal(config: &Value) -> String {
    TargetConfig::parse(config).expect_err("must be refused").to_string()
}

#[test]
fn golden_configs_parse_with_the_right_derived_constants() {
    for variant in VARIANTS {
        let expected = json(&golden(&format!("{variant}/golden.json")));
        let dir = golden(&format!("{variant}/checkpoint"));
        let config = TargetConfig::from_dir(&dir).unwrap_or_else(|error| panic!("{error}"));
        // Faults 14 and 15 of the K2.6 research: mscale_all_dim ignored, nested rope_scaling dropped.
        assert_close(config.softmax_scale(), &expected["derived"]["softmax_scale"], variant);
        assert_rope(&config.rope, &expected["derived"]);
        assert_close(config.rms_norm_eps, &expected["derived"]["eps_block_norms"], variant);
        assert_eq!(json!(LATENT_NORM_EPS), json!(1e-6f32), "{variant}");

        let dims = &expected["dims"];
        let found = [
            ("hidden_size", config.hidden_size),
            ("num_hidden_layers", config.num_hidden_layers),
            ("first_k_dense_replace", config.first_k_dense_replace),
            ("num_attention_heads", config.num_attention_heads),
            ("kv_lora_rank", config.kv_lora_rank),
            ("qk_nope_head_dim", config.qk_nope_head_dim),
            ("qk_rope_head_dim", config.qk_rope_head_dim),
            ("v_head_dim", config.v_head_dim),
            ("n_routed_experts", config.n_routed_experts),
            ("num_experts_per_tok", config.num_experts_per_tok),
            ("n_shared_experts", config.n_shared_experts),
            ("moe_intermediate_size", config.moe_intermediate_size),
            ("intermediate_size", config.intermediate_size),
            ("vocab_size", config.vocab_size),
            ("n_group", config.n_group),
            ("topk_group", config.topk_group),
        ];
        for (key, value) in found {
            assert_eq!(json!(value), dims[key], "{variant} {key}");
        }
        assert_eq!(json!(config.q_lora_rank), dims["q_lora_rank"]);
        assert_eq!(json!(config.norm_topk_prob), dims["norm_topk_prob"]);
        let moe: Vec<bool> = (0..config.num_hidden_layers).map(|layer| config.is_moe(layer)).collect();
        assert_eq!(moe.iter().filter(|&&moe| !moe).count(), config.first_k_dense_replace);
    }
}

#[test]
fn k26_itself_has_the_published_softmax_scale() {
    let realdims = TargetConfig::parse(&config("realdims")).expect("supported");
    assert!((realdims.softmax_scale() - 0.144_679_6).abs() < 1e-7);
}

#[test]
fn the_demo_target_parses() {
    let config = TargetConfig::from_dir(&demo("target")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((config.hidden_size, config.num_hidden_layers, config.n_routed_experts), (256, 6, 24));
    assert_eq!((config.bos_token_id, config.pad_token_id), (Some(4096), Some(4351)));
    assert_eq!(config.eos_token_ids, [4098]);
}

#[test]
fn eos_ids_come_from_every_place_as_number_or_list() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = config("base");
    set(&mut config, "eos_token_id", json!([7, 3]));
    set(&mut config, "text_config.eos_token_id", json!(7));
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    assert_eq!(TargetConfig::from_dir(dir.path()).expect("supported").eos_token_ids, [3, 7]);
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id":[1,3]}"#).expect("written");
    assert_eq!(TargetConfig::from_dir(dir.path()).expect("supported").eos_token_ids, [1, 3, 7]);
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id":512}"#).expect("written");
    let message = TargetConfig::from_dir(dir.path()).expect_err("outside the vocabulary").to_string();
    assert!(message.contains("generation_config.json") && message.contains("512"), "{message}");
}

#[test]
fn unreadable_files_are_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let message = TargetConfig::from_dir(dir.path()).expect_err("no file").to_string();
    assert!(message.contains("config.json"), "{message}");
    for broken in ["", "{", "[1]", "\"text\""] {
        std::fs::write(dir.path().join("config.json"), broken).expect("written");
        let message = TargetConfig::from_dir(dir.path()).expect_err("broken").to_string();
        assert!(message.contains("config.json"), "{message}");
    }
}

#[test]
fn both_spellings_of_rope_mean_the_same() {
    let plain = config("realdims");
    let expected = TargetConfig::parse(&plain).expect("supported");
    let mut renamed = plain.clone();
    let mut parameters = renamed["text_config"]["rope_scaling"].take();
    set(&mut parameters, "rope_theta", json!(50000));
    set(&mut parameters, "rope_type", json!("yarn"));
    set(&mut renamed, "text_config.rope_parameters", parameters.clone());
    set(&mut renamed, "text_config.rope_theta", Value::Null);
    assert_eq!(TargetConfig::parse(&renamed).expect("supported"), expected);
    // Both spellings at once, as some writers leave them.
    let mut both = plain.clone();
    set(&mut both, "text_config.rope_parameters", parameters.clone());
    assert_eq!(TargetConfig::parse(&both).expect("supported"), expected);
    // They must agree: fault 15 was a factor of 40 read in place of the nested 64.
    set(&mut both, "text_config.rope_parameters.factor", json!(40.0));
    assert!(refusal(&both).contains("must agree"));
    let mut thetas = both;
    set(&mut thetas, "text_config.rope_parameters", json!({ "rope_theta": 10000.0, "rope_type": "default" }));
    let message = refusal(&thetas);
    assert!(message.contains("10000") && message.contains("50000"), "{message}");
}

#[test]
fn rope_without_scaling_has_the_plain_scale() {
    for scaling in
        [Value::Null, json!({ "type": "default" }), json!({ "rope_type": "default", "rope_theta": 50000 })]
    {
        let mut config = config("base");
        set(&mut config, "text_config.rope_scaling", scaling);
        let config = TargetConfig::parse(&config).expect("supported");
        assert_eq!(config.rope.yarn, None);
        assert!((config.softmax_scale() - 32f64.powf(-0.5)).abs() < 1e-15);
    }
}

#[test]
fn a_missing_theta_is_never_defaulted() {
    let mut config = config("base");
    set(&mut config, "text_config.rope_theta", Value::Null);
    assert!(refusal(&config).contains("`text_config.rope_theta` is missing"));
}

#[test]
fn model_types_of_newer_and_older_writers() {
    let mut nested = config("base");
    set(&mut nested, "text_config.model_type", json!("deepseek_v3"));
    TargetConfig::parse(&nested).expect("rewritten by newer loaders");
    let mut flat = config("flat");
    set(&mut flat, "model_type", json!("deepseek_v3"));
    TargetConfig::parse(&flat).expect("rewritten by newer loaders");
    set(&mut flat, "model_type", json!("kimi_k25"));
    assert!(refusal(&flat).contains("`text_config` is missing"));
}

#[test]
fn quantization_config_in_either_place_or_both_but_agreeing() {
    let both = config("realdims");
    TargetConfig::parse(&both).expect("both");
    let mut top = both.clone();
    set(&mut top, "text_config.quantization_config", Value::Null);
    assert_eq!(TargetConfig::parse(&top).expect("top"), TargetConfig::parse(&both).expect("both"));
    let mut conflict = both.clone();
    set(&mut conflict, "quantization_config.ignore", json!([]));
    assert!(refusal(&conflict).contains("must agree"));
    let mut neither = top;
    set(&mut neither, "quantization_config", Value::Null);
    let message = refusal(&neither);
    assert!(
        message.contains("`quantization_config` is missing") && message.contains("pack-quantized"),
        "{message}"
    );
}

#[test]
fn every_spelling_of_the_ignore_list_is_accepted() {
    // Faults 8 and 9: an ignore list that misses its modules because of a prefix or of fused names.
    for ignore in [
        json!([]),
        json!([
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"
        ]),
        json!(["language_model.lm_head", "model.layers.0.mlp.gate_up_proj", "re:(?!nothing).*self_attn.*"]),
        Value::Null,
    ] {
        let mut config = config("base");
        set(&mut config, "text_config.quantization_config.ignore", ignore);
        TargetConfig::parse(&config).expect("supported");
    }
}

/// What is not implemented: key, value, and what the message must say is supported.
#[test]
fn what_is_not_implemented_is_refused_by_name_and_value() {
    let weights = "text_config.quantization_config.config_groups.group_0.weights";
    let cases = [
        ("model_type", json!("llama"), "kimi_k25"),
        ("text_config.model_type", json!("deepseek_v32"), "deepseek_v3"),
        ("text_config.scoring_func", json!("softmax"), "sigmoid"),
        ("text_config.topk_method", json!("group_limited_greedy"), "noaux_tc"),
        ("text_config.hidden_act", json!("gelu"), "silu"),
        ("text_config.attention_bias", json!(true), "absent"),
        ("text_config.sliding_window", json!(4096), "absent"),
        ("text_config.final_logit_softcapping", json!(30.0), "absent"),
        ("text_config.rope_interleave", json!(false), "true"),
        ("text_config.tie_word_embeddings", json!(true), "false"),
        ("tie_word_embeddings", json!(true), "false"),
        ("text_config.num_nextn_predict_layers", json!(1), "0"),
        ("text_config.num_key_value_heads", json!(2), "4"),
        ("text_config.rope_scaling.type", json!("linear"), "yarn"),
        ("text_config.rope_scaling.type", json!("longrope"), "yarn"),
        ("text_config.rope_scaling.truncate", json!(false), "true"),
        ("text_config.rope_scaling.long_factor", json!([1.0]), "beta_fast"),
        ("text_config.quantization_config.quant_method", json!("fp8"), "compressed-tensors"),
        ("text_config.quantization_config.format", json!("nvfp4-pack-quantized"), "pack-quantized"),
        ("text_config.quantization_config.quantization_status", json!("frozen"), "compressed"),
        ("text_config.quantization_config.kv_cache_scheme", json!({ "num_bits": 8 }), "absent"),
        ("text_config.quantization_config.transform_config", json!({ "r": 1 }), "absent"),
        (&format!("{weights}.num_bits"), json!(8), "4"),
        (&format!("{weights}.type"), json!("float"), "int"),
        (&format!("{weights}.strategy"), json!("channel"), "group"),
        (&format!("{weights}.group_size"), json!(128), "32"),
        (&format!("{weights}.symmetric"), json!(false), "true"),
        (&format!("{weights}.dynamic"), json!(true), "absent"),
        (&format!("{weights}.actorder"), json!("group"), "absent"),
    ];
    for (key, value, supported) in cases {
        let mut config = config("base");
        set(&mut config, key, value.clone());
        let problem = TargetConfig::parse(&config).expect_err(key);
        assert!(matches!(problem, ConfigProblem::Unsupported { .. }), "{key}: {problem}");
        let message = problem.to_string();
        for word in [&format!("`{key}`"), &value.to_string(), supported] {
            assert!(message.contains(word), "`{message}` does not say `{word}`");
        }
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let cases = [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-128)),
        ("hidden_size", json!(128.5)),
        ("hidden_size", json!("128")),
        ("hidden_size", json!(100)),
        ("hidden_size", json!(u64::MAX)),
        ("moe_intermediate_size", json!(48)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("first_k_dense_replace", json!(5)),
        ("moe_layer_freq", json!(0)),
        ("intermediate_size", json!(0)),
        ("num_attention_heads", json!(0)),
        ("q_lora_rank", json!(0)),
        ("kv_lora_rank", json!(0)),
        ("qk_nope_head_dim", json!(0)),
        ("qk_rope_head_dim", json!(15)),
        ("v_head_dim", json!(0)),
        ("vocab_size", json!(1u64 << 33)),
        ("n_routed_experts", json!(0)),
        ("num_experts_per_tok", json!(0)),
        ("num_experts_per_tok", json!(17)),
        ("n_shared_experts", json!(0)),
        ("n_group", json!(3)),
        ("n_group", json!(16)),
        ("topk_group", json!(2)),
        ("norm_topk_prob", json!("yes")),
        ("routed_scaling_factor", json!(0.0)),
        ("rms_norm_eps", json!(-1e-5)),
        ("max_position_embeddings", json!(0)),
        ("bos_token_id", json!(512)),
        ("eos_token_id", json!([1, 512])),
        ("pad_token_id", json!(-1)),
        ("rope_theta", json!(1.0)),
        ("rope_scaling.factor", json!(0.5)),
        ("rope_scaling.original_max_position_embeddings", json!(0)),
        ("rope_scaling.beta_fast", json!(0.5)),
        ("rope_scaling.mscale", json!(-1.0)),
    ];
    for (key, value) in cases {
        let mut config = config("base");
        set(&mut config, &format!("text_config.{key}"), value.clone());
        let problem = TargetConfig::parse(&config).expect_err(key);
        assert!(matches!(problem, ConfigProblem::Invalid { .. }), "{key}: {problem}");
        let message = problem.to_string();
        assert!(message.contains(&format!("`text_config.{key}` is {value}")), "{message}");
    }
}

#[test]
fn group_limits_count_the_eligible_experts() {
    let mut config = config("grouped");
    set(&mut config, "text_config.num_experts_per_tok", json!(12));
    TargetConfig::parse(&config).expect("two groups of six");
    set(&mut config, "text_config.num_experts_per_tok", json!(13));
    assert!(refusal(&config).contains("at most 12"));
}

#[test]
fn required_keys_are_named_when_missing() {
    let optional = [
        "num_nextn_predict_layers",
        "num_key_value_heads",
        "q_lora_rank",
        "moe_layer_freq",
        "scoring_func",
        "topk_method",
        "hidden_act",
        "attention_bias",
        "tie_word_embeddings",
        "eos_token_id",
        "bos_token_id",
        "pad_token_id",
        "rope_scaling",
    ];
    let training = [
        "architectures",
        "attention_dropout",
        "auto_map",
        "aux_loss_alpha",
        "dtype",
        "ep_size",
        "initializer_range",
        "pretraining_tp",
        "seq_aux",
        "use_cache",
    ];
    let whole = config("base");
    for key in whole["text_config"].as_object().expect("object").keys() {
        let mut config = whole.clone();
        set(&mut config, &format!("text_config.{key}"), Value::Null);
        match TargetConfig::parse(&config) {
            Ok(_) => assert!(optional.contains(&key.as_str()) || training.contains(&key.as_str()), "{key}"),
            Err(problem) => {
                assert!(matches!(problem, ConfigProblem::Missing { .. }), "{key}: {problem}");
                assert!(problem.to_string().contains(key.as_str()), "{problem}");
            }
        }
    }
    for key in ["mscale", "mscale_all_dim"] {
        let mut config = whole.clone();
        set(&mut config, &format!("text_config.rope_scaling.{key}"), Value::Null);
        assert!(refusal(&config).contains(key), "one of the pair alone has no agreed meaning");
    }
}
