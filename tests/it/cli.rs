//! The command line: exit codes, JSON and what its numbers mean.

use std::fs;
use std::path::Path;

use kd_engine::{Request, SamplingParams, Speculation};
use kd_tests::binary::{Ran, run, run_in, run_with_input, start};
use kd_tests::drive::{Answer, alone};
use kd_tests::random::{edit_bf16, write_target};
use kd_tests::{demo, demo_models, golden, ids, json, numbers};
use serde_json::Value;

use crate::pairs::narrow_shape;

const PROMPT: &str = "// itoa/src/lib.rs\n/// Writes an integer";

fn generate(args: &[&str]) -> Ran {
    run([&["generate", "--threads", "1"], args].concat())
}

/// The demo pair's answer, from the engine itself.
fn engine(prompt: &str, params: SamplingParams, choice: u32, max_tokens: usize, nodes: usize) -> Answer {
    let models = demo_models();
    let tokenizer = models.tokenizer.as_ref().expect("a tokenizer");
    let bos = tokenizer.bos_id().expect("a BOS");
    let prompt = [&[bos], &tokenizer.encode_ordinary(prompt).expect("ids")[..]].concat();
    let speculation = Speculation::Tree { nodes };
    alone(&models, &Request { params, choice, speculation, ..Request::new(prompt, max_tokens) })
}

#[track_caller]
fn assert_fails(ran: &Ran, code: i32, contains: &str) {
    assert_eq!(ran.code, code, "{}", ran.stderr);
    assert!(ran.stderr.contains(contains), "{}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{}", ran.stdout);
    if code == 1 {
        assert_eq!(ran.stderr.lines().count(), 1, "one clear line: {}", ran.stderr);
    }
}

#[test]
fn bad_usage_exits_with_2() {
    for (args, contains) in [
        (&["--budget", "129"][..], "128"),
        (&["--budget", "much"], "auto"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--streams", "0"], "--streams"),
        (&["--max-tokens", "0"], "--max-tokens"),
        (&["--temperature", "-1"], "temperature"),
        (&["--top-p", "-0.5"], "top_p"),
        (&["--logit-bias", "7"], "--logit-bias"),
        (&["--messages", "a.json", "--chat"], "--messages"),
        (&["--prompt", "a", "--prompt-ids", "1"], "--prompt-ids"),
        (&["--prompt-ids", "1,x"], "x"),
    ] {
        assert_fails(&generate(args), 2, contains);
    }
    assert_fails(&run(["no-such-verb"]), 2, "no-such-verb");
    let no_drafter = golden("base/checkpoint");
    let args = ["--quiet", "--prompt", "a", "--budget", "8", "--model", no_drafter.to_str().expect("UTF-8")];
    assert_fails(&generate(&args), 2, "--drafter");
}

#[test]
fn failed_work_exits_with_1_and_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (empty, broken) =
        (file("empty.jsonl", "\n  \n"), file("broken.jsonl", "{\"prompt_ids\": [1]}\nnot JSON\n"));
    let unknown = file("unknown.jsonl", "{\"prompt_ids\": [1], \"temperatur\": 1}\n");
    for (args, contains) in [
        (&["--model", "/no/such/model"][..], "/no/such/model"),
        (&["--drafter", "/no/such/drafter"], "/no/such/drafter"),
        (&["--prompts", "/no/such/prompts.jsonl"], "/no/such/prompts.jsonl"),
        (&["--prompts", &empty], "empty.jsonl"),
        (&["--prompts", &broken], "line 2"),
        (&["--prompts", &unknown], "temperatur"),
        (&["--prompt-ids", "1,99999"], "99999"),
        (&["--max-tokens", "5000"], "2048"),
    ] {
        assert_fails(&generate(&[args, &["--quiet"]].concat()), 1, contains);
    }
    assert_fails(&generate(&["--quiet", "--prompt", "", "--bos", "off"]), 1, "empty");
    let not_utf8 = run_with_input(["generate", "--quiet", "--prompt", "-"], b"\xff\xfe");
    assert_fails(&not_utf8, 1, "UTF-8");
}

