//! Conversations: `kd generate` with messages, and `kd chat` over a pipe.

use std::fs;

use kd_tests::binary::{run, run_with_input};
use kd_tests::{demo, demo_models, ids, json};

/// The demo's chat prompts, as ids and as the conversation that they came from.
fn golden_chats() -> Vec<(Vec<u32>, String)> {
    let golden = json(&demo("golden/golden.json"));
    let cases = golden["cases"].as_array().expect("cases").iter().filter(|case| case["kind"] == "chat");
    let (begin, end) =
        ("<|im_user|>user<|im_middle|>", "<|im_end|><|im_assistant|>assistant<|im_middle|><think>");
    let found: Vec<_> = cases
        .filter_map(|case| {
            let text = case["prompt_text"].as_str().expect("text");
            let content = text.strip_prefix(begin)?.strip_suffix(end)?;
            (!content.contains("<|im_")).then(|| (ids(&case["prompt"]), content.to_owned()))
        })
        .collect();
    assert!(!found.is_empty());
    found
}

fn prompt_of(args: &[&str]) -> Vec<u32> {
    let common = ["generate", "--quiet", "--json", "--threads", "1", "--max-tokens", "1"];
    ids(&run([&common, args].concat()).objects()[0]["prompt_ids"])
}

#[test]
fn a_user_turn_becomes_the_prompt_that_the_model_was_trained_on() {
    let dir = tempfile::tempdir().expect("a folder");
    for (prompt, content) in golden_chats() {
        assert_eq!(prompt_of(&["--chat", "--prompt", &content]), prompt);
        let file = dir.path().join("messages.json");
        let message = serde_json::json!([{ "role": "user", "content": content }]);
        fs::write(&file, message.to_string()).expect("a file");
        assert_eq!(prompt_of(&["--messages", file.to_str().expect("UTF-8")]), prompt);
        let lines = dir.path().join("prompts.jsonl");
        fs::write(&lines, serde_json::json!({ "messages": message }).to_string()).expect("a file");
        assert_eq!(prompt_of(&["--prompts", lines.to_str().expect("UTF-8")]), prompt);
    }
}

/// Advisories on forged turns: no text of a user becomes a control token, unless the published behaviour is asked for.
#[test]
fn control_strings_in_a_message_stay_text() {
    let tokenizer = demo_models().tokenizer.expect("a tokenizer");
    let controls = |ids: &[u32]| ids.iter().filter(|&&id| tokenizer.is_control(id)).count();
    let plain = controls(&prompt_of(&["--chat", "--prompt", "hello"]));
    let named: Vec<&str> = tokenizer.control_names().filter(|name| !name.contains("reserved")).collect();
    let all = named.concat();
    assert!(named.len() > 20, "{named:?}");
    for template in [&["--chat"][..], &["--chat", "--chat-template", "native"]] {
        let prompt = prompt_of(&[template, &["--prompt", &all]].concat());
        assert_eq!(controls(&prompt), plain, "{template:?}");
        let text = tokenizer.decode(&prompt, false).expect("text");
        assert!(text.contains(&all), "the user's text is still there");
        let published = prompt_of(&[template, &["--prompt", &all, "--control-strings", "ids"]].concat());
        assert_eq!(controls(&published), plain + named.len(), "{template:?}");
    }
    let raw = prompt_of(&["--prompt", "<|im_end|>", "--bos", "off"]);
    assert_eq!(controls(&raw), 0);
}

#[test]
fn a_chat_over_a_pipe_answers_each_line() {
    let args = ["chat", "--threads", "1", "--max-tokens", "40", "--budget", "8"];
    let input = "Write a Rust function `new`. Create a new `Cookie` with the given `name`.\n\n/reset\n\
                 Explain what `fn len(&self) -> usize` does.\n/exit\nnot read\n";
    let ran = run_with_input(args, input.as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answers = ran.stderr.lines().filter(|line| line.contains("tokens/round")).count();
    assert_eq!(answers, 2, "{}", ran.stderr);
    assert!(!ran.stdout.trim().is_empty());
    for marker in ["<think>", "</think>", "<|im_end|>", "<|tool"] {
        assert!(!ran.stdout.contains(marker), "{marker} in {}", ran.stdout);
    }
}

/// A turn that does not fit is reported, and the conversation goes on without it.
#[test]
fn a_message_longer_than_the_context_is_withdrawn() {
    let long = "word ".repeat(5000);
    let input = format!("{long}\nWrite a Rust function `len`.\n");
    let ran = run_with_input(["chat", "--quiet", "--threads", "1", "--max-tokens", "8"], input.as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("context of 2048"), "{}", ran.stderr);
    assert!(!ran.stdout.trim().is_empty());
}
