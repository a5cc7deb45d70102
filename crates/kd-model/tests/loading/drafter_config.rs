//! Drafter configurations: every golden one, the rules of windows and causality, and what is refused.

use crate::common::{assert_rope, demo, golden, json};
use kd_model::ConfigProblem;
use kd_model::config::{DrafterConfig, DrafterLayer, TargetConfig};
use serde_json::{Value, json};

const VARIANTS: [&str; 8] =
    ["full", "window", "window_default", "window_keys", "causal", "own", "reduced", "yarn"];

fn config(variant: &str) -> Value {
    json(&golden(&format!("drafter/{variant}/checkpoint/config.json")))
}

fn with(variant: &str, changes: &[(&str, Value)]) -> Value {
    let mut config = config(variant);
    for (key, value) in changes {
        let slot = key.split('.').fold(&mut config, |at, part| &mut at[part]);
        *slot = value.clone();
    }
    config
}

fn parse(config: &Value) -> DrafterConfig {
    DrafterConfig::parse(config).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn golden_configs_parse_with_the_right_derived_constants() {
    for variant in VARIANTS {
        let dir = golden(&format!("drafter/{variant}"));
        let derived = json(&dir.join("golden.json"))["derived"].clone();
        let config =
            DrafterConfig::from_dir(&dir.join("checkpoint")).unwrap_or_else(|error| panic!("{error}"));
        let windows: Vec<Option<usize>> = config.layers.iter().map(|layer| layer.window).collect();
        let causal: Vec<bool> = config.layers.iter().map(|layer| layer.causal).collect();
        assert_eq!(json!(windows), derived["window"], "{variant}");
        assert_eq!(json!(causal), derived["causal"], "{variant}");
        assert_eq!(json!(config.block_size), derived["block_size"], "{variant}");
        assert_eq!(json!(config.mask_token_id), derived["mask_token_id"], "{variant}");
        assert_eq!(json!(config.target_layer_ids), derived["target_layer_ids"], "{variant}");
        assert_eq!(json!(config.draft_vocab_size), derived["draft_vocab_size"], "{variant}");
        assert_rope(&config.rope, &derived);
        assert_eq!(config.has_reduced_vocabulary(), variant == "reduced");
        assert_eq!(config.tap_width(), 64 * config.target_layer_ids.len());
        assert_eq!(config.ignored_keys, [""; 0]);
    }
}

#[test]
fn the_demo_drafter_fits_the_demo_target() {
    let drafter = DrafterConfig::from_dir(&demo("drafter")).unwrap_or_else(|error| panic!("{error}"));
    let target = TargetConfig::from_dir(&demo("target")).unwrap_or_else(|error| panic!("{error}"));
    drafter.check_target(&target).unwrap_or_else(|problem| panic!("{problem}"));
    assert_eq!((drafter.block_size, drafter.mask_token_id), (8, 4350));
    assert_eq!(drafter.rope.yarn.as_ref().map(|yarn| yarn.attention_factor), Some(1.0));

    let mut other = target.clone();
    other.num_hidden_layers = 7;
    assert!(
        drafter.check_target(&other).expect_err("another depth").to_string().contains("num_target_layers")
    );
    other = target.clone();
    other.hidden_size = 512;
    assert!(drafter.check_target(&other).expect_err("another width").to_string().contains("512"));
    other = target;
    other.vocab_size += 1;
    assert!(drafter.check_target(&other).expect_err("another vocabulary").to_string().contains("vocab_size"));
}

#[test]
fn taps_beyond_the_target_are_refused() {
    let config = with(
        "full",
        &[("num_target_layers", Value::Null), ("dflash_config.target_layer_ids", json!([1, 99]))],
    );
    let drafter = parse(&config);
    let mut target = TargetConfig::from_dir(&golden("base/checkpoint")).expect("supported");
    (target.vocab_size, target.hidden_size) = (drafter.vocab_size, drafter.hidden_size);
    let message = drafter.check_target(&target).expect_err("layer 99 of 4").to_string();
    assert!(
        message.contains("target_layer_ids is 99") || message.contains("target_layer_ids` is 99"),
        "{message}"
    );
}

#[test]
fn attention_factor_by_its_three_rules() {
    let rope =
        |changes: &[(&str, Value)]| parse(&with("window", changes)).rope.yarn.expect("yarn").attention_factor;
    let plain = 0.1 * 8f64.ln() + 1.0;
    assert!((rope(&[]) - plain).abs() < 1e-15, "neither strength");
    assert!((rope(&[("rope_scaling.mscale", json!(2.0))]) - plain).abs() < 1e-15, "one strength alone");
    let ratio = [("rope_scaling.mscale", json!(0.5)), ("rope_scaling.mscale_all_dim", json!(2.0))];
    let expected = (0.05 * 8f64.ln() + 1.0) / (0.2 * 8f64.ln() + 1.0);
    assert!((rope(&ratio) - expected).abs() < 1e-15, "both strengths");
    let [mscale, all_dim] = ratio;
    assert_eq!(rope(&[mscale, all_dim, ("rope_scaling.attention_factor", json!(0.75))]), 0.75, "given");
}

#[test]
fn nested_theta_is_read_and_a_missing_one_never_defaulted() {
    assert_eq!(parse(&config("yarn")).rope.theta, 50000.0);
    let problem = DrafterConfig::parse(&with("full", &[("rope_theta", Value::Null)])).expect_err("no theta");
    assert!(problem.to_string().contains("`rope_theta` is missing"), "{problem}");
}

#[test]
fn block_size_and_mask_id_in_either_place_but_agreeing() {
    let moved = with("full", &[("block_size", Value::Null), ("dflash_config.block_size", json!(8))]);
    assert_eq!(parse(&moved), parse(&config("full")));
    let conflict = with("full", &[("dflash_config.block_size", json!(16))]);
    let message = DrafterConfig::parse(&conflict).expect_err("8 and 16").to_string();
    assert!(message.contains("block_size") && message.contains("16"), "{message}");
    let moved = with("full", &[("mask_token_id", json!(318)), ("dflash_config.mask_token_id", Value::Null)]);
    assert_eq!(parse(&moved).mask_token_id, 318);
}

#[test]
fn taps_default_to_the_published_rule() {
    let derived = with(
        "yarn",
        &[
            ("dflash_config.target_layer_ids", Value::Null),
            ("num_hidden_layers", json!(6)),
            ("layer_types", Value::Null),
        ],
    );
    assert_eq!(parse(&derived).target_layer_ids, [1, 12, 24, 35, 47, 58]);
    let unknown =
        with("full", &[("dflash_config.target_layer_ids", Value::Null), ("num_target_layers", Value::Null)]);
    let problem = DrafterConfig::parse(&unknown).expect_err("nothing to derive from");
    assert!(matches!(problem, ConfigProblem::Missing { .. }), "{problem}");
}

#[test]
fn windows_and_causality_by_the_rules() {
    let layers = |variant: &str, changes: &[(&str, Value)]| parse(&with(variant, changes)).layers;
    let layer = |window, causal| DrafterLayer { window, causal };
    // `is_causal` wins over `dflash_config.causal`, which wins over the layer types.
    let mixed = [layer(Some(12), false), layer(None, false), layer(Some(12), false)];
    assert_eq!(layers("window", &[]), mixed);
    assert_eq!(layers("window", &[("is_causal", json!(true))]), mixed.map(|at| layer(at.window, true)));
    let by_type = layers("window", &[("dflash_config.causal", Value::Null)]);
    assert_eq!(by_type, [layer(Some(12), true), layer(None, false), layer(Some(12), true)]);
    // `swa_window_size` wins over `sliding_window`, and does not window layers that are called full.
    let narrow = layers("window", &[("dflash_config.swa_window_size", json!(9))]);
    assert_eq!(narrow, [layer(Some(9), false), layer(None, false), layer(Some(9), false)]);
    // `use_swa` windows every layer only if no layer type does, and makes none causal.
    assert_eq!(layers("window", &[("dflash_config.use_swa", json!(true))]), mixed);
    let all_full = [("layer_types", json!(["full_attention", "full_attention"]))];
    assert_eq!(layers("window_keys", &all_full), [layer(Some(10), false); 2]);
    assert_eq!(layers("window_keys", &[("dflash_config.use_swa", json!(false))]), [layer(None, false); 2]);
    let width_from_top = [("dflash_config.swa_window_size", Value::Null), ("sliding_window", json!(7))];
    assert_eq!(layers("window_keys", &width_from_top), [layer(Some(7), false); 2]);
}

#[test]
fn a_window_is_never_shorter_than_the_block() {
    let exactly = with("window", &[("sliding_window", json!(8))]);
    assert_eq!(parse(&exactly).layers[0].window, Some(8));
    for (config, key) in [
        (with("window", &[("sliding_window", json!(7))]), "sliding_window"),
        (
            with("window_keys", &[("dflash_config.swa_window_size", json!(3))]),
            "dflash_config.swa_window_size",
        ),
    ] {
        let problem = DrafterConfig::parse(&config).expect_err("shorter than the block");
        assert!(matches!(problem, ConfigProblem::Invalid { .. }));
        assert!(problem.to_string().contains(&format!("`{key}`")), "{problem}");
    }
    let absent = with("window", &[("sliding_window", Value::Null)]);
    assert!(matches!(DrafterConfig::parse(&absent), Err(ConfigProblem::Missing { .. })));
}

#[test]
fn what_is_not_implemented_is_refused_by_name_and_value() {
    let cases = [
        ("architectures", json!(["DFlash2DraftModel"])),
        ("architectures", json!(["DominoDraftModel"])),
        ("architectures", json!(["DSparkDraftModel"])),
        ("model_type", json!("llama")),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("dflash_config.sample_from_anchor", json!(true)),
        ("dflash_config.use_aux_hidden_state", json!(false)),
        ("selector_rank", json!(256)),
        ("conv_kernel_size", json!(2)),
        ("input_embedding_scale", json!(2.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("markov_rank", json!(256)),
        ("quantization_config", json!({ "quant_method": "fp8" })),
        ("layer_types", json!(["full_attention", "linear_attention"])),
        ("rope_scaling", json!({ "type": "linear", "factor": 2.0 })),
    ];
    for (key, value) in cases {
        let problem = DrafterConfig::parse(&with("full", &[(key, value.clone())])).expect_err(key);
        assert!(matches!(problem, ConfigProblem::Unsupported { .. }), "{key}: {problem}");
        let message = problem.to_string();
        assert!(message.contains(&format!("`{key}")), "{message}");
        let shown = value.get("type").unwrap_or(&value).to_string();
        assert!(message.contains(&shown), "{message}");
    }
    let implied = with(
        "full",
        &[("layer_types", Value::Null), ("use_sliding_window", json!(true)), ("max_window_layers", json!(1))],
    );
    let message = DrafterConfig::parse(&implied).expect_err("implied windows").to_string();
    assert!(message.contains("use_sliding_window"), "{message}");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let cases = [
        ("block_size", json!(1)),
        ("block_size", json!(100_000)),
        ("dflash_config.mask_token_id", json!(320)),
        ("dflash_config.mask_token_id", json!(-1)),
        ("dflash_config.target_layer_ids", json!([])),
        ("dflash_config.target_layer_ids", json!([1, 1])),
        ("dflash_config.target_layer_ids", json!([1, 6])),
        ("dflash_config.target_layer_ids", json!([-1, 2])),
        ("num_key_value_heads", json!(3)),
        ("num_attention_heads", json!(0)),
        ("head_dim", json!(15)),
        ("hidden_size", json!(0)),
        ("vocab_size", json!(0)),
        ("draft_vocab_size", json!(321)),
        ("draft_vocab_size", json!(0)),
        ("rms_norm_eps", json!(0)),
        ("layer_types", json!(["full_attention"])),
        ("is_causal", json!("no")),
    ];
    for (key, value) in cases {
        let problem = DrafterConfig::parse(&with("full", &[(key, value.clone())])).expect_err(key);
        assert!(matches!(problem, ConfigProblem::Invalid { .. }), "{key}: {problem}");
        assert!(problem.to_string().contains(&format!("`{key}` is {value}")), "{problem}");
    }
}

#[test]
fn unknown_dflash_keys_are_reported() {
    let config = with(
        "full",
        &[("dflash_config.mask_token", json!("<|mask|>")), ("dflash_config.num_anchors", json!(512))],
    );
    assert_eq!(parse(&config).ignored_keys, ["dflash_config.num_anchors"]);
}