#[test]
fn json_fields_mean_what_the_design_says() {
    let args = ["--json", "--quiet", "--prompt", PROMPT, "--max-tokens", "33", "--ignore-eos", "--seed", "5"];
    let objects = generate(&[&args[..], &["--budget", "16"]].concat()).objects();
    assert_eq!(objects.len(), 1);
    let object = &objects[0];
    let answer = engine(PROMPT, SamplingParams::default(), 0, 33, 16);
    let tokenizer = demo_models().tokenizer.expect("a tokenizer");

    assert_eq!((&object["index"], &object["seed"], &object["error"]), (&0.into(), &5.into(), &Value::Null));
    let prompt = ids(&object["prompt_ids"]);
    assert_eq!(tokenizer.decode(&prompt, true).expect("text"), PROMPT);
    assert_eq!(Some(prompt[0]), tokenizer.bos_id());
    let output = ids(&object["output_ids"]);
    assert_eq!(output, answer.tokens());
    let shown: Vec<u32> = output.iter().copied().filter(|&id| !tokenizer.is_control(id)).collect();
    assert_eq!(object["text"], tokenizer.decode(&shown, false).expect("text"));
    assert_eq!(object["finish_reason"], "length");
    assert_statistics(object, &answer);
}

/// Recomputes the counters of a JSON object from the engine's record of every round.
fn assert_statistics(object: &Value, answer: &Answer) {
    let rounds = &answer.rounds;
    let n = rounds.len() as f64;
    let near = |field: &str, expected: f64| {
        let found = object[field].as_f64().unwrap_or_else(|| panic!("{field}: {}", object[field]));
        assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{field}: {found}, expected {expected}");
    };
    near("rounds", n);
    near("tokens_per_round", rounds.iter().map(|r| r.tokens.len()).sum::<usize>() as f64 / n);
    near("nodes_per_round", rounds.iter().map(|r| r.tree.len()).sum::<usize>() as f64 / n);
    let deepest = rounds.iter().map(|r| r.tree.max_depth()).max().unwrap_or(0);
    let by_depth = |depth: usize| {
        let accepted = rounds.iter().filter(|r| r.rows.len() > depth).count();
        accepted as f64 / rounds.iter().filter(|r| r.tree.max_depth() >= depth).count() as f64
    };
    let expected: Vec<f64> = (1..=deepest).map(by_depth).collect();
    let found = object["acceptance_by_depth"].as_array().expect("a list");
    assert_eq!(found.iter().map(|x| x.as_f64().expect("a number")).collect::<Vec<_>>(), expected);
    let seconds = |field: &str| object[field].as_f64().expect("seconds");
    assert!(seconds("prefill_seconds") > 0.0 && seconds("decode_seconds") > 0.0);
    let rate = (numbers(&object["output_ids"]).len() - 1) as f64 / seconds("decode_seconds");
    near("tokens_per_second", rate);
}

#[test]
fn one_token_needs_no_round() {
    let object = &generate(&["--json", "--quiet", "--prompt", PROMPT, "--max-tokens", "1"]).objects()[0];
    assert_eq!(object["rounds"], 0);
    assert_eq!(numbers(&object["output_ids"]).len(), 1);
    for field in ["tokens_per_round", "nodes_per_round", "tokens_per_second"] {
        assert_eq!(object[field], Value::Null, "{field}");
    }
}

#[test]
fn a_stop_id_is_kept_in_the_ids_and_left_out_of_the_text() {
    let args = ["--json", "--quiet", "--prompt", PROMPT, "--max-tokens", "24", "--ignore-eos"];
    let free = &generate(&args).objects()[0];
    let output = ids(&free["output_ids"]);
    let at = (4..24).find(|&i| !output[..i].contains(&output[i])).expect("a new token");
    let stop = output[at].to_string();
    let object = &generate(&[&args[..], &["--stop-ids", &stop]].concat()).objects()[0];
    assert_eq!(ids(&object["output_ids"]), output[..=at]);
    assert_eq!(object["finish_reason"], "stop");
    let text = demo_models().tokenizer.expect("a tokenizer").decode(&output[..at], false).expect("text");
    assert_eq!(object["text"], text);
}

