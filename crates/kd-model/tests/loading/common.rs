//! Goldens, and rotary frequencies by the formulas of the golden README.

use std::path::{Path, PathBuf};

use kd_model::config::RopeConfig;
use serde_json::Value;

pub(crate) fn golden(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden")).join(path)
}

pub(crate) fn demo(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo")).join(path)
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("file")).expect("JSON")
}

pub(crate) fn assert_close(found: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().expect("a number");
    assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{what}: {found}, expected {expected}");
}

/// The frequencies and the gain of cosines and sines that `rope` stands for agree with `golden.json`.
pub(crate) fn assert_rope(rope: &RopeConfig, derived: &Value) {
    let inv_freq = derived["inv_freq"].as_array().expect("a list");
    assert_eq!(rope.dim, 2 * inv_freq.len());
    for (i, expected) in inv_freq.iter().enumerate() {
        assert_close(inv_freq_of(rope, i), expected, &format!("inv_freq[{i}]"));
    }
    let gain = rope.yarn.as_ref().map_or(1.0, |yarn| yarn.attention_factor);
    assert_close(gain, &derived["rope_gain"], "rope_gain");
}

fn inv_freq_of(rope: &RopeConfig, i: usize) -> f64 {
    let dim = rope.dim as f64;
    let plain = rope.theta.powf(-2.0 * i as f64 / dim);
    let Some(yarn) = &rope.yarn else { return plain };
    let turns = |r: f64| {
        dim * (yarn.original_max_position as f64 / (2.0 * std::f64::consts::PI * r)).ln()
            / (2.0 * rope.theta.ln())
    };
    let low = turns(yarn.beta_fast).floor().max(0.0);
    let high = turns(yarn.beta_slow).ceil().min(dim - 1.0);
    let high = if low == high { high + 0.001 } else { high };
    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
    plain * (1.0 - ramp) + plain / yarn.factor * ramp
}
