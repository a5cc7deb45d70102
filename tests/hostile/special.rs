//! Files that are no files, and a file that shrinks while it is in use.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use kd_tests::binary::kd;

use crate::case::{copy, golden_model, refused, text};

/// Opening a pipe waits for a writer, and a device may never end: a model folder has files.
#[test]
fn pipes_and_devices_in_a_model_folder_are_refused_at_once() {
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "model-00002-of-000007.safetensors",
    ] {
        for pipe in [true, false] {
            let model = copy(&kd_tests::golden("base/checkpoint"));
            let file = model.path().join(name);
            fs::remove_file(&file).expect("removed");
            if pipe {
                let made = Command::new("mkfifo").arg(&file).status().expect("mkfifo");
                assert!(made.success());
            } else {
                std::os::unix::fs::symlink("/dev/zero", &file).expect("linked");
            }
            let args = golden_model(model.path(), &model.path().join("out"));
            refused(name, &args, &[name.to_owned(), "not a regular file".to_owned()]);
        }
    }
}

#[test]
fn files_larger_than_any_real_one_are_refused_with_both_numbers() {
    for (name, size) in [("config.json", 1u64 << 40), ("model.safetensors.index.json", 1 << 40)] {
        let model = copy(&kd_tests::golden("base/checkpoint"));
        // A hole: it takes no room on the disk.
        fs::File::create(model.path().join(name)).and_then(|file| file.set_len(size)).expect("sized");
        let args = golden_model(model.path(), &model.path().join("out"));
        refused(name, &args, &[name.to_owned(), size.to_string(), "at most".to_owned()]);
    }
}

/// Weights are mapped, so a file that another process cuts short raises SIGBUS where they are read.
#[test]
fn a_shard_that_shrinks_while_it_is_mapped_is_an_error_that_names_it() {
    let model = copy(&kd_tests::golden("base/checkpoint"));
    let shard = model.path().join("model-00003-of-000007.safetensors");
    let args = ["--threads", "1", "--max-tokens", "4", "--model", &text(model.path()), "--prompts"];
    let pipe = model.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let mut command = Command::new(kd());
    command.args(args).arg(&pipe).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().expect("kd starts");
    // Opening the writing end waits for kd to open the reading end, which it does once the model is loaded.
    let mut prompts = fs::File::options().write(true).open(&pipe).expect("opened");
    fs::File::options().write(true).open(&shard).and_then(|file| file.set_len(4096)).expect("cut short");
    prompts.write_all(b"{\"prompt_ids\": [1, 2, 3]}\n").expect("written");
    drop(prompts);
    let output = child.wait_with_output().expect("kd ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}: {stderr}", output.status);
    let line = stderr.lines().last().unwrap_or_default();
    assert!(line.contains("model-00003-of-000007.safetensors") && line.contains("shorter"), "{stderr}");
}
