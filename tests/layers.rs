//! Which crate may depend on which.

use std::process::Command;

use serde_json::Value;

use crate::repository;

/// The crates of `crates/`, bottom to top. A crate may depend on crates of lower layers only.
const LAYERS: [&[&str]; 7] = [
    &["kd-tensor", "kd-ddtree", "kd-text", "kd-sample"],
    &["kd-kernels"],
    &["kd-moe", "kd-attn"],
    &["kd-model"],
    &["kd-engine"],
    &["kd-serve"],
    &["kd-cli"],
];
/// Tools that must build without the engine; they may use each other. Their tests may read back what they wrote.
const TOOLS: [&str; 2] = ["kernel-gen", "xtask"];
/// Crates that may depend on anything.
const FREE: [&str; 1] = ["kd-tests"];
/// Crates that may depend on these alone, whatever their layer.
const ONLY: [(&str, &[&str]); 1] = [("kd-serve", &["kd-engine"])];

/// What `cargo metadata` says about this workspace.
///
/// # Panics
/// If cargo cannot be run.
pub fn metadata() -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(repository());
    let output = cargo.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Every edge of `metadata` that the layers forbid, and every crate that they do not know. Dependencies for building
/// and testing count like all others, but for the tests of tools.
///
/// # Panics
/// If `metadata` is not what cargo writes.
pub fn forbidden(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("packages");
    let names: Vec<&str> = packages.iter().map(|p| p["name"].as_str().expect("a name")).collect();
    let mut found = Vec::new();
    for (package, &name) in packages.iter().zip(&names) {
        if !is_known(name) {
            found.push(format!("{name} has no layer"));
        }
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        for dependency in dependencies {
            let to = dependency["name"].as_str().expect("a name");
            let only_tests = TOOLS.contains(&name) && dependency["kind"] == "dev";
            if names.contains(&to) && !only_tests && !may_depend(name, to) {
                found.push(format!("{name} -> {to}"));
            }
        }
    }
    found
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn is_known(name: &str) -> bool {
    layer(name).is_some() || TOOLS.contains(&name) || FREE.contains(&name)
}

fn may_depend(from: &str, to: &str) -> bool {
    if FREE.contains(&from) {
        return true;
    }
    if let Some((_, only)) = ONLY.iter().find(|(name, _)| *name == from) {
        return only.contains(&to);
    }
    match (layer(from), layer(to)) {
        (Some(from), Some(to)) => to < from,
        (None, None) => TOOLS.contains(&from) && TOOLS.contains(&to),
        _ => false,
    }
}
