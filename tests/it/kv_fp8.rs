//! Pages of the second format: other numbers than with pages of the first, and still no token that depends on speculation.

use std::sync::Arc;

use kd_attn::{KvCacheDtype, Mask, PageId, PagedCache};
use kd_engine::{Models, Request, Speculation};
use kd_tests::binary::run;
use kd_tests::drive::{alone, plain, together};
use kd_tests::random::{Numbers, pair};
use kd_tests::{demo_models, sharded_demo_models};

use crate::antifake::{Context, logits, masks, random_tree};
use crate::lossless::random_company;
use crate::pairs::{NARROW, TEMPERATURES, WIDE, at, fixed, narrow, narrow_shape, tree, wide_shape};

/// The same models with fp8 pages.
fn with_fp8(models: Models) -> Models {
    let target = Arc::into_inner(models.target).expect("nobody else has it");
    Models { target: Arc::new(target.with_kv_cache_dtype(KvCacheDtype::Fp8)), ..models }
}

fn narrow_fp8() -> Models {
    let (target, drafter) = narrow_shape();
    with_fp8(pair(&target, &drafter, 1, |_| ()))
}

fn wide_fp8() -> Models {
    let (target, drafter) = wide_shape();
    with_fp8(pair(&target, &drafter, 2, |_| ()))
}

#[test]
fn trees_and_chains_give_the_tokens_of_plain_decoding() {
    let models = narrow_fp8();
    for temperature in TEMPERATURES {
        let requests: Vec<Request> =
            [1, 63, 64, 65].map(|len| at(temperature, fixed(len, NARROW, 40))).into();
        let expected: Vec<_> = requests.iter().map(|r| plain(&models, r)).collect();
        let chain = |r: &Request| Request { speculation: Speculation::Chain, ..r.clone() };
        let mut runs = vec![together(&models, requests.iter().map(chain))];
        runs.extend(
            [1, 8, 65, 128].map(|budget| together(&models, requests.iter().map(|r| tree(budget, r)))),
        );
        for answers in runs {
            for (answer, plain) in answers.iter().zip(&expected) {
                answer.assert_equals(plain, &format!("temperature {temperature}"));
            }
        }
    }
}

#[test]
fn random_streams_come_and_go() {
    for (seed, streams) in [2, 8, 16].into_iter().enumerate() {
        random_company(&narrow_fp8(), NARROW, streams, 200 + seed as u64);
        random_company(&wide_fp8(), WIDE, streams, 300 + seed as u64);
    }
}

#[test]
fn ranks_give_the_tokens_of_their_own_plain_decoding() {
    let models = with_fp8(sharded_demo_models(2));
    let request = at(0.7, Request::new(vec![10, 20, 30, 40], 40));
    alone(&models, &tree(16, &request)).assert_equals(&plain(&models, &request), "two ranks");
}

/// A key has the same bits in a page and among the rows of the pass: nodes equal runs over their paths, wherever these were cut.
#[test]
fn a_node_cannot_tell_whether_its_path_is_in_pages() {
    let models = wide_fp8();
    let mut n = Numbers(8);
    let prompt = n.prompt(62, WIDE);
    let (tree, rows) = random_tree(&mut n, 40, WIDE);
    let masks = masks(&tree);
    let nodes =
        Context::new(&models, &prompt, [1, 0].map(PageId).into(), 2).logits(&rows, Mask::Tree(&masks));
    for (node, seen) in tree.rows().zip(&nodes) {
        let path: Vec<u32> = [rows[0]].into_iter().chain(tree.path_tokens(node)).collect();
        for cut in 0..path.len() {
            let mut context = Context::new(&models, &prompt, [0, 2].map(PageId).into(), 3);
            if cut > 0 {
                context.commit(&path[..cut], Mask::Causal, &(0..cut).collect::<Vec<_>>());
            }
            let alone = context.logits(&path[cut..], Mask::Causal);
            assert_eq!(alone.last(), Some(seen), "node {node}, {cut} of its path in pages");
        }
    }
}

