//! The demo pair against the golden of its makers: text, logits, drafts, trees and steps.

use std::sync::OnceLock;

use kd_attn::{BlockSegment, Mask, PageId, PagedCache, Segment};
use kd_ddtree::Tree;
use kd_engine::{FinishReason, Models, Request, Speculation};
use kd_tensor::safetensors::SafeTensors;
use kd_tests::drive::{Answer, single, together};
use kd_tests::{compare, demo, demo_models, ids, json, numbers};
use serde_json::Value;

fn expected() -> &'static Value {
    static GOLDEN: OnceLock<Value> = OnceLock::new();
    GOLDEN.get_or_init(|| json(&demo("golden/golden.json")))
}

fn cases() -> &'static [Value] {
    let cases = expected()["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 8);
    cases
}

/// All prompts together, 128 tokens each; EOS does not end them.
fn generate(speculation: Speculation) -> Vec<Answer> {
    greedy_of_the_golden(&demo_models(), speculation)
}

/// The same with any models that should give the golden's tokens.
pub(crate) fn greedy_of_the_golden(models: &Models, speculation: Speculation) -> Vec<Answer> {
    let requests =
        cases().iter().map(|case| Request { speculation, ..Request::new(ids(&case["prompt"]), 128) });
    let answers = together(models, requests);
    for (answer, case) in answers.iter().zip(cases()) {
        assert_eq!(answer.tokens(), ids(&case["greedy"]), "{speculation:?}");
        assert_eq!(answer.end, Some(Ok(FinishReason::Length)));
    }
    answers
}

/// Tree decoding of all prompts, which several tests look at.
fn trees() -> &'static [Answer] {
    static ANSWERS: OnceLock<Vec<Answer>> = OnceLock::new();
    ANSWERS.get_or_init(|| generate(Speculation::Tree { nodes: 16 }))
}

fn steps(answer: &Answer) -> Vec<usize> {
    answer.rounds.iter().map(|round| round.tokens.len()).collect()
}

#[test]
fn plain_decoding_gives_the_greedy_ids() {
    let answers = generate(Speculation::Plain);
    assert!(answers.iter().all(|a| a.stats.rounds == 127 && a.stats.round_tokens == 127));
}

#[test]
fn chains_take_the_steps_of_the_golden() {
    for (answer, case) in generate(Speculation::Chain).iter().zip(cases()) {
        assert_eq!(steps(answer), numbers(&case["steps_chain"]));
    }
}

#[test]
fn trees_take_the_steps_of_the_golden() {
    for (answer, case) in trees().iter().zip(cases()) {
        let expected = numbers(&case["steps_tree16"]);
        assert_eq!(steps(answer), expected);
        assert_eq!(answer.stats.rounds as usize, expected.len());
        assert_eq!(answer.stats.round_tokens as usize, expected.iter().sum::<usize>());
    }
}

/// Research, rows 8 and 29 of the table of faults: acceptance of 1.0 is a broken drafter, not a slow one.
#[test]
fn fault_8_drafts_are_really_accepted() {
    for answer in trees() {
        assert!(answer.accepted() > 3.0, "{} accepted a round", answer.accepted());
    }
}

fn assert_tree(tree: &Tree, expected: &Value, what: &str) {
    let tokens: Vec<u32> = tree.nodes().iter().map(|n| n.token).collect();
    assert_eq!(tokens, ids(&expected["tokens"]), "{what}: tokens");
    let parents: Vec<u32> = tree.nodes().iter().map(|n| n.parent).collect();
    assert_eq!(parents, ids(&expected["parents"]), "{what}: parents");
    let depths: Vec<u32> = tree.nodes().iter().map(|n| n.depth).collect();
    assert_eq!(depths, ids(&expected["depths"]), "{what}: depths");
    let scores = expected["logprobs"].as_array().expect("a list");
    for (node, score) in tree.nodes().iter().zip(scores) {
        let score = score.as_f64().expect("a number");
        assert!((f64::from(node.score) - score).abs() < 1e-3, "{what}: {} for {score}", node.score);
    }
}

#[test]
fn the_first_tree_of_every_prompt() {
    for (answer, case) in trees().iter().zip(cases()) {
        let first = &answer.rounds[0];
        assert_eq!(first.bonus as u64, case["first_tree"]["root"].as_u64().expect("an id"));
        assert_tree(&first.tree, &case["first_tree"], "first tree");
    }
}

