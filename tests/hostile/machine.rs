//! A full disk, no memory, and Ctrl-C.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kd_tests::binary::kd;

use crate::case::{golden_model, text};

/// Runs `kd` from a shell, so that limits and redirections can be set.
fn shell(script: &str) -> (i32, String) {
    let output = Command::new("sh").arg("-c").arg(script).env("KD", kd()).output().expect("sh");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code().unwrap_or_else(|| panic!("{}: {stderr}", output.status)), stderr)
}

fn quoted(args: &[String]) -> String {
    args.iter().map(|arg| format!("'{arg}'")).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn one_line((code, stderr): &(i32, String), says: &str) {
    assert_eq!(*code, 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(stderr.contains(says), "`{says}` is not in: {stderr}");
}

/// Nothing beside and nothing below the final name.
#[track_caller]
fn left_nothing(folder: &Path) {
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "something was left behind");
}

#[test]
fn a_full_disk_under_a_result_file() {
    let args = golden_model(&kd_tests::golden("base/checkpoint"), Path::new("/dev/full"));
    one_line(&shell(&format!("\"$KD\" {}", quoted(&args))), "No space left on device");
    let cases = text(&kd_tests::golden("text/chat.inputs.json"));
    let args = ["golden", "text", "chat", "--cases", &cases, "--out", "/dev/full"].map(str::to_owned);
    one_line(&shell(&format!("\"$KD\" {}", quoted(&args))), "No space left on device");
    assert!(!fs::metadata("/dev/full").expect("the device").is_file(), "the device was replaced");
}

#[test]
fn a_file_size_limit_leaves_no_part_of_a_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = golden_model(&kd_tests::golden("base/checkpoint"), &folder.path().join("out"));
    one_line(&shell(&format!("ulimit -f 64; \"$KD\" {}", quoted(&args))), "File too large");
    left_nothing(folder.path());
}

#[test]
fn a_full_disk_behind_stdout_and_stderr() {
    let model = text(&kd_tests::golden("base/checkpoint"));
    for verb in [
        "generate --quiet --prompt-ids 1,2 --max-tokens 2 --json --model",
        "generate --quiet --prompt-ids 1,2 --max-tokens 2 --model",
        "inspect",
        "inspect --json",
        "doctor --json --model",
    ] {
        one_line(&shell(&format!("\"$KD\" {verb} '{model}' > /dev/full")), "No space left on device");
    }
    let silent = format!("\"$KD\" generate --prompt-ids 1,2 --max-tokens 2 --model '{model}' 2> /dev/full");
    assert_eq!(shell(&silent).0, 0, "notes that cannot be written are no failure");
}

/// From far too little to almost enough: either it works or it says so.
#[test]
fn exhausted_memory_is_a_line_and_exit_code_1() {
    let model = text(&kd_tests::demo("target"));
    let mut failed = 0;
    for kilobytes in [20_000, 30_000, 40_000, 50_000, 70_000, 90_000, 120_000, 160_000] {
        let script = format!(
            "ulimit -v {kilobytes}; \"$KD\" generate --quiet --threads 1 --prompt-ids 1,2 --max-tokens 2 --model '{model}' > /dev/null"
        );
        let (code, stderr) = shell(&script);
        assert!(matches!(code, 0 | 1), "{kilobytes} kB: exit code {code}: {stderr}");
        if code == 1 {
            failed += 1;
            let said = ["emory", "allocate", "thread"].iter().any(|word| stderr.contains(word));
            assert!(said && !stderr.contains("panicked"), "{kilobytes} kB: {stderr}");
        }
    }
    assert!(failed > 0, "no limit was low enough to test anything");
}

/// A cache for two thousand million positions is asked for with one allocation, which fails softly.
#[test]
fn a_cache_beyond_all_memory_is_an_error_with_its_size() {
    let model = crate::case::copy(&kd_tests::golden("base/checkpoint"));
    crate::case::edit_json(model.path().join("config.json"), |config| {
        config["text_config"]["max_position_embeddings"] = (1u64 << 31).into();
    });
    let script = format!(
        "ulimit -v 4000000; \"$KD\" generate --quiet --prompt-ids 1 --max-tokens 2000000000 --model '{}'",
        model.path().display()
    );
    one_line(&shell(&script), "out of memory: a cache of");
}

#[test]
fn ctrl_c_ends_every_verb_with_130_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    // Each reads from a pipe that nobody writes to, or has work for long enough.
    let model = text(&kd_tests::demo("target"));
    let tokenizer =
        format!("golden text tokenizer --model {model} --cases /dev/stdin --out {}", out.display());
    for args in [
        "generate --quiet --prompt-ids 1 --max-tokens 2000 --ignore-eos".to_owned(),
        "generate --quiet --prompt -".to_owned(),
        "generate --quiet --prompts /dev/stdin".to_owned(),
        "tree --prompt-ids 1 --round 100000 --max-tokens 2000 --ignore-eos".to_owned(),
        tokenizer,
        format!("golden text chat --cases /dev/stdin --out {}", out.display()),
        format!("golden sampling --cases /dev/stdin --out {}", out.display()),
    ] {
        let mut command = Command::new(kd());
        command.args(args.split(' ')).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kd starts");
        let _stdin = child.stdin.take();
        std::thread::sleep(Duration::from_millis(400));
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
        assert!(sent.success(), "{args}: it had ended before");
        let output = child.wait_with_output().expect("kd ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{args}: {}: {stderr}", output.status);
        left_nothing(folder.path());
    }
}
