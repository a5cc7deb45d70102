//! Models that several ranks share: the numbers of one rank, the tokens of plain decoding, and what is refused.

use std::num::NonZeroUsize;

use kd_attn::{BlockSegment, Mask, PageId, Segment};
use kd_engine::{Engine, EngineError, Models, Request, SamplingParams, Speculation};
use kd_model::{Target, Trace};
use kd_moe::Routing;
use kd_tensor::{Matrix, Pool};
use kd_tests::binary::{Ran, run, run_in};
use kd_tests::drive::{OPTIONS, alone, plain, single, together};
use kd_tests::random::Numbers;
use kd_tests::{compare, demo, demo_models, golden, ids, sharded_demo_models};

use crate::demo::{assert_logits_taps_and_draft_logits, greedy_of_the_golden};
use crate::lossless::random_company;
use crate::pairs::{at, tree};

const PROMPTS: [&str; 4] =
    ["use std::", "// itoa/src/lib.rs\n/// Writes an integer", "impl", "fn main() {\n    let x ="];

/// Fault marlin.md §5 row 26, on the trained pair: four ranks with one INT4 group of each expert and half a key head.
#[test]
fn the_demo_pair_has_its_golden_numbers_on_two_and_four_ranks() {
    for ranks in [2, 4] {
        let models = sharded_demo_models(ranks);
        assert_logits_taps_and_draft_logits(&models);
        greedy_of_the_golden(&models, Speculation::Tree { nodes: 16 });
    }
}

#[test]
fn speculation_gives_the_tokens_of_plain_decoding_on_every_number_of_ranks() {
    for ranks in [1, 2, 4] {
        let models = sharded_demo_models(ranks);
        let tokenizer = models.tokenizer.as_ref().expect("a tokenizer");
        let prompts = PROMPTS.map(|prompt| tokenizer.encode_ordinary(prompt).expect("ids"));
        for temperature in [0.0, 1.0] {
            let requests = prompts.clone().map(|prompt| at(temperature, Request::new(prompt, 24)));
            let expected = requests.each_ref().map(|request| plain(&models, request));
            for speculation in [Speculation::Chain, Speculation::Tree { nodes: 16 }] {
                let answers =
                    together(&models, requests.iter().map(|r| Request { speculation, ..r.clone() }));
                let mut accepted = 0.0;
                for (answer, plain) in answers.iter().zip(&expected) {
                    answer.assert_equals(plain, &format!("{ranks} ranks, {temperature}, {speculation:?}"));
                    accepted += answer.accepted();
                }
                assert!(
                    accepted > 1.0,
                    "{ranks} ranks, {temperature}, {speculation:?}: drafts are not accepted"
                );
            }
        }
    }
}

#[test]
fn streams_come_and_go_over_ranks() {
    for (ranks, streams) in [(2, 4), (4, 3)] {
        let vocab = demo_models().target.config().vocab_size;
        random_company(&sharded_demo_models(ranks), vocab, streams, 200 + ranks as u64);
    }
}

/// Residuals by depth and experts by layer.
#[derive(Default)]
struct Layers {
    hidden: Vec<Matrix>,
    experts: Vec<Vec<u32>>,
}

impl Trace for Layers {
    fn hidden(&mut self, _depth: usize, hidden: &Matrix) {
        self.hidden.push(hidden.clone());
    }

    fn routing(&mut self, _layer: usize, routing: &Routing) {
        self.experts.push(routing.ids.clone());
    }
}

/// One pass over 40 tokens.
fn layers(models: &Models, pool: &Pool) -> Layers {
    let tokens = Numbers(5).prompt(40, 4096);
    let (pages, mut layers) = ([PageId(0)], Layers::default());
    let segment = Segment { pages: &pages, committed: 0, rows: tokens.len(), mask: Mask::Causal };
    let (target, cache) = (&models.target, models.target.new_cache(1));
    target.forward(pool, &tokens, &[segment], &cache, &[], &mut layers).expect("a pass");
    layers
}

