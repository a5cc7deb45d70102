//! `kd golden text` and `kd golden sampling` on files without the answers, against the files with them.

use std::path::Path;

use kd_tests::binary::run;
use kd_tests::{golden, json};
use serde_json::Value;

/// What the command makes of `inputs`.
fn computed(args: &[&str], inputs: &Path) -> Value {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.json");
    let paths = ["--cases", inputs.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")];
    let ran = run([&["golden"], args, &paths].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    json(&out)
}

#[test]
fn tokenizer_cases() {
    for name in ["small", "bytes256"] {
        let folder = golden("tokenizer").join(name);
        let args = ["text", "tokenizer", "--model", folder.to_str().expect("UTF-8")];
        assert_eq!(
            computed(&args, &folder.join("cases.inputs.json")),
            json(&folder.join("cases.json")),
            "{name}"
        );
    }
}

/// Every case must agree; those marked `tolerant` agree too, though they need not.
#[test]
fn chat_and_parser_cases() {
    for name in ["chat", "parser"] {
        let file = |suffix: &str| golden("text").join(format!("{name}{suffix}"));
        let (found, expected) = (computed(&["text", name], &file(".inputs.json")), json(&file(".json")));
        let (found, expected) = (found.as_array().expect("cases"), expected.as_array().expect("cases"));
        assert_eq!(found.len(), expected.len());
        assert!(!found.is_empty());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found, expected);
        }
    }
}

/// Integers, texts and structure exactly, other numbers within 1e-5.
fn agrees(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agrees(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            b.iter().all(|(key, b)| a.get(key).is_some_and(|a| agrees(a, b)))
        }
        (Value::Number(a), Value::Number(b)) if !a.is_u64() || !b.is_u64() => {
            let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
            (a - b).abs() <= 1e-5 * b.abs().max(1.0)
        }
        _ => found == expected,
    }
}

#[test]
fn sampling_cases() {
    let folder = golden("sampling");
    let found = computed(&["sampling"], &folder.join("sampling.inputs.json"));
    let expected = json(&folder.join("sampling.json"));
    for section in ["philox", "noise", "cases"] {
        let (found, expected) = (found[section].as_array(), expected[section].as_array().expect("items"));
        assert!(!expected.is_empty(), "{section}");
        for (i, (found, expected)) in found.expect("items").iter().zip(expected).enumerate() {
            let (found, expected) = (&found["expect"], &expected["expect"]);
            assert!(agrees(found, expected), "{section}[{i}]: {found} instead of {expected}");
        }
        assert_eq!(found.map(Vec::len), Some(expected.len()));
    }
    // Draws whose two best values nearly tie may fall either way; the golden counts them.
    for (found, expected) in items(&found).zip(items(&expected)) {
        let (found, expected) = (&found["expect"], &expected["expect"]);
        let near_ties = expected["draws_closer_than_1e-5"].as_i64().expect("a count");
        let counts = |value: &Value| -> Vec<i64> {
            value["counts"].as_array().expect("counts").iter().map(|n| n.as_i64().expect("a count")).collect()
        };
        let pairs: Vec<(i64, i64)> = counts(found).into_iter().zip(counts(expected)).collect();
        assert!(pairs.iter().all(|(a, b)| (a - b).abs() <= near_ties), "{pairs:?}");
    }
}

fn items(file: &Value) -> impl Iterator<Item = &Value> {
    let list = file["statistics"].as_array().expect("statistics");
    assert!(!list.is_empty());
    list.iter()
}

/// A comparison that could not fail would be worthless.
#[test]
fn the_comparison_sees_a_difference() {
    let value = serde_json::json!({"token": 3, "kept": [1, 3], "logprob": -0.5});
    assert!(agrees(&value, &value));
    for (key, other) in [
        ("token", serde_json::json!(4)),
        ("kept", serde_json::json!([1])),
        ("logprob", serde_json::json!(-0.6)),
    ] {
        let mut planted = value.clone();
        planted[key] = other;
        assert!(!agrees(&planted, &value), "{key}");
    }
}
