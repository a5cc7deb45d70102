//! Crates depend downwards only, and sources keep the rules of the house.

use std::fs;

use kd_tests::{layers, repository, tidy};
use serde_json::json;

#[test]
fn crates_depend_on_lower_layers_only() {
    let metadata = layers::metadata();
    assert!(metadata["packages"].as_array().is_some_and(|p| p.len() >= 12), "the workspace has lost crates");
    assert_eq!(layers::forbidden(&metadata), [""; 0]);
}

#[test]
fn a_planted_edge_is_caught() {
    for (from, to) in [
        ("kd-tensor", "kd-sample"),
        ("kd-ddtree", "kd-tensor"),
        ("kd-moe", "kd-attn"),
        ("kd-attn", "kd-model"),
        ("kd-model", "kd-cli"),
        ("kd-cli", "kd-tests"),
        ("kd-engine", "kernel-gen"),
        ("kernel-gen", "kd-tensor"),
        ("xtask", "kd-kernels"),
    ] {
        let mut metadata = layers::metadata();
        let packages = metadata["packages"].as_array_mut().expect("packages");
        let package = packages.iter_mut().find(|p| p["name"] == from).expect("the crate");
        package["dependencies"].as_array_mut().expect("a list").push(json!({ "name": to, "kind": null }));
        assert_eq!(layers::forbidden(&metadata), [format!("{from} -> {to}")]);
    }
    let package = |name: &str, to: &[&str]| {
        let dependencies: Vec<_> = to.iter().map(|name| json!({ "name": name })).collect();
        json!({ "name": name, "dependencies": dependencies })
    };
    let serve = json!({ "packages": [
        package("kd-serve", &["kd-engine", "kd-text"]), package("kd-engine", &[]), package("kd-text", &[]),
    ] });
    assert_eq!(layers::forbidden(&serve), ["kd-serve -> kd-text"]);
    assert_eq!(layers::forbidden(&json!({ "packages": [package("kd-new", &[])] })), ["kd-new has no layer"]);
}

#[test]
fn sources_are_tidy() {
    assert!(tidy::sources(repository()).len() > 100, "sources were not found");
    assert_eq!(tidy::violations(repository()), [""; 0]);
}

#[test]
fn planted_untidiness_is_caught() {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    let long = format!("//! Long.\n{}", "// line\n".repeat(tidy::LARGEST / 8));
    write("crates/kd-a/Cargo.toml", "");
    write("crates/kd-a/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\nmod b;\n");
    write("crates/kd-a/src/b/main.rs", "//! No crate root.\n");
    write("target/debug/build/x.rs", "not ours");
    assert_eq!(tidy::violations(dir.path()), [""; 0]);

    write("crates/kd-a/src/c.rs", "use std::fs;\n");
    write("crates/kd-a/src/long.rs", &long);
    write("crates/kd-b/Cargo.toml", "");
    write("crates/kd-b/src/main.rs", "//! B.\nfn main() {}\n");
    write("crates/kd-tensor/Cargo.toml", "");
    write("crates/kd-tensor/src/lib.rs", "//! May be unsafe.\n");
    write("tests/Cargo.toml", "");
    write("tests/lib.rs", "//! Tests. // #![forbid(unsafe_code)]\n");
    assert_eq!(
        tidy::violations(dir.path()),
        [
            "crates/kd-a/src/c.rs: begins without //!".to_owned(),
            format!("crates/kd-a/src/long.rs: {} bytes, at most {}", long.len(), tidy::LARGEST),
            "crates/kd-b/src/main.rs: does not forbid unsafe code".to_owned(),
            "tests/lib.rs: does not forbid unsafe code".to_owned(),
        ]
    );
}