#[test]
fn the_trace_of_every_step() {
    let trace = &expected()["trace"];
    let rounds = &trees()[trace["case"].as_u64().expect("an index") as usize].rounds;
    let steps = trace["steps"].as_array().expect("steps");
    assert_eq!(rounds.len(), steps.len());
    for (i, (round, step)) in rounds.iter().zip(steps).enumerate() {
        let what = format!("step {i}");
        assert_eq!(round.start as u64, step["start"].as_u64().expect("a position"), "{what}");
        assert_eq!(u64::from(round.bonus), step["root"].as_u64().expect("an id"), "{what}");
        assert_tree(&round.tree, step, &what);
        assert_eq!(round.rows, numbers(&step["accepted"]), "{what}");
        assert_eq!(round.tokens.last().map(|&t| u64::from(t)), step["next_token"].as_u64(), "{what}");
    }
}

/// Research, row 9 of the table of faults: taps of the wrong layer cost a few per cent of acceptance and no token.
#[test]
fn fault_9_logits_taps_and_draft_logits() {
    assert_logits_taps_and_draft_logits(&demo_models());
}

/// The golden's logits, taps and draft logits, on as many ranks as the models have.
pub(crate) fn assert_logits_taps_and_draft_logits(models: &Models) {
    let pool = single(models);
    let (target, drafter) = (&models.target, models.drafter.as_ref().expect("a drafter"));
    let file = SafeTensors::open(demo("golden/golden.safetensors")).expect("the golden");
    let floats = |name: String| file.storage::<f32>(&name).expect("floats").to_vec();
    for (i, case) in cases().iter().enumerate() {
        let prompt = ids(&case["prompt"]);
        let greedy = ids(&case["greedy"]);
        // The rows that choose the first four tokens: the prompt's last and those of three tokens more.
        let tokens = [&prompt[..], &greedy[..3]].concat();
        let pages: Vec<PageId> = (0..PagedCache::pages_for(tokens.len()) as u32).map(PageId).collect();
        let latents = target.new_cache(pages.len());
        let segment = Segment { pages: &pages, committed: 0, rows: tokens.len(), mask: Mask::Causal };
        let taps = &drafter.config().target_layer_ids;
        let pass = target.forward(&pool, &tokens, &[segment], &latents, taps, &mut ()).expect("a pass");
        let rows = pass.hidden.gather(prompt.len() - 1..tokens.len());
        let logits = target.logits(&pool, &rows);
        compare::floats(&floats(format!("case{i}.logits")), logits.data()).expect("logits");
        compare::floats(&floats(format!("case{i}.taps_last")), pass.taps.row(prompt.len() - 1))
            .expect("taps");

        let mut context = drafter.new_cache(pages.len());
        let all: Vec<usize> = (0..prompt.len()).collect();
        let keys = drafter.context(&pool, &pass.taps.gather(0..prompt.len()), 0..prompt.len());
        context.commit(&keys, &all, &pages, 0);
        let block = BlockSegment { pages: &pages, start: prompt.len() };
        let draft =
            drafter.draft(&pool, target.as_ref().into(), &greedy[..1], &[block], &context).expect("a draft");
        compare::floats(&floats(format!("case{i}.draft_logits")), draft.logits.data()).expect("draft logits");
    }
}

#[test]
fn tokenizer_cases_and_texts() {
    let tokenizer = demo_models().tokenizer.expect("a tokenizer");
    let tokenizer_cases = expected()["tokenizer"].as_array().expect("cases");
    assert!(!tokenizer_cases.is_empty());
    for case in tokenizer_cases {
        let text = case["text"].as_str().expect("text");
        assert_eq!(tokenizer.encode_with_special(text).expect("ids"), ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), false).expect("text"), text);
    }
    for case in cases() {
        for (ids_key, text_key) in [("prompt", "prompt_text"), ("greedy", "greedy_text")] {
            let text = tokenizer.decode(&ids(&case[ids_key]), false).expect("text");
            assert_eq!(Some(text.as_str()), case[text_key].as_str());
        }
    }
}

/// What a stream's events say in pieces is what its tokens say as a whole, control ids left out.
#[test]
fn streamed_text_is_the_text_of_the_tokens() {
    let tokenizer = demo_models().tokenizer.expect("a tokenizer");
    for answer in trees() {
        let shown: Vec<u32> = answer.tokens().into_iter().filter(|&id| !tokenizer.is_control(id)).collect();
        assert_eq!(answer.text, tokenizer.decode(&shown, false).expect("text"));
        assert!(!answer.text.is_empty());
    }
}
