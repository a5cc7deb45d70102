//! Golden inputs: tensors and case files.

use std::fs;
use std::path::Path;

use kd_tensor::safetensors::{TensorData, write_safetensors};
use serde_json::{Value, json};

use crate::case::{Case, all_refused, text};

/// The file that each case writes, and that `kd` reads.
const FILE: &str = "cases";

#[test]
fn hostile_golden_tensors() {
    all_refused(&tensors(), &kd_tests::golden("drafter/reduced/checkpoint"), |dir, out| {
        let model = text(&kd_tests::golden("base/checkpoint"));
        let inputs = text(&dir.join(FILE));
        let args = [
            "golden",
            "model",
            "--model",
            &model,
            "--inputs",
            &inputs,
            "--out",
            &text(out),
            "--threads",
            "1",
        ];
        args.map(str::to_owned).to_vec()
    });
}

#[test]
fn hostile_case_files() {
    for (what, wrap) in [("sampling", ""), ("text", "chat"), ("text", "parser")] {
        let cases: Vec<Case> =
            all_cases().into_iter().filter(|(verb, _)| *verb == (what, wrap)).map(|c| c.1).collect();
        all_refused(&cases, &kd_tests::golden("drafter/reduced/checkpoint"), |dir, out| {
            let (cases, out) = (text(&dir.join(FILE)), text(out));
            let verb = ["golden", what, wrap].into_iter().filter(|part| !part.is_empty());
            verb.chain(["--cases", &cases, "--out", &out]).map(str::to_owned).collect()
        });
    }
}

fn integers(name: &str, says: &[&str], tensors: &'static [(&'static str, &'static [i64])]) -> Case {
    Case::new(name, says, move |dir| write(dir, tensors))
}

fn write(dir: &Path, tensors: &[(&'static str, &'static [i64])]) {
    let entries = tensors.iter().map(|&(name, values)| (name, TensorData::new(&[values.len()], values)));
    write_safetensors(dir.join(FILE), entries).expect("written");
}

pub(crate) fn tensors() -> Vec<Case> {
    const TREE: &str = "tree.a.prefix_ids";
    vec![
        integers("nothing", &["no golden inputs"], &[]),
        integers("nothing known", &["no golden inputs"], &[("case", &[1])]),
        integers("an id beyond the vocabulary", &["512"], &[("case.a.input_ids", &[1, 512])]),
        integers("a negative id", &["-1"], &[("case.a.input_ids", &[-1])]),
        integers("an id beyond 32 bits", &["4294967296"], &[("case.a.input_ids", &[1 << 32])]),
        integers("no ids", &["case a", "empty"], &[("case.a.input_ids", &[])]),
        integers("steps without a prompt", &["prompt_ids"], &[("greedy.a.steps", &[1])]),
        integers("a prompt without steps", &["steps"], &[("greedy.a.prompt_ids", &[1])]),
        integers(
            "negative steps",
            &["no count"],
            &[("greedy.a.prompt_ids", &[1]), ("greedy.a.steps", &[-1])],
        ),
        integers(
            "steps without end",
            &["4096"],
            &[("greedy.a.prompt_ids", &[1]), ("greedy.a.steps", &[i64::MAX])],
        ),
        integers("an empty prompt", &["empty"], &[("greedy.a.prompt_ids", &[]), ("greedy.a.steps", &[1])]),
        integers("a tree without tokens", &["tokens"], &[(TREE, &[1])]),
        integers(
            "more parents than nodes",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[1]), ("tree.a.parents", &[-1, 0])],
        ),
        integers(
            "a node that is its own parent",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[1]), ("tree.a.parents", &[0])],
        ),
        integers(
            "a ring",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[1, 2]), ("tree.a.parents", &[1, 0])],
        ),
        integers(
            "a parent that is not there",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[1]), ("tree.a.parents", &[7])],
        ),
        integers(
            "a parent below all",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[1]), ("tree.a.parents", &[i64::MIN])],
        ),
        integers(
            "a tree of 200 nodes",
            &["tree a"],
            &[(TREE, &[1]), ("tree.a.tokens", &[5; 200]), ("tree.a.parents", &[-1; 200])],
        ),
        integers(
            "a tree without a root",
            &["prefix_ids"],
            &[(TREE, &[]), ("tree.a.tokens", &[1]), ("tree.a.parents", &[-1])],
        ),
        Case::new("ids that are floats", &["F32", "I32 or I64"], |dir| {
            let entry = ("case.a.input_ids", TensorData::owned(&[1], &[1.0f32]));
            write_safetensors(dir.join(FILE), [entry]).expect("written");
        }),
        Case::new("no file", &[FILE], |_| {}),
    ]
}

