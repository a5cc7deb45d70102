//! Tokenizer files and templates.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::case::{Case, all_refused, edit_json, text};

fn golden_tokenizer(model: &Path, out: &Path) -> Vec<String> {
    let cases = text(&kd_tests::golden("tokenizer/bytes256/cases.inputs.json"));
    let args =
        ["golden", "text", "tokenizer", "--model", &text(model), "--cases", &cases, "--out", &text(out)];
    args.map(str::to_owned).to_vec()
}

fn chat(model: &Path, _out: &Path) -> Vec<String> {
    let args = [
        "--quiet",
        "--threads",
        "1",
        "--model",
        &text(model),
        "--chat",
        "--prompt",
        "a",
        "--max-tokens",
        "1",
    ];
    args.map(str::to_owned).to_vec()
}

#[test]
fn damaged_vocabularies() {
    all_refused(&vocabulary(), &kd_tests::golden("base/checkpoint"), golden_tokenizer);
}

#[test]
fn hostile_control_ids() {
    all_refused(&control_ids(), &kd_tests::golden("base/checkpoint"), golden_tokenizer);
}

#[test]
fn hostile_templates() {
    all_refused(&templates(), &kd_tests::golden("base/checkpoint"), chat);
}

pub(crate) fn vocabulary() -> Vec<Case> {
    const FILE: &str = "tiktoken.model";
    let line = |name: &str, line: &'static str, says: &[&str]| {
        let says = [&[FILE], says].concat();
        Case::new(name, &says, move |dir| {
            let mut text = fs::read_to_string(dir.join(FILE)).expect("a vocabulary");
            text.push_str(line);
            fs::write(dir.join(FILE), text).expect("written");
        })
    };
    vec![
        Case::new("an empty vocabulary", &[FILE, "0x00"], |dir| {
            fs::write(dir.join(FILE), "").expect("written")
        }),
        Case::new("half a vocabulary", &[FILE], |dir| {
            let text = fs::read(dir.join(FILE)).expect("a vocabulary");
            fs::write(dir.join(FILE), &text[..text.len() / 2]).expect("written");
        }),
        Case::new("a vocabulary of zeros", &[FILE, "line 1"], |dir| {
            fs::write(dir.join(FILE), [0; 4096]).expect("written");
        }),
        Case::new("a folder for a vocabulary", &[FILE, "not a regular file"], |dir| {
            fs::remove_file(dir.join(FILE)).expect("removed");
            fs::create_dir(dir.join(FILE)).expect("made");
        }),
        line("no base64", "Y!= 256\n", &["line 257"]),
        line("no rank", "YWI=\n", &["line 257"]),
        line("a negative rank", "YWI= -1\n", &["line 257"]),
        line("a rank beyond 32 bits", "YWI= 4294967296\n", &["line 257", "4294967296"]),
        line("a rank that leaves a hole", "YWI= 300\n", &["line 257", "below 257"]),
        line("a rank twice", "YWI= 5\n", &["line 257", "no earlier line"]),
        line("a token twice", "YQ== 256\n", &["line 257", "other than"]),
        line("an empty token", " 256\n", &["line 257", "at least one byte"]),
    ]
}

pub(crate) fn control_ids() -> Vec<Case> {
    const FILE: &str = "tokenizer_config.json";
    let edit = |name: &str, says: &[&str], edit: fn(&mut Value)| {
        let says = [&[FILE], says].concat();
        Case::new(name, &says, move |dir| edit_json(dir.join(FILE), edit))
    };
    vec![
        Case::new("no file", &[FILE], |dir| fs::remove_file(dir.join(FILE)).expect("removed")),
        Case::new("no JSON", &[FILE, "JSON"], |dir| fs::write(dir.join(FILE), "{,}").expect("written")),
        Case::new("lists without end", &[FILE, "JSON"], |dir| {
            fs::write(dir.join(FILE), "[".repeat(1 << 20)).expect("written");
        }),
        edit("no tokens", &["added_tokens_decoder"], |config| config["added_tokens_decoder"] = Value::Null),
        edit("tokens in a list", &["added_tokens_decoder"], |config| {
            config["added_tokens_decoder"] = json!([])
        }),
        edit("an id of a base token", &["decoder.5"], |config| {
            config["added_tokens_decoder"]["5"] = json!({"content": "x"});
        }),
        edit("an id beyond all", &["decoder.512"], |config| {
            config["added_tokens_decoder"]["512"] = json!({"content": "x"});
        }),
        edit("an id that is no number", &["decoder.x"], |config| {
            config["added_tokens_decoder"]["x"] = json!({"content": "x"});
        }),
        edit("an empty name", &["decoder.300"], |config| {
            config["added_tokens_decoder"]["300"] = json!({"content": ""});
        }),
        edit("a name twice", &["other than that of id"], |config| {
            config["added_tokens_decoder"]["300"] = json!({"content": "[BOS]"});
        }),
        edit("a name of megabytes", &["short enough"], |config| {
            config["added_tokens_decoder"]["300"] = json!({"content": "x".repeat(12 << 20)});
        }),
        edit("a flag that is a word", &["special"], |config| {
            config["added_tokens_decoder"]["256"]["special"] = json!("yes");
        }),
        edit("a BOS that nobody knows", &["bos_token"], |config| config["bos_token"] = json!("<s>")),
    ]
}

pub(crate) fn templates() -> Vec<Case> {
    const FILE: &str = "chat_template.jinja";
    let template = |name: &str, says: &[&str], text: String| {
        Case::new(name, says, move |dir| fs::write(dir.join(FILE), &text).expect("written"))
    };
    vec![
        template("a tag without end", &[FILE], "{% for m in messages %}".to_owned()),
        template("an unknown filter", &[FILE], "{{ messages | shell }}".to_owned()),
        template("an unknown function", &[FILE], "{{ open('/etc/passwd') }}".to_owned()),
        template("Python's way out", &[FILE], "{{ ''.__class__.__mro__[1].__subclasses__() }}".to_owned()),
        template("a file to include", &[FILE], "{% include '/etc/passwd' %}".to_owned()),
        template(
            "work without end",
            &[FILE],
            "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}".to_owned(),
        ),
        template("a range of billions", &[FILE], "{% for i in range(4000000000) %}{% endfor %}".to_owned()),
        template(
            "recursion without end",
            &[FILE],
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        ),
        template("an error of its own", &[FILE], "{{ raise_exception('no') }}".to_owned()),
        template(
            "nested without end",
            &[FILE],
            format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)),
        ),
        template("17 MiB", &["17825792"], " ".repeat(17 << 20)),
        Case::new("no text", &[FILE, "utf-8"], |dir| {
            fs::write(dir.join(FILE), [0xff, 0xfe]).expect("written")
        }),
        Case::new("a folder", &[FILE, "not a regular file"], |dir| {
            fs::create_dir(dir.join(FILE)).expect("made")
        }),
    ]
}