#[test]
fn streams_of_one_seed_are_its_choices() {
    let args = ["--json", "--quiet", "--prompt", PROMPT, "--max-tokens", "16", "--ignore-eos"];
    let args = [&args[..], &["--temperature", "1", "--seed", "7", "--streams", "4"]].concat();
    let first = generate(&args).objects();
    let params = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    assert_eq!(first.len(), 4);
    for (i, (object, again)) in first.iter().zip(generate(&args).objects()).enumerate() {
        assert_eq!(object["index"], i);
        assert_eq!(object["output_ids"], again["output_ids"], "the seed decides");
        assert_eq!(ids(&object["output_ids"]), engine(PROMPT, params.clone(), i as u32, 16, 16).tokens());
        assert!(
            first[..i].iter().all(|other| other["output_ids"] != object["output_ids"]),
            "the choice matters"
        );
    }
    // Without a seed one is drawn and reported.
    let free = ["--json", "--quiet", "--prompt", PROMPT, "--max-tokens", "2", "--temperature", "1"];
    let seeds = [0, 1].map(|_| generate(&free).objects()[0]["seed"].as_u64().expect("a seed"));
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn a_prompts_file_mixes_kinds_and_settings() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("mixed.jsonl");
    let lines = [
        r#"{"prompt": "use std::fmt;", "max_tokens": 9}"#,
        "",
        r#"{"prompt_ids": [5, 6, 7], "temperature": 1.0, "seed": 11, "budget": 0}"#,
        r#"{"prompt": "/// Grüße, 世界 🦀", "budget": 4, "ignore_eos": true}"#,
    ];
    fs::write(&path, lines.join("\n")).expect("a file");
    let path = path.to_str().expect("UTF-8");
    let objects =
        generate(&["--json", "--quiet", "--prompts", path, "--max-tokens", "6", "--seed", "3"]).objects();
    assert_eq!(objects.len(), 3);
    let counts: Vec<usize> = objects.iter().map(|o| numbers(&o["output_ids"]).len()).collect();
    assert!(counts[0] <= 9 && counts[1] <= 6 && counts[2] == 6, "{counts:?}");
    assert_eq!(ids(&objects[1]["prompt_ids"]), [5, 6, 7], "ids are taken verbatim");
    assert_eq!(objects.iter().map(|o| o["seed"].as_u64().expect("a seed")).collect::<Vec<_>>(), [3, 11, 3]);
    assert_eq!(objects[1]["nodes_per_round"].as_f64(), Some(0.0));
    assert_eq!(objects[2]["nodes_per_round"].as_f64(), Some(4.0));
    // Each line alone gives what it gave among the others.
    for (object, line) in objects.iter().zip(lines.iter().filter(|line| !line.is_empty())) {
        let alone = dir.path().join("alone.jsonl");
        fs::write(&alone, line).expect("a file");
        let args = ["--json", "--quiet", "--prompts", alone.to_str().expect("UTF-8"), "--max-tokens", "6"];
        let again = &generate(&[&args[..], &["--seed", "3"]].concat()).objects()[0];
        assert_eq!(again["output_ids"], object["output_ids"]);
    }
}