type Verb = (&'static str, &'static str);

pub(crate) fn cases() -> Vec<Case> {
    all_cases().into_iter().map(|(_, case)| case).collect()
}

fn all_cases() -> Vec<(Verb, Case)> {
    const SAMPLING: Verb = ("sampling", "");
    const CHAT: Verb = ("text", "chat");
    const PARSER: Verb = ("text", "parser");
    let raw = |verb: Verb, name: &str, says: &[&str], text: String| {
        (verb, Case::new(name, says, move |dir| fs::write(dir.join(FILE), &text).expect("written")))
    };
    let value =
        |verb: Verb, name: &str, says: &[&str], value: Value| raw(verb, name, says, value.to_string());
    let messages = |name: &str, says: &[&str], messages: Value| {
        value(CHAT, name, says, json!([{"name": "bad", "messages": messages}]))
    };
    let noise =
        |name: &str, noise: Value, says: &[&str]| value(SAMPLING, name, says, json!({"noise": [noise]}));
    vec![
        raw(SAMPLING, "no JSON", &[FILE], "{".to_owned()),
        value(
            SAMPLING,
            "noise beyond all memory",
            &["100000000"],
            json!({"noise": [{"seed": 0, "position": 0, "choice": 0, "n": u32::MAX}]}),
        ),
        noise("a negative seed", json!({"seed": -1, "position": 0, "choice": 0, "n": 1}), &["noise", "-1"]),
        noise(
            "a choice beyond 32 bits",
            json!({"seed": 0, "position": 0, "choice": 1u64 << 32, "n": 1}),
            &["noise"],
        ),
        value(
            SAMPLING,
            "a counter of three words",
            &["philox"],
            json!({"philox": [{"counter": [0, 0, 0], "key": [0, 0]}]}),
        ),
        value(
            SAMPLING,
            "logits that are not there",
            &["absent.safetensors"],
            json!({"logits": "absent.safetensors", "cases": []}),
        ),
        value(
            SAMPLING,
            "logits outside the folder",
            &["../logits.safetensors", "beside"],
            json!({"logits": "../logits.safetensors"}),
        ),
        value(
            SAMPLING,
            "logits at an absolute path",
            &["/etc/passwd", "beside"],
            json!({"logits": "/etc/passwd"}),
        ),
        raw(CHAT, "lists without end", &[FILE], "[".repeat(1 << 20)),
        value(CHAT, "no list", &[FILE], json!({})),
        messages("no messages", &["messages"], Value::Null),
        messages("a message that is a word", &["bad", "messages[0]"], json!(["hi"])),
        messages("a message without a role", &["bad", "role"], json!([{"content": "hi"}])),
        messages("content that is a number", &["bad", "content"], json!([{"role": "user", "content": 7}])),
        messages(
            "a call without a function",
            &["bad"],
            json!([{"role": "assistant", "content": "", "tool_calls": [{}]}]),
        ),
        value(PARSER, "no text to parse", &["raw"], json!([{"name": "x"}])),
        value(
            PARSER,
            "a flag that is a number",
            &["thinking"],
            json!([{"name": "x", "raw": "a", "thinking": 1}]),
        ),
    ]
}