/// Every layer on several ranks has the numbers of one rank but for the order of sums, and only for that: a rank that
/// computed everything alone would have the same bits.
#[test]
fn layer_by_layer_ranks_agree_with_one() {
    let one = layers(&demo_models(), &Pool::single());
    for ranks in [2, 4] {
        let models = sharded_demo_models(ranks);
        let several = layers(&models, &single(&models));
        assert_eq!(several.experts, one.experts, "{ranks} ranks choose the same experts");
        assert_eq!(several.hidden.len(), one.hidden.len());
        for (depth, (several, one)) in several.hidden.iter().zip(&one.hidden).enumerate() {
            let fault = compare::floats(one.data(), several.data());
            fault.unwrap_or_else(|fault| panic!("{ranks} ranks, depth {depth}: {fault}"));
            // The embedding is gathered, not added up.
            assert_eq!(several == one, depth == 0, "{ranks} ranks, depth {depth}");
        }
    }
}

#[test]
fn thread_counts_give_the_same_bits_on_two_ranks() {
    let models = sharded_demo_models(2);
    let pass = |threads: usize| {
        let threads = threads.try_into().expect("threads");
        layers(&models, &Pool::with_ranks(threads, NonZeroUsize::new(2).expect("ranks")).expect("a pool"))
            .hidden
    };
    let one = pass(1);
    assert!([2, 5].into_iter().all(|threads| pass(threads) == one));
}

/// Where threads take rows of a pass apart from each other, a prompt chunk, a tree and a single row that follow one another
/// have the bits of one thread, and so have four streams' drafts, whose blocks three threads cut. Both have rows for four
/// threads; that so many are cut is tested beside `row_parts`.
#[test]
fn rows_taken_apart_have_the_bits_of_one_thread() {
    let models = demo_models();
    let (target, drafter) = (&models.target, models.drafter.as_ref().expect("a drafter"));
    let taps = &drafter.config().target_layer_ids;
    let (mut cache, mut context) = (target.new_cache(4), drafter.new_cache(4));
    let pages = [PageId(2), PageId(0)];
    let committed = 70;
    let known = Numbers(5).prompt(committed, 4096);
    let chunk = Segment { pages: &pages, committed: 0, rows: committed, mask: Mask::Causal };
    let pass = target.forward(&Pool::single(), &known, &[chunk], &cache, taps, &mut ()).expect("a pass");
    let rows: Vec<usize> = (0..committed).collect();
    cache.commit(&pass.latents, &rows, &pages, 0);
    context.commit(&drafter.context(&Pool::single(), &pass.taps, 0..committed), &rows, &pages, 0);

    let nodes = [[0b1, 0], [0b11, 0], [0b100, 0], [0b1001, 0], [0b1_0011, 0], [0b10_0000, 0]];
    let segments = [
        Segment { pages: &pages, committed: 5, rows: 30, mask: Mask::Causal },
        Segment { pages: &pages, committed, rows: 1 + nodes.len(), mask: Mask::Tree(&nodes) },
        Segment { pages: &pages, committed: 64, rows: 1, mask: Mask::Tree(&[]) },
    ];
    let tokens = Numbers(6).prompt(38, 4096);
    let blocks = [committed, 33, 64, 1].map(|start| BlockSegment { pages: &pages, start });
    let of = |threads: usize| {
        let pool = Pool::new(threads.try_into().expect("threads")).expect("a pool");
        let pass = target.forward(&pool, &tokens, &segments, &cache, taps, &mut ()).expect("a pass");
        let draft =
            drafter.draft(&pool, target.as_ref().into(), &[7, 8, 9, 10], &blocks, &context).expect("a draft");
        (pass.hidden, pass.latents, pass.taps, draft.hidden, draft.logits)
    };
    let one = of(1);
    assert!(one.0.data().iter().chain(one.4.data()).all(|x| x.is_finite()));
    for threads in [2, 3, 4] {
        assert!(of(threads) == one, "{threads} threads");
    }
}

#[test]
fn models_and_threads_of_different_ranks_are_refused() {
    let (one, two) = (demo_models(), sharded_demo_models(2));
    let refusal = |models: Models, pool: Pool| match Engine::new(models, pool, OPTIONS) {
        Err(EngineError::Ranks { target, drafter, pool }) => (target, drafter, pool),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(two.clone(), Pool::single()), (2, 2, 1));
    assert_eq!(refusal(one.clone(), single(&two)), (1, 1, 2));
    let mixed = Models { drafter: one.drafter.clone(), ..two.clone() };
    assert_eq!(refusal(mixed, single(&two)), (2, 1, 2));
}

