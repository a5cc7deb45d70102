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
#[track_caller]
pub(crate) fn all_refused(cases: &[Case], base: &Path, args: impl Fn(&Path, &Path) -> Vec<String>) {
    let mut accepted = Vec::new();
    for Case { name, spoil, says } in cases {
        let folder = copy(base);
        spoil(folder.path());
        let results = tempfile::tempdir().expect("a folder");
        let out = results.path().join("out");
        let wrong = wrong(&args(folder.path(), &out), says);
        let left = fs::read_dir(results.path()).expect("a folder").count();
        let wrong = wrong.or_else(|| (left > 0).then(|| "something was left behind".to_owned()));
        accepted.extend(wrong.map(|wrong| format!("{name}: {wrong}")));
    }
    assert!(accepted.is_empty(), "{} of {}:\n{}", accepted.len(), cases.len(), accepted.join("\n"));
}

/// Runs `kd`, which must refuse.
#[track_caller]
pub(crate) fn refused(name: &str, args: &[String], says: &[String]) {
    if let Some(wrong) = wrong(args, says) {
        panic!("{name}: {wrong}");
    }
}

/// Runs `kd`: exit code 1 with one line, or 2; no panic, no output, and every one of `says` on stderr. What is otherwise?
fn wrong(args: &[String], says: &[String]) -> Option<String> {
    let ran = run(args);
    let stderr = &ran.stderr;
    if !matches!(ran.code, 1 | 2) || stderr.contains("panicked") {
        return Some(format!("exit code {}: {stderr}", ran.code));
    }
    if !ran.stdout.is_empty() {
        return Some(format!("printed {:?}", ran.stdout));
    }
    if ran.code == 1 && (stderr.lines().count() != 1 || !stderr.starts_with("kd: ")) {
        return Some(format!("no single line: {stderr}"));
    }
    if stderr.len() > 2000 {
        return Some(format!("{} bytes are no line to read", stderr.len()));
    }
    let unsaid = says.iter().find(|word| !stderr.contains(word.as_str()))?;
    Some(format!("`{unsaid}` is not in: {stderr}"))
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
