//! `kd plan`, `kd bench` and calibrations: what they print and write, and what they refuse.

use kd_tests::binary::{run, run_in};
use serde_json::Value;

fn read(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}

const PLAN: [&str; 11] = [
    "plan",
    "--quiet",
    "--threads",
    "1",
    "--streams",
    "1,2",
    "--contexts",
    "40",
    "--max-rows",
    "16",
    "--calibrate",
];

#[test]
fn a_plan_has_curve_regimes_best_cells_picture_and_calibration() {
    let dir = tempfile::tempdir().expect("a folder");
    let [calibration, plot, out] = ["here.json", "cost.svg", "plan.json"].map(|name| dir.path().join(name));
    let ran = run(PLAN.into_iter().chain([text(&calibration), "--plot", text(&plot), "--out", text(&out)]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for expected in ["rows", "streams that draft", "a row", "best (streams, nodes a stream)"] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
    let svg = std::fs::read_to_string(&plot).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.contains("<polyline"));
    let plan = read(&out);
    assert_eq!(plan["best"].as_array().map(Vec::len), Some(2));
    assert!(plan["floors"]["read_bytes_per_second"].as_f64() > Some(0.0));
    let gain = plan["gain_by_nodes"].as_array().expect("numbers");
    assert!(gain.windows(2).all(|n| n[0].as_f64() <= n[1].as_f64()), "more nodes never gain less: {gain:?}");
    assert!(gain[64].as_f64() > Some(0.5), "the demo drafter is accepted: {gain:?}");

    // The automatic budget starts from it, with the same tokens; elsewhere it is refused by name.
    let generate = |threads: &str, more: &[&str]| {
        let args = [
            "generate",
            "--quiet",
            "--json",
            "--prompt-ids",
            "5,6,7",
            "--max-tokens",
            "20",
            "--threads",
            threads,
        ];
        run(args.into_iter().chain(more.iter().copied()))
    };
    let tokens = |stdout: &str| serde_json::from_str::<Value>(stdout).expect("JSON")["output_ids"].clone();
    let seeded = generate("1", &["--calibration", text(&calibration)]);
    assert_eq!(seeded.code, 0, "{}", seeded.stderr);
    assert_eq!(tokens(&seeded.stdout), tokens(&generate("1", &["--budget", "0"]).stdout));
    let refused = generate("2", &["--calibration", text(&calibration)]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("threads") && refused.stderr.contains("kd plan"), "{}", refused.stderr);

    let refused = generate("1", &["--tp", "2", "--calibration", text(&calibration)]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("ranks"), "{}", refused.stderr);

    let refused = generate("1", &["--kv-cache-dtype", "fp8", "--calibration", text(&calibration)]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(
        refused.stderr.contains(r#"its kv_cache_dtype is "auto", but here it is "fp8""#),
        "{}",
        refused.stderr
    );
    assert_eq!(read(&out)["kv_cache_dtype"], "auto");

    let mut broken = read(&calibration);
    broken["verify"][0]["seconds"] = Value::from(-1.0);
    std::fs::write(&calibration, broken.to_string()).expect("written");
    let refused = generate("1", &["--calibration", text(&calibration)]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("verify 0"), "{}", refused.stderr);
}

#[test]
fn a_bench_of_generation_compares_everything_and_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("result.json");
    let prompts = dir.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"use std::\"}\n{\"prompt_ids\": [5, 6, 7]}\n").expect("written");
    let bench = || {
        let args = [
            "bench",
            "generate",
            "--threads",
            "1",
            "--streams",
            "1,2",
            "--max-tokens",
            "12",
            "--repeat",
            "2",
        ];
        run(args.into_iter().chain(["--prompts", text(&prompts), "--out", text(&out)]))
    };
    let ran = bench();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("auto/plain") && ran.stdout.contains("auto / best fixed: least"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("floor of this run"), "{}", ran.stderr);
    let first = read(&out);
    let cells = first["cells"].as_array().expect("cells");
    assert_eq!((cells.len(), cells[0]["runs"].as_array().map(Vec::len)), (8, Some(7)));
    for cell in cells {
        for run in cell["runs"].as_array().expect("runs") {
            let samples = run["tokens_per_second"].as_array().expect("samples");
            let always = ["plain", "auto", "cold"].iter().any(|mode| run["mode"] == *mode);
            assert!(samples.len() == 2 || !always && samples.len() == 1, "{run}");
        }
    }
    // Nothing is measured twice, and a file of another command is no beginning.
    let again = bench();
    assert!(again.stderr.contains("after 8 cells"), "{}", again.stderr);
    assert_eq!(read(&out)["cells"], first["cells"]);
    assert_eq!(first["kv_cache_dtype"], "auto");
    let args =
        ["bench", "generate", "--threads", "1", "--streams", "1", "--max-tokens", "8", "--repeat", "1"];
    let other = run(args.into_iter().chain(["--prompts", text(&prompts), "--out", text(&out)]));
    assert!(!other.stderr.contains("measured before"), "{}", other.stderr);
    assert_eq!(read(&out)["cells"].as_array().map(Vec::len), Some(4));
}

#[test]
fn measurements_that_cannot_be_are_refused() {
    let golden = kd_tests::repository().join("tests/golden/base/checkpoint");
    for (args, contains) in [
        (vec!["bench", "generate", "--budgets", "8,auto"], "plain decoding"),
        (vec!["bench", "generate", "--budgets", "many"], "chain, cold"),
        (vec!["bench", "generate", "--model", text(&golden)], "--drafter"),
        (vec!["plan", "--model", text(&golden)], "--drafter"),
    ] {
        let ran = run(args.iter().copied());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(contains), "{args:?}: {}", ran.stderr);
    }
    let ran = run(["plan", "--contexts", "2000"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("2048"), "{}", ran.stderr);
}

/// What a GPU is needed for says so in one line; where there is one, it has no bundle in this folder.
#[test]
fn a_measurement_of_a_gpu_names_what_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    for args in [
        &["bench", "moe", "--device", "cuda"][..],
        &["bench", "dense", "--device", "cuda"],
        &["bench", "attn", "--profile", "k26-tp1"],
        &["bench", "step", "--layers", "4"],
        &["bench", "attn", "--device", "cuda", "--streams", "1", "--nodes", "1", "--context", "0"],
    ] {
        let variables = [("KD_KERNELS", text(folder.path())), ("KD_DEVICE", "auto")];
        let ran = run_in(&variables, args, b"");
        assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{args:?}: {}", ran.stderr);
        let known = ["no CUDA driver", "no CUDA device", "the CUDA driver supports", "no kernel bundle"];
        assert!(known.iter().any(|what| ran.stderr.contains(what)), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_measurement_without_a_gpu_takes_the_cpu_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("dense.json");
    let variables = [("KD_KERNELS", text(folder.path())), ("KD_SECONDS", "0"), ("KD_DEVICE", "auto")];
    let args = ["bench", "dense", "--m", "1", "--threads", "1", "--out", text(&out)];
    let ran = run_in(&variables, args, b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("kd: measures the CPU: no "), "{}", ran.stderr);
    let machine = &read(&out)["machine"];
    assert!(machine["cpu"].is_string() && machine["device"].is_null(), "{machine}");
}

/// One grammar: what is not a number of rows, a tree, a profile, a file is refused before anything runs, wherever that is.
#[test]
fn flags_of_operations_that_cannot_be_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let peers = folder.path().join("peers.json");
    std::fs::write(&peers, r#"{"other": {"one": 73.9}}"#).expect("written");
    for (code, args, contains) in [
        (2, &["moe", "--m", "0"][..], "1 to 4096"),
        (2, &["moe", "--rows", "1,4097"], "1 to 4096"),
        (2, &["moe", "--routing", "random"], "correlated"),
        (2, &["moe", "--experts", "0"], "--experts"),
        (2, &["moe", "--device", "cpu", "--experts", "48"], "--experts is for a GPU"),
        (2, &["moe", "--device", "cpu", "--routing", "skewed"], "--routing is for a GPU"),
        (2, &["dense", "--device", "cpu", "--profile", "k26-tp8"], "--profile is for a GPU"),
        (2, &["dense", "--seconds", "nan"], "--seconds"),
        (2, &["dense", "--device", "gpu"], "cuda"),
        (2, &["dense", "--out", "a.svg"], "FILE.json"),
        (2, &["attn", "--device", "cpu"], "--device cuda"),
        (2, &["attn", "--nodes", "130"], "1 to 129"),
        (2, &["attn", "--streams", "0"], "1 to 1024"),
        (2, &["attn", "--context", "262145"], "0 to 262144"),
        (2, &["attn", "--threads", "2"], "--threads"),
        (2, &["step", "--device", "cpu"], "--device cuda"),
        (2, &["step", "--layers", "0"], "1 to 256"),
        (2, &["step", "--correlation", "1.5"], "0 to 1"),
        (2, &["step", "--profile", "golden-realdims-tp1"], "a profile with a drafter"),
        (2, &["step", "--profile", "k27"], "--profile k27"),
        (1, &["moe", "--peer-json", "/no/such/peers.json"], "/no/such/peers.json"),
        (1, &["moe", "--peer-json", text(&peers)], "peers.json is not"),
    ] {
        let ran = run([&["bench"], args].concat());
        assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(contains), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked") && ran.stdout.is_empty(), "{args:?}: {}", ran.stderr);
    }
}