#[track_caller]
fn assert_refused(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!((ran.stdout.as_str(), ran.stderr.lines().count()), ("", 1), "{}", ran.stderr);
    words.iter().for_each(|word| assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr));
}

/// Faults marlin.md §5 rows 10 and 11: a part that cuts a group of scales was found by a crash in a kernel, or not at all.
#[test]
fn what_ranks_cannot_share_is_refused_with_tensor_and_group() {
    let first_expert =
        "`language_model.model.layers.1.mlp.experts.0.gate_proj.weight_packed` cannot be shared";
    let ran = run(["generate", "--quiet", "--tp", "8"]);
    let group = "moe_intermediate_size = 128 does not divide into 8 parts of whole INT4 groups of 32: it leaves 16 a rank";
    assert_refused(&ran, &[first_expert, group, "models/demo/target"]);

    let out = tempfile::tempdir().expect("a folder");
    for (variant, ranks, tensor, problem) in [
        (
            "noqlora",
            "2",
            "layers.2.mlp.experts.0.gate_proj.weight_packed` cannot be shared",
            "96 does not divide into 2 parts of whole INT4 groups of 32: it leaves 48",
        ),
        (
            "base",
            "4",
            first_expert,
            "64 does not divide into 4 parts of whole INT4 groups of 32: it leaves 16",
        ),
        (
            "flat",
            "2",
            "`model.layers.0.self_attn.q_b_proj.weight`",
            "num_attention_heads = 3 does not divide into 2",
        ),
        (
            "base",
            "5",
            "`language_model.model.embed_tokens.weight`",
            "vocab_size = 512 does not divide into 5 parts",
        ),
    ] {
        let (model, file) = (golden(variant).join("checkpoint"), out.path().join("out.safetensors"));
        let inputs = golden(variant).join("inputs.safetensors");
        let paths = [&model, &inputs, &file].map(|path| path.to_str().expect("UTF-8"));
        let ran = run([
            "golden", "model", "--model", paths[0], "--inputs", paths[1], "--out", paths[2], "--tp", ranks,
        ]);
        assert_refused(&ran, &[tensor, problem]);
        assert!(!file.exists());
    }
    let drafter = demo("drafter");
    let drafter = kd_model::Drafter::load_sharded(&drafter, NonZeroUsize::new(3).expect("ranks"));
    let error = drafter.expect_err("4 heads").to_string();
    assert!(error.contains("cannot be shared"), "{error}");
    assert!(Target::load_sharded(&demo("target"), NonZeroUsize::MAX).is_err());
}

#[test]
fn every_spelling_of_the_flag_gives_the_tokens_of_that_many_ranks() {
    let models = sharded_demo_models(4);
    let params = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    let request = Request { params, ..Request::new(vec![10, 20, 30], 12) };
    let expected = alone(&models, &tree(16, &request)).tokens();
    let args =
        "generate --quiet --json --prompt-ids 10,20,30 --max-tokens 12 --temperature 1 --seed 7 --budget 16";
    let args: Vec<&str> = args.split(' ').chain(["--ignore-eos"]).collect();
    let with = |more: &[&'static str]| run([&args[..], more].concat());
    let spellings = [
        with(&["--tp", "4"]),
        with(&["--tensor-parallel-size=4", "--threads", "1"]),
        run_in(&[("KD_TP", "4")], &args, b""),
    ];
    for ran in spellings {
        assert_eq!(ids(&ran.objects()[0]["output_ids"]), expected);
    }
    let ran =
        run(["generate", "--prompt-ids", "10,20,30", "--max-tokens", "1", "--threads", "3", "--tp", "2"]);
    assert!(ran.stderr.contains("on the CPU with 3 threads for 2 ranks"), "{}", ran.stderr);
    assert_eq!(run(["generate", "--tp", "0"]).code, 2);
}

#[test]
fn trees_and_chats_run_over_ranks() {
    let tree =
        run(["tree", "--quiet", "--prompt", "use std::", "--round", "2", "--budget", "8", "--tp", "2"]);
    assert_eq!((tree.code, tree.stdout.contains("8 nodes")), (0, true), "{}", tree.stderr);
    let chat = kd_tests::binary::run_with_input(["chat", "--tp", "2", "--max-tokens", "4"], b"hello\n");
    assert_eq!(chat.code, 0, "{}", chat.stderr);
    assert!(chat.stderr.contains("for 2 ranks"), "{}", chat.stderr);
}
