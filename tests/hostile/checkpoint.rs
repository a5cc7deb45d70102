//! Indexes, shards, and values that no weight may have.

use std::fs;

use serde_json::{Map, Value, json};

use crate::case::{Case, all_refused, edit_json, golden_model};
use crate::header::poke;

const INDEX: &str = "model.safetensors.index.json";
const NORM: &str = "language_model.model.layers.1.input_layernorm.weight";

#[test]
fn damaged_indexes() {
    all_refused(&index(), &kd_tests::golden("base/checkpoint"), golden_model);
}

#[test]
fn missing_and_foreign_shards() {
    all_refused(&shards(), &kd_tests::golden("base/checkpoint"), golden_model);
}

#[test]
fn weights_that_are_no_numbers() {
    all_refused(&values(), &kd_tests::golden("base/checkpoint"), golden_model);
}

fn text(name: &str, says: &[&str], text: &'static str) -> Case {
    Case::new(name, says, move |dir| fs::write(dir.join(INDEX), text).expect("written"))
}

fn placed(name: &str, shard: Value, says: &[&str]) -> Case {
    Case::new(name, says, move |dir| {
        edit_json(dir.join(INDEX), |index| index["weight_map"][NORM] = shard.clone())
    })
}

pub(crate) fn index() -> Vec<Case> {
    let outside = |name: &str, shard: &str| placed(name, json!(shard), &[NORM, "plain name"]);
    vec![
        text("an empty index", &["malformed index"], ""),
        text("an index of nothing", &["weight_map"], "{}"),
        text("an index that is a list", &["malformed index"], "[]"),
        text("an index cut short", &["malformed index"], "{\"weight_map\": {\"a\": \"model-0000"),
        text("a map that is a list", &["malformed index"], "{\"weight_map\": [\"a\"]}"),
        text("a map that is null", &["malformed index"], "{\"weight_map\": null}"),
        text("an empty map", &["missing"], "{\"weight_map\": {}}"),
        text(
            "a tensor twice",
            &["`a`", "twice"],
            "{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}}",
        ),
        Case::new("lists without end", &["malformed index"], |dir| {
            fs::write(dir.join(INDEX), "[".repeat(1 << 20)).expect("written");
        }),
        Case::new("nested without end under another key", &["malformed index"], |dir| {
            let nested = format!("{{\"metadata\":{}{}}}", "[".repeat(1 << 16), "]".repeat(1 << 16));
            fs::write(dir.join(INDEX), nested).expect("written");
        }),
        placed("a number for a shard", json!(2), &["malformed index"]),
        placed("null for a shard", Value::Null, &["malformed index"]),
        placed("a shard that is not there", json!("model-9.safetensors"), &["model-9.safetensors"]),
        placed("the wrong shard", json!("model-00001-of-000007.safetensors"), &[NORM, "no tensor"]),
        outside("the folder above", "../model-00002-of-000007.safetensors"),
        outside("an absolute path", "/etc/passwd"),
        outside("an absolute path to a shard", "/tmp/model.safetensors"),
        outside("a folder below", "sub/model.safetensors"),
        outside("a detour", "./model-00002-of-000007.safetensors"),
        outside("dots", ".."),
        outside("a dot", "."),
        outside("nothing", ""),
        outside("a backslash", "..\\model.safetensors"),
        outside("a zero byte", "model\0.safetensors"),
        outside("another kind of file", "config.json"),
        Case::new("a tensor left out", &[NORM, "nothing of it"], |dir| {
            edit_json(dir.join(INDEX), |index| {
                index["weight_map"].as_object_mut().expect("a map").remove(NORM);
            });
        }),
        Case::new("a tensor too many", &["ghost"], |dir| {
            edit_json(dir.join(INDEX), |index| {
                index["weight_map"]["ghost"] = json!("model-00002-of-000007.safetensors");
            });
        }),
        Case::new("a hundred thousand ghosts", &["ghost"], |dir| {
            edit_json(dir.join(INDEX), |index| {
                let ghost = |i: usize| (format!("ghost.{i}"), json!("model-00002-of-000007.safetensors"));
                index["weight_map"] = Value::Object((0..100_000).map(ghost).collect::<Map<_, _>>());
            });
        }),
    ]
}

pub(crate) fn shards() -> Vec<Case> {
    const SHARD: &str = "model-00003-of-000007.safetensors";
    vec![
        Case::new("a shard removed", &[SHARD], |dir| fs::remove_file(dir.join(SHARD)).expect("removed")),
        Case::new("a folder for a shard", &[SHARD, "not a regular file"], |dir| {
            fs::remove_file(dir.join(SHARD)).expect("removed");
            fs::create_dir(dir.join(SHARD)).expect("made");
        }),
        Case::new("two shards swapped", &["no tensor"], |dir| {
            let (a, b, c) = (dir.join(SHARD), dir.join("model-00002-of-000007.safetensors"), dir.join("c"));
            fs::rename(&a, &c)
                .and_then(|()| fs::rename(&b, &a))
                .and_then(|()| fs::rename(&c, &b))
                .expect("swapped");
        }),
        Case::new("one shard in place of another", &["no tensor"], |dir| {
            fs::copy(dir.join("model-00002-of-000007.safetensors"), dir.join(SHARD)).expect("copied");
        }),
        Case::new("neither index nor weights", &["no weights"], |dir| {
            fs::remove_file(dir.join(INDEX)).expect("removed");
        }),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    const EXPERT: &str = "language_model.model.layers.1.mlp.experts.3.up_proj";
    let value = |name: &str, tensor: String, at: usize, bytes: &'static [u8], says: &[&str]| {
        let shown = tensor.clone();
        let says = [&[shown.as_str()], says].concat();
        Case::new(name, &says, move |dir| {
            poke(dir, "model-00002-of-000007.safetensors", &tensor, at, bytes);
        })
    };
    let scale = || format!("{EXPERT}.weight_scale");
    let shape = || format!("{EXPERT}.weight_shape");
    let bias = || "language_model.model.layers.1.mlp.gate.e_score_correction_bias".to_owned();
    vec![
        value("a scale of NaN", scale(), 0, &[0xc0, 0x7f], &["element 0", "NaN", "finite"]),
        value("the last scale NaN", scale(), 510, &[0xff, 0xff], &["element 255", "NaN"]),
        value("a scale of +inf", scale(), 2, &[0x80, 0x7f], &["element 1", "inf"]),
        value("a scale of -inf", scale(), 2, &[0x80, 0xff], &["element 1", "-inf"]),
        value("a gain of NaN", NORM.to_owned(), 4, &[0xc0, 0x7f], &["element 2", "NaN"]),
        value("a gain of inf", NORM.to_owned(), 0, &[0x80, 0x7f], &["element 0", "inf"]),
        value("a router bias of NaN", bias(), 4, &[0, 0, 0xc0, 0x7f], &["element 1", "NaN"]),
        value("a router bias of inf", bias(), 0, &[0, 0, 0x80, 0x7f], &["element 0", "inf"]),
        value("a stale shape", shape(), 0, &[32, 0, 0, 0], &["element 0", "32", "64"]),
        value("a negative shape", shape(), 0, &[0xff; 4], &["-1", "64"]),
        value("a shape of zero", shape(), 4, &[0; 4], &["element 1", "expected 128"]),
    ]
}
