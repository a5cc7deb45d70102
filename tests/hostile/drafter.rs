//! Drafter checkpoints.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::case::{Case, all_refused, edit_json, text};
use crate::header::poke;

fn golden_drafter(drafter: &Path, out: &Path) -> Vec<String> {
    let inputs = text(&kd_tests::golden("drafter/reduced/inputs.safetensors"));
    let args = [
        "golden",
        "drafter",
        "--drafter",
        &text(drafter),
        "--inputs",
        &inputs,
        "--out",
        &text(out),
        "--threads",
        "1",
    ];
    args.map(str::to_owned).to_vec()
}

#[test]
fn hostile_drafter_configurations() {
    all_refused(&config(), &kd_tests::golden("drafter/reduced/checkpoint"), golden_drafter);
}

#[test]
fn hostile_drafter_tensors() {
    all_refused(&tensors(), &kd_tests::golden("drafter/reduced/checkpoint"), golden_drafter);
}

fn set(key: &'static str, value: Value) -> Case {
    let name = format!("{key} = {value}");
    Case::new(&name, &[key.rsplit('.').next().expect("a part")], move |dir| {
        edit_json(dir.join("config.json"), |config| match key.split_once('.') {
            Some((section, key)) => config[section][key] = value.clone(),
            None => config[key] = value.clone(),
        });
    })
}

pub(crate) fn config() -> Vec<Case> {
    vec![
        set("architectures", json!(["DFlash2DraftModel"])),
        set("dflash_config", Value::Null),
        set("dflash_config", json!([])),
        set("block_size", json!(1)),
        set("block_size", json!(u64::MAX)),
        set("dflash_config.mask_token_id", json!(320)),
        set("dflash_config.mask_token_id", json!(-1)),
        set("dflash_config.target_layer_ids", json!([])),
        set("dflash_config.target_layer_ids", json!([1, 1])),
        set("dflash_config.target_layer_ids", json!([1, 6])),
        set("dflash_config.target_layer_ids", json!([1, u64::MAX])),
        set("num_key_value_heads", json!(3)),
        set("num_attention_heads", json!(u64::MAX)),
        set("head_dim", json!(15)),
        set("head_dim", json!(65_538)),
        set("draft_vocab_size", json!(321)),
        set("layer_types", json!(["full_attention"])),
        set("layer_types", json!(["full_attention", "linear_attention"])),
        set("rope_theta", Value::Null),
        set("rms_norm_eps", json!(1e-300)),
        set("selector_rank", json!(64)),
        set("is_causal", json!("no")),
    ]
}

pub(crate) fn tensors() -> Vec<Case> {
    const FILE: &str = "model.safetensors";
    let difference = |name: &str, at: usize, value: i64| {
        Case::new(name, &["d2t", &format!("element {at}"), &value.to_string()], move |dir| {
            poke(dir, FILE, "d2t", at * 8, &value.to_le_bytes());
        })
    };
    vec![
        difference("an id beyond the vocabulary", 0, 320),
        difference("an id below 0", 3, -4),
        difference("an id that overflows", 5, i64::MAX),
        difference("an id far below", 5, i64::MIN),
        Case::new("an id twice", &["d2t", "element 1", "4"], |dir| {
            poke(dir, FILE, "d2t", 0, &[5i64.to_le_bytes(), 4i64.to_le_bytes()].concat());
        }),
        Case::new("a mark that is no boolean", &["t2d", "element 7", "2"], |dir| {
            poke(dir, FILE, "t2d", 7, &[2])
        }),
        Case::new("a mark that contradicts", &["t2d", "element 319"], |dir| {
            let was = fs::read(dir.join(FILE)).expect("a file");
            // The last mark is flipped whichever it was: one of the two files is as it came.
            poke(dir, FILE, "t2d", 319, &[1]);
            if fs::read(dir.join(FILE)).expect("a file") == was {
                poke(dir, FILE, "t2d", 319, &[0]);
            }
        }),
        Case::new("a gain of NaN", &["norm.weight", "NaN"], |dir| {
            poke(dir, FILE, "norm.weight", 0, &[0xc0, 0x7f]);
        }),
        Case::new("no weights", &["no weights"], |dir| fs::remove_file(dir.join(FILE)).expect("removed")),
    ]
}