/// What is committed is what the pass computed, and it comes back from the page bit by bit; it is not what bf16 or f32 pages hold.
#[test]
fn pages_hold_what_the_pass_gave_and_that_is_rounded() {
    let (plain, fp8) = (narrow(), narrow_fp8());
    let tokens = Numbers(3).prompt(70, NARROW);
    let pages = [PageId(0), PageId(1)];
    let pool = kd_tensor::Pool::single();
    let of = |models: &Models| {
        let mut cache = models.target.new_cache(2);
        let segment = kd_attn::Segment { pages: &pages, committed: 0, rows: 70, mask: Mask::Causal };
        let pass = models.target.forward(&pool, &tokens, &[segment], &cache, &[], &mut ()).expect("a pass");
        cache.commit(&pass.latents, &(0..70).collect::<Vec<_>>(), &pages, 0);
        let stored = |layer, cache: &PagedCache| cache.tokens(layer, &pages, 0..70).rows().concat();
        for (layer, latents) in pass.latents.iter().enumerate() {
            assert_eq!(stored(layer, &cache), latents.data(), "layer {layer}");
        }
        (
            stored(0, &cache),
            logits(&models.target, &cache, &[1], &[kd_attn::Segment { committed: 70, rows: 1, ..segment }]),
        )
    };
    let (exact, rounded) = (of(&plain), of(&fp8));
    let width = exact.0.len() / 70;
    for (exact, rounded) in exact.0.chunks(width).zip(rounded.0.chunks(width)) {
        let largest = exact.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        assert!(exact != rounded);
        for (exact, rounded) in exact.iter().zip(rounded) {
            // Half of the last of four bits, or of the smallest code: 2^-10 of a scale, which is at most 2^-7 of the largest value.
            assert!(
                (exact - rounded).abs() <= (exact.abs() / 16.0).max(largest / 131_072.0),
                "{exact} {rounded}"
            );
        }
    }
    assert_ne!(exact.1, rounded.1, "the logits know of the format");
}

#[test]
fn the_flag_chooses_the_format() {
    let models = with_fp8(sharded_demo_models(1));
    let ids = |models: &Models, request: &Request| -> Vec<usize> {
        plain(models, request).tokens().iter().map(|&id| id as usize).collect()
    };
    // A prompt whose answers can tell the formats apart.
    let requests = (0..40).map(|seed| Request::new(Numbers(seed).prompt(48, 256), 40));
    let told =
        requests.map(|r| (ids(&models, &r), ids(&demo_models(), &r), r)).find(|(fp8, auto, _)| fp8 != auto);
    let (fp8, auto, request) = told.expect("a prompt of forty");
    let prompt = request.prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let with = |dtype: &str, budget: &str| {
        let fixed =
            ["generate", "--quiet", "--json", "--device", "cpu", "--ignore-eos", "--max-tokens", "40"];
        let chosen = ["--prompt-ids", &prompt, "--kv-cache-dtype", dtype, "--budget", budget];
        kd_tests::numbers(&run([&fixed[..], &chosen].concat()).objects()[0]["output_ids"])
    };
    assert_eq!(with("fp8", "16"), fp8);
    assert_eq!(with("fp8_e4m3", "0"), fp8);
    assert_eq!(with("auto", "16"), auto);
    let refused = run(["generate", "--kv-cache-dtype", "fp4"]);
    assert!(refused.code == 2 && refused.stderr.contains("fp8"), "{}", refused.stderr);
}

/// Limits of its own: an untrained model of K2.6's head sizes passes on every rounding of a latent. Those of the other formats stand.
#[test]
fn realdims_golden_within_the_limits_of_fp8() {
    let (dir, folder) = (tempfile::tempdir().expect("a folder"), kd_tests::golden("realdims"));
    let out = dir.path().join("engine.safetensors");
    let ran = run([
        "golden".as_ref(),
        "model".as_ref(),
        "--model".as_ref(),
        folder.join("checkpoint").as_os_str(),
        "--inputs".as_ref(),
        folder.join("inputs.safetensors").as_os_str(),
        "--out".as_ref(),
        out.as_os_str(),
        "--kv-cache-dtype=fp8".as_ref(),
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let open = |path: &std::path::Path| kd_tensor::safetensors::SafeTensors::open(path).expect("a file");
    let (golden, engine) = (open(&folder.join("golden.safetensors")), open(&out));
    let both =
        |name: &str| [&golden, &engine].map(|file| file.storage::<f32>(name).expect("an array").to_vec());
    for (name, limit) in [("case.one", 0.06), ("case.robust", 0.2), ("tree.robust", 0.25)] {
        let [expected, found] = both(&format!("{name}.logits"));
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let error =
            norm(&mut expected.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied());
        assert!(error > 0.005 && error < limit, "{name}: logits are off by {error} of their size");
    }
    // No error of an earlier layer is in the first one's latents: each is off by its own rounding alone.
    let [expected, found] = both("case.mid.ckv");
    let width = 512;
    for (expected, found) in expected.chunks(width).zip(found.chunks(width)).take(33) {
        let largest = expected.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        for (exact, found) in expected.iter().zip(found) {
            let allowed = (exact.abs() / 16.0).max(largest / 224.0 / 1024.0) * 1.001;
            assert!((exact - found).abs() <= allowed, "{found} for {exact}");
        }
    }
}
