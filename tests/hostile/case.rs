//! One malformed input: what is spoilt, and what the error line must say.

use std::fs;
use std::path::{Path, PathBuf};

use kd_tests::binary::run;
use serde_json::Value;
use tempfile::TempDir;

/// A way to spoil a folder.
pub(crate) struct Case {
    /// What is wrong.
    pub(crate) name: String,
    /// Does it.
    pub(crate) spoil: Box<dyn Fn(&Path)>,
    /// What the error line must contain.
    pub(crate) says: Vec<String>,
}

impl Case {
    pub(crate) fn new(name: &str, says: &[&str], spoil: impl Fn(&Path) + 'static) -> Self {
        let says = says.iter().map(|&word| word.to_owned()).collect();
        Self { name: name.to_owned(), spoil: Box::new(spoil), says }
    }
}

/// A copy of a folder, to be spoilt.
pub(crate) fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    to
}

/// Rewrites a JSON file.
pub(crate) fn edit_json(file: PathBuf, edit: impl FnOnce(&mut Value)) {
    let mut value = kd_tests::json(&file);
    edit(&mut value);
    fs::write(file, value.to_string()).expect("written");
}

/// Runs every case on a fresh copy of `base`: `args` get the spoilt folder and a path that must not come into being.
pub(crate) fn all_refused(cases: &[Case], base: &Path, args: impl Fn(&Path, &Path) -> Vec<String>) {
    for Case { name, spoil, says } in cases {
        let folder = copy(base);
        spoil(folder.path());
        let results = tempfile::tempdir().expect("a folder");
        let out = results.path().join("out");
        refused(name, &args(folder.path(), &out), says);
        let left = fs::read_dir(results.path()).expect("a folder").count();
        assert_eq!(left, 0, "{name}: something was left behind");
    }
}

/// Runs `kd`: exit code 1 with one line, or 2; no panic, no output, and every one of `says` on stderr.
#[track_caller]
pub(crate) fn refused(name: &str, args: &[String], says: &[String]) {
    let ran = run(args);
    let stderr = &ran.stderr;
    assert!(matches!(ran.code, 1 | 2), "{name}: exit code {}: {stderr}", ran.code);
    assert!(!stderr.contains("panicked"), "{name}: {stderr}");
    assert!(ran.stdout.is_empty(), "{name}: printed {:?}", ran.stdout);
    if ran.code == 1 {
        assert_eq!(stderr.lines().count(), 1, "{name}: one line expected: {stderr}");
        assert!(stderr.starts_with("kd: "), "{name}: {stderr}");
    }
    assert!(stderr.len() < 2000, "{name}: {} bytes are no line to read", stderr.len());
    for word in says {
        assert!(stderr.contains(word.as_str()), "{name}: `{word}` is not in: {stderr}");
    }
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// `kd golden model` on the folder.
pub(crate) fn golden_model(model: &Path, out: &Path) -> Vec<String> {
    let inputs = text(&kd_tests::golden("base/inputs.safetensors"));
    let args = [
        "golden",
        "model",
        "--threads",
        "1",
        "--model",
        &text(model),
        "--inputs",
        &inputs,
        "--out",
        &text(out),
    ];
    args.map(str::to_owned).to_vec()
}
