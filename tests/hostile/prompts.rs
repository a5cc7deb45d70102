//! Prompt files and conversations.

use std::fs;
use std::path::Path;

use crate::case::{Case, all_refused, refused, text};

const FILE: &str = "prompts";

#[test]
fn hostile_prompt_files() {
    all_refused(&lines(), &kd_tests::golden("base/checkpoint"), |dir, _| generate(dir, "--prompts"));
}

#[test]
fn hostile_conversations() {
    all_refused(&messages(), &kd_tests::golden("base/checkpoint"), |dir, _| generate(dir, "--messages"));
}

fn generate(dir: &Path, flag: &str) -> Vec<String> {
    let (model, file) = (text(dir), text(&dir.join(FILE)));
    ["--quiet", "--threads", "1", "--max-tokens", "1", "--model", &model, flag, &file]
        .map(str::to_owned)
        .to_vec()
}

fn bytes(name: &str, says: &[&str], bytes: impl Into<Vec<u8>>) -> Case {
    let bytes = bytes.into();
    Case::new(name, says, move |dir| fs::write(dir.join(FILE), &bytes).expect("written"))
}

pub(crate) fn lines() -> Vec<Case> {
    vec![
        bytes("no lines", &["no prompts"], ""),
        bytes("empty lines", &["no prompts"], "\n\n \n"),
        bytes("no text", &["UTF-8"], [0xff, 0xfe, b'\n']),
        bytes("no JSON", &["line 1"], "hello"),
        bytes("the second line cut short", &["line 2"], "{\"prompt\": \"a\"}\n{\"prompt\": \"b"),
        bytes("lists without end", &["line 1"], "[".repeat(1 << 20)),
        bytes("a broken surrogate", &["line 1"], "{\"prompt\": \"\\ud800\"}"),
        bytes("no prompt", &["line 1", "one of"], "{}"),
        bytes("two prompts", &["line 1", "one of"], "{\"prompt\": \"a\", \"prompt_ids\": [1]}"),
        bytes("an empty list of ids", &["empty"], "{\"prompt_ids\": []}"),
        bytes("an id beyond the vocabulary", &["512"], "{\"prompt_ids\": [512]}"),
        bytes("a negative id", &["line 1", "-1"], "{\"prompt_ids\": [-1]}"),
        bytes("an id beyond 32 bits", &["line 1", "4294967296"], "{\"prompt_ids\": [4294967296]}"),
        bytes("an id with a fraction", &["line 1", "1.5"], "{\"prompt_ids\": [1.5]}"),
        bytes("an unknown field", &["line 1", "temprature"], "{\"prompt\": \"a\", \"temprature\": 1}"),
        bytes("a field twice", &["line 1", "seed"], "{\"prompt\": \"a\", \"seed\": 1, \"seed\": 2}"),
        bytes("a temperature below 0", &["temperature"], "{\"prompt\": \"a\", \"temperature\": -1}"),
        bytes("a temperature of 1e999", &["line 1"], "{\"prompt\": \"a\", \"temperature\": 1e999}"),
        bytes("a top_p of -1", &["top_p"], "{\"prompt\": \"a\", \"top_p\": -1}"),
        bytes("a penalty of 1e300", &["penalty"], "{\"prompt\": \"a\", \"repetition_penalty\": 1e300}"),
        bytes("no tokens", &["line 1", "nonzero"], "{\"prompt\": \"a\", \"max_tokens\": 0}"),
        bytes(
            "tokens without end",
            &["18446744073709551615"],
            "{\"prompt\": \"a\", \"max_tokens\": 18446744073709551615}",
        ),
        bytes("a budget without a drafter", &["--drafter"], "{\"prompt\": \"a\", \"budget\": 4}"),
        bytes("a budget of a word", &["auto", "much"], "{\"prompt\": \"a\", \"budget\": \"much\"}"),
        bytes("a budget beyond a tree", &["129"], "{\"prompt\": \"a\", \"budget\": 129}"),
        bytes("a bias of no id", &["logit_bias"], "{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}"),
        bytes("a bias of an absent id", &["512"], "{\"prompt\": \"a\", \"logit_bias\": {\"512\": 1}}"),
        bytes("a stop id beyond the vocabulary", &["512"], "{\"prompt\": \"a\", \"stop_ids\": [512]}"),
        bytes("an empty stop string", &["stop"], "{\"prompt\": \"a\", \"stop\": \"\"}"),
        bytes("tools without messages", &["messages"], "{\"prompt\": \"a\", \"tools\": []}"),
        bytes(
            "a prompt longer than the context",
            &["context of 4096"],
            format!("{{\"prompt\": \"{}\"}}", "a".repeat(5000)),
        ),
    ]
}

pub(crate) fn messages() -> Vec<Case> {
    vec![
        bytes("no text", &[FILE], [0xff, 0xfe]),
        bytes("no JSON", &[FILE], "hello"),
        bytes("a number", &[FILE], "7"),
        bytes("lists without end", &[FILE], "[".repeat(1 << 20)),
        bytes("an unknown key", &["modle"], "{\"messages\": [], \"modle\": 1}"),
        bytes("a role that is a number", &["role"], "[{\"role\": 1, \"content\": \"a\"}]"),
        bytes(
            "a picture",
            &["image"],
            "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"http://x\"}}]}]",
        ),
        bytes(
            "an unknown template argument",
            &["tokenize"],
            "{\"messages\": [], \"chat_template_kwargs\": {\"tokenize\": true}}",
        ),
        bytes(
            "contradicting switches",
            &["thinking"],
            "{\"messages\": [], \"thinking\": {\"type\": \"disabled\"}, \"chat_template_kwargs\": {\"thinking\": true}}",
        ),
    ]
}

#[test]
fn hostile_flags() {
    for (args, says) in [
        (&["--streams", "4294967295", "--prompt-ids", "1"][..], "65536"),
        (&["--streams", "99999999999999999999", "--prompt-ids", "1"], "--streams"),
        (&["--max-tokens", "18446744073709551615", "--prompt-ids", "1"], "18446744073709551615"),
        (&["--threads", "18446744073709551615", "--prompt-ids", "1"], "threads"),
        (&["--temperature", "NaN", "--prompt-ids", "1"], "temperature"),
        (&["--temperature", "inf", "--prompt-ids", "1"], "temperature"),
        (&["--top-p", "-0.1", "--prompt-ids", "1"], "top"),
        (&["--logit-bias", "1=NaN", "--prompt-ids", "1"], "bias"),
        (&["--prompt-ids", "4294967296"], "4294967296"),
        (&["--prompt-ids", ""], "prompt-ids"),
        (&["--seed=-1"], "seed"),
        (&["--model", ""], "--model"),
        (&["--model", "/dev/null"], "config.json"),
        (&["--drafter", "/nonexistent"], "/nonexistent"),
        (&["--prompts", "/nonexistent"], "/nonexistent"),
        (&["--prompts", "/dev/zero"], "at most"),
        (&["--messages", "/dev/zero"], "at most"),
        (&["--chat-template", "/nonexistent", "--chat", "--prompt", "a"], "/nonexistent"),
    ] {
        let args: Vec<String> = ["--quiet"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        refused(&args.join(" "), &args, &[says.to_owned()]);
    }
}