#[test]
fn one_failed_stream_of_several() {
    let dir = tempfile::tempdir().expect("a folder");
    write_target(dir.path(), &narrow_shape().0, 1, |tensors| {
        // Token 4 has no embedding.
        edit_bf16(tensors, "language_model.model.embed_tokens.weight", |w| w[4 * 32..].fill(half::bf16::NAN));
    });
    let prompts = dir.path().join("prompts.jsonl");
    let lines = [r#"{"prompt_ids": [0, 1]}"#, r#"{"prompt_ids": [4, 1]}"#, r#"{"prompt_ids": [2]}"#];
    fs::write(&prompts, lines.join("\n")).expect("a file");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (model, prompts) = (text(dir.path()), text(&prompts));
    let args =
        ["--json", "--quiet", "--model", &model, "--prompts", &prompts, "--max-tokens", "1", "--ignore-eos"];
    let ran = generate(&args);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let objects = ran.lines();
    let reasons: Vec<_> = objects.iter().map(|o| o["finish_reason"].as_str().expect("a reason")).collect();
    assert_eq!(reasons[1], "error");
    assert!(objects[1]["error"].as_str().is_some_and(|e| e.contains("no finite maximum")), "{}", objects[1]);
    assert_eq!(numbers(&objects[1]["output_ids"]), [0; 0]);
    assert!(reasons[0] == "length" && reasons[2] == "length", "{reasons:?}");
}

#[test]
fn stdin_utf8_and_the_plain_text_output() {
    let prompt = "/// Grüße, 世界 🦀 <|im_end|>\n";
    let args = ["generate", "--threads", "1", "--max-tokens", "12", "--prompt"];
    let from_stdin = run_with_input([&args[..], &["-", "--json", "--quiet"]].concat(), prompt.as_bytes());
    let object = &from_stdin.objects()[0];
    assert_eq!(
        object["output_ids"],
        run([&args[..], &[prompt, "--json"]].concat()).objects()[0]["output_ids"]
    );
    let tokenizer = demo_models().tokenizer.expect("a tokenizer");
    let prompt_ids = ids(&object["prompt_ids"]);
    assert_eq!(tokenizer.decode(&prompt_ids[1..], false).expect("text"), prompt);
    assert!(prompt_ids[1..].iter().all(|&id| !tokenizer.is_control(id)), "control strings are ordinary text");

    let quiet = run([&args[..], &[prompt, "--quiet"]].concat());
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    assert_eq!(
        quiet.stdout.trim_end_matches('\n'),
        object["text"].as_str().expect("text").trim_end_matches('\n')
    );
    let compared = run([&args[..], &[prompt, "--compare", "--json"]].concat()).objects();
    assert_eq!(compared[0]["output_ids"], object["output_ids"]);
}

#[test]
fn no_verb_and_no_prompt_runs_the_demo_pair() {
    let ran = run(["--max-tokens", "8"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stdout.trim().is_empty());
}

#[test]
fn kd_tree_draws_the_tree_of_the_golden() {
    let golden = json(&demo("golden/golden.json"));
    let case = &golden["cases"][4];
    let prompt = ids(&case["prompt"]).iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let ran =
        run(["tree", "--threads", "1", "--prompt-ids", &prompt, "--budget", "16", "--ignore-eos", "--quiet"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.lines().count() > 16, "a line a node: {}", ran.stdout);
}

/// Every flag has an environment twin, and the flag wins.
#[test]
fn flags_have_environment_twins() {
    let twins = [
        ("KD_MAX_TOKENS", "5"),
        ("KD_QUIET", "1"),
        ("KD_JSON", "true"),
        ("KD_PROMPT", PROMPT),
        ("KD_THREADS", "1"),
    ];
    let length = |args: &[&str]| ids(&run_in(&twins, args, b"").objects()[0]["output_ids"]).len();
    assert_eq!(length(&["generate"]), 5);
    assert_eq!(length(&[]), 5, "without a verb too");
    assert_eq!(length(&["generate", "--max-tokens", "3"]), 3);
    assert_eq!(run_in(&[("KD_QUIET", "perhaps")], ["generate"], b"").code, 2);
    assert_eq!(run_in(&[("KD_BUDGET", "129")], ["generate"], b"").code, 2);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_exits_with_130() {
    let args =
        ["generate", "--quiet", "--threads", "1", "--ignore-eos", "--max-tokens", "2000", "--budget", "0"];
    let mut child = start(&[], args);
    let mut first = [0];
    // The handler is in place once there is text.
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut first).expect("text");
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill").success());
    let output = child.wait_with_output().expect("kd ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Fault: a run of many streams that was interrupted told nothing of those that had finished.
#[cfg(unix)]
#[test]
fn an_interrupted_run_prints_the_streams_that_had_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("prompts.jsonl");
    let line = |tokens: usize| format!("{{\"prompt\":\"a\",\"max_tokens\":{tokens},\"ignore_eos\":true}}\n");
    fs::write(&file, [line(1), line(2000), line(2)].concat()).expect("a file");
    let args =
        ["generate", "--json", "--threads", "1", "--budget", "0", "--prompts", file.to_str().expect("UTF-8")];
    let child = start(&[], args);
    // Two of them end within the first steps; the third takes seconds.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill").success());
    let output = child.wait_with_output().expect("kd ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ended: Vec<_> =
        lines.iter().map(|line| (line["index"].as_u64(), line["finish_reason"].as_str())).collect();
    assert_eq!(ended, [(Some(0), Some("length")), (Some(2), Some("length"))], "{out}{err}");
}

#[test]
fn a_tree_can_be_read_by_a_program() {
    let args =
        ["tree", "--quiet", "--json", "--threads", "1", "--prompt", PROMPT, "--budget", "9", "--round", "2"];
    let tree = &run(args).objects()[0];
    let nodes = tree["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 9);
    for (i, node) in nodes.iter().enumerate() {
        let parent = node["parent"].as_u64().expect("a row") as usize;
        let depth =
            |row: usize| if row == 0 { 0 } else { nodes[row - 1]["depth"].as_u64().expect("a depth") };
        assert!(parent <= i && node["depth"] == depth(parent) + 1, "node {i}");
    }
    let accepted = ids(&tree["accepted"]);
    assert!(accepted[0] == 0 && accepted.is_sorted(), "{accepted:?}");
}

#[test]
fn a_request_that_can_never_run_does_not_stop_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("prompts.jsonl");
    fs::write(&file, "{\"prompt\":\"a\",\"max_tokens\":2}\n{\"prompt\":\"b\",\"max_tokens\":5000}\n")
        .expect("a file");
    let ran = generate(&["--quiet", "--json", "--prompts", file.to_str().expect("UTF-8")]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let lines = ran.lines();
    assert_eq!(ids(&lines[0]["output_ids"]).len(), 2);
    assert_eq!(
        (&lines[1]["finish_reason"], &lines[1]["output_ids"]),
        (&"error".into(), &Value::Array(Vec::new()))
    );
    assert!(lines[1]["error"].as_str().is_some_and(|error| error.contains("2048")), "{}", lines[1]);
}

/// What lies behind a stop is no part of the round that `kd tree` draws.
#[test]
fn a_drawn_round_ends_where_the_answer_ends() {
    let draw = |stop: &[&str]| {
        let args = ["tree", "--quiet", "--json", "--threads", "1", "--prompt", PROMPT];
        run([&args, stop].concat()).objects().remove(0)
    };
    let free = draw(&[]);
    let accepted = ids(&free["accepted"]);
    assert!(accepted.len() > 2, "the first round accepts a path");
    let first = free["nodes"][accepted[1] as usize - 1]["token"].to_string();
    let ended = draw(&["--stop-ids", &first]);
    assert_eq!((ids(&ended["accepted"]), ended["next_token"].to_string()), (vec![0], first));
}

#[test]
fn case_files_without_cases_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (cases, out) = (dir.path().join("cases.json"), dir.path().join("out.json"));
    for (what, text) in [(&["text", "chat"][..], "[]"), (&["text", "parser"], "[]"), (&["sampling"], "{}")] {
        fs::write(&cases, text).expect("a file");
        let files = ["--cases", cases.to_str().expect("UTF-8"), "--out", out.to_str().expect("UTF-8")];
        assert_fails(&run([&["golden"], what, &files].concat()), 1, "cases");
        assert!(!out.exists());
    }
}
