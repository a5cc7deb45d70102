//! Faults that other engines have had. Numbers are rows of the tables in the research on DFlash and DDTree, and with
//! `k26` those of the research on K2.6.

use half::bf16;
use kd_attn::{BlockSegment, Mask, PageId, PagedCache, Segment};
use kd_engine::{Engine, EngineOptions, Models, Request, Speculation, StreamError};
use kd_model::{Drafter, Lent, Trace};
use kd_tensor::{Matrix, Pool};
use kd_tests::drive::{OPTIONS, alone, plain, run, together};
use kd_tests::random::{DrafterShape, Numbers, Tensors, edit_bf16, pair};
use kd_tests::{byte_tokenizer, demo, demo_models, golden, ids, json};

use crate::antifake::{Context, logits, masks, random_tree};
use crate::pairs::{BUDGETS, NARROW, WIDE, at, fixed, narrow, narrow_shape, request, tree, wide};

#[derive(Default)]
struct Residuals(Vec<Matrix>);

impl Trace for Residuals {
    fn hidden(&mut self, depth: usize, hidden: &Matrix) {
        assert_eq!(depth, self.0.len());
        self.0.push(hidden.clone());
    }
}

#[test]
fn fault_9_taps_are_the_outputs_of_their_layers() {
    let models = demo_models();
    let mut n = Numbers(20);
    let tokens = n.prompt(11, 4096);
    let (cache, pages, mut residuals) = (models.target.new_cache(1), [PageId(0)], Residuals::default());
    let segment = |rows| Segment { pages: &pages, committed: 0, rows, mask: Mask::Causal };
    let taps = [4, 0, 5];
    let pass = models
        .target
        .forward(&Pool::single(), &tokens, &[segment(4), segment(7)], &cache, &taps, &mut residuals)
        .expect("a pass");
    let width = models.target.config().hidden_size;
    for (slot, tap) in taps.into_iter().enumerate() {
        for row in 0..tokens.len() {
            let found = &pass.taps.row(row)[slot * width..][..width];
            assert_eq!(found, residuals.0[tap + 1].row(row), "tap {tap}, row {row}");
        }
    }
}

#[test]
fn fault_10_a_windowed_drafter_sees_its_window_and_nothing_before() {
    let folder = golden("drafter/window_keys/checkpoint");
    let drafter = Drafter::load(&folder).expect("the drafter");
    let window = drafter.config().layers[0].window.expect("a window");
    assert!(drafter.config().layers.iter().all(|layer| layer.window == Some(window)));
    let pool = Pool::single();
    let width = drafter.config().hidden_size;
    let mut n = Numbers(10);
    let mut table = || {
        let values =
            (0..drafter.config().vocab_size * width).map(|_| bf16::from_f32(n.normal())).collect::<Vec<_>>();
        kd_tensor::Bf16Matrix::new(drafter.config().vocab_size, width, values).expect("a matrix")
    };
    let (embed, head) = (table(), table());
    let lent = Lent { embed: Some(&embed), head: Some(&head) };
    let pages = [PageId(0)];
    for start in [window - 1, window, window + 1, 4 * window] {
        let taps = (0..start * drafter.config().tap_width()).map(|_| n.normal()).collect();
        let taps = Matrix::from_vec(start, drafter.config().tap_width(), taps).expect("a matrix");
        let mut cache = drafter.new_cache(1);
        let all: Vec<usize> = (0..start).collect();
        cache.commit(&drafter.context(&pool, &taps, 0..start), &all, &pages, 0);
        let draft = |cache: &PagedCache| {
            let block = BlockSegment { pages: &pages, start };
            drafter.draft(&pool, lent, &[3], &[block], cache).expect("a draft").logits.data().to_vec()
        };
        let seen = draft(&cache);
        // The bonus token at `start` sees W keys counting itself, so W - 1 of the context.
        let oldest = (start + 1).saturating_sub(window);
        let mut poison = |positions: std::ops::Range<usize>| {
            for (layer, position) in (0..cache.layers()).flat_map(|l| positions.clone().map(move |p| (l, p)))
            {
                cache.write(layer, &pages, position, &vec![f32::NAN; cache.width()]);
            }
            draft(&cache)
        };
        assert_eq!(poison(0..oldest), seen, "start {start}: a key before the window is seen");
        assert!(
            poison(oldest..oldest + 1).iter().any(|x| x.is_nan()),
            "start {start}: the oldest key is not seen"
        );
    }
}

/// A token whose embedding is NaN.
const POISON: u32 = 4;

fn poisoned() -> Models {
    let (target, drafter) = narrow_shape();
    let edit = |tensors: &mut Tensors| {
        edit_bf16(tensors, "language_model.model.embed_tokens.weight", |values| {
            let width = values.len() / NARROW;
            values[POISON as usize * width..][..width].fill(bf16::NAN);
        });
    };
    pair(&target, &drafter, 1, edit)
}

fn never_poison(mut request: Request) -> Request {
    request.params.forbidden_ids = vec![POISON];
    request.prompt.iter_mut().for_each(|id| *id %= POISON);
    request
}

#[test]
fn fault_18_nan_ends_its_stream_and_no_other() {
    let models = poisoned();
    let clean = [3, 64, 9].map(|len| never_poison(at(0.7, fixed(len, NARROW, 20))));
    let mut dirty = fixed(12, NARROW, 20);
    dirty.prompt[7] = POISON;
    // Fails in some round, once the poison has been drawn.
    let mut later = never_poison(at(1.3, fixed(5, NARROW, 20)));
    later.params.forbidden_ids.clear();
    later.params.logit_bias = vec![(POISON, -1.0)];
    let [a, b, c] = clean.clone();
    for budget in [0, 8, 128] {
        let mut requests = vec![a.clone(), dirty.clone(), b.clone(), later.clone(), c.clone()];
        requests.iter_mut().for_each(|r| *r = tree(budget, r));
        // `run` checks that all pages come back.
        let answers = together(&models, requests);
        assert!(
            matches!(answers[1].end, Some(Err(StreamError::Sample { position: 12, .. }))),
            "{:?}",
            answers[1].end
        );
        assert!(answers[1].choices.is_empty(), "NaN became a token");
        assert!(matches!(answers[3].end, Some(Err(StreamError::Sample { .. }))), "{:?}", answers[3].end);
        assert_eq!(answers[3].tokens().last(), Some(&POISON), "the error comes after the poison, not before");
        answers[3].assert_equals(&plain(&models, &later), "up to the error");
        for (answer, request) in [0, 2, 4].map(|i| &answers[i]).into_iter().zip(&clean) {
            // The same model without poison: trees held poisoned nodes, and they did no harm.
            answer.assert_equals(&plain(&narrow(), request), "beside NaN");
        }
    }
}

#[test]
fn fault_18_pages_that_held_nan_serve_the_next_stream() {
    let models = poisoned();
    let options = EngineOptions { max_streams: 1, cache_tokens: 128, prefill_chunk: 256, mixed_chunk: 256 };
    let mut engine = Engine::new(models, Pool::single(), options).expect("a pair that fits");
    let dirty = tree(16, &Request::new(vec![POISON; 100], 20));
    let clean = tree(16, &never_poison(fixed(100, NARROW, 20)));
    let answers = run(&mut engine, &[dirty.into(), clean.clone().into()]);
    assert!(answers[0].end.as_ref().is_some_and(Result::is_err));
    answers[1].assert_equals(&plain(&narrow(), &clean), "after NaN");
}

#[test]
fn fault_k26_1_broken_logits_are_an_error_and_not_token_0() {
    let (target, drafter) = narrow_shape();
    for value in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        let edit =
            |tensors: &mut Tensors| edit_bf16(tensors, "language_model.lm_head.weight", |w| w.fill(value));
        let models = pair(&target, &drafter, 1, edit);
        for temperature in [0.0, 1.0] {
            let answer = alone(&models, &tree(16, &at(temperature, fixed(3, NARROW, 5))));
            assert!(answer.choices.is_empty());
            assert!(matches!(answer.end, Some(Err(StreamError::Sample { position: 3, .. }))));
        }
    }
}

#[test]
fn fault_18_a_segment_without_rows_in_a_ragged_batch() {
    let models = narrow();
    let mut n = Numbers(18);
    let context = Context::new(&models, &n.prompt(10, NARROW), vec![PageId(0)], 1);
    let tokens = n.prompt(5, NARROW);
    let segments = [0, 2, 0, 3, 0].map(|rows| context.segment(rows, Mask::Causal));
    let ragged = logits(&models.target, &context.cache, &tokens, &segments);
    let apart = [&tokens[..2], &tokens[2..]].map(|tokens| context.logits(tokens, Mask::Causal)).concat();
    assert_eq!(ragged, apart);
}

#[test]
fn fault_21_company_changes_neither_text_nor_acceptance() {
    let models = narrow();
    let request = |i: usize| tree(BUDGETS[i % 11], &at([0.0, 1.3][i % 2], fixed(1 + 5 * i, NARROW, 16)));
    let solo: Vec<_> = (0..16).map(|i| alone(&models, &request(i))).collect();
    for streams in [1, 2, 4, 16] {
        for (answer, solo) in together(&models, (0..streams).map(request)).iter().zip(&solo) {
            answer.assert_equals(solo, "with others");
            assert_eq!(answer.rounds.len(), solo.rounds.len());
            for (round, solo) in answer.rounds.iter().zip(&solo.rounds) {
                assert_eq!((&round.tree, &round.rows, &round.tokens), (&solo.tree, &solo.rows, &solo.tokens));
            }
        }
    }
}

#[test]
fn fault_26_and_33_budgets_under_and_over_the_block() {
    // Block 16, and 12 nodes: the case that crashed elsewhere.
    let (target, narrow_drafter) = narrow_shape();
    for block in [2, 3, 16] {
        let drafter = DrafterShape { block, ..narrow_drafter.clone() };
        let models = pair(&target, &drafter, 3, |_| ());
        let request = at(0.7, fixed(6, NARROW, 18));
        let expected = plain(&models, &request);
        for budget in [0, 1, 2, block - 2, block - 1, block, 12, 63, 64, 65, 127, 128] {
            let answer = alone(&models, &tree(budget, &request));
            answer.assert_equals(&expected, &format!("block {block}, budget {budget}"));
            for round in &answer.rounds {
                // Only when every path is in the tree does it stay under the budget.
                let all: usize = (1..block)
                    .map(|depth| NARROW.saturating_pow(depth as u32))
                    .fold(0, usize::saturating_add);
                assert_eq!(round.tree.len(), budget.min(all));
                assert!(round.tree.max_depth() < block);
            }
        }
        let chain = alone(&models, &Request { speculation: Speculation::Chain, ..request });
        assert!(chain.rounds.iter().all(|round| round.tree.len() == block - 1));
    }
}

#[test]
fn fault_27_nodes_of_ragged_trees_equal_runs_over_their_paths() {
    for (models, vocab) in [(narrow(), NARROW), (wide(), WIDE)] {
        let mut n = Numbers(27);
        let lengths = [62, 0, 65];
        let prompts = lengths.map(|len| n.prompt(len, vocab));
        // One cache, pages of the streams interleaved.
        let pages = [[0, 3], [1, 4], [5, 2]].map(|ids| ids.map(PageId).to_vec());
        let mut cache = models.target.new_cache(6);
        for (prompt, pages) in prompts.iter().zip(&pages).filter(|(prompt, _)| !prompt.is_empty()) {
            let own = Context::new(&models, prompt, pages.clone(), 6);
            for (layer, position) in (0..cache.layers()).flat_map(|l| (0..prompt.len()).map(move |p| (l, p)))
            {
                cache.write(layer, pages, position, &own.cache.token(layer, pages, position));
            }
        }
        let trees = [70, 3, 12].map(|nodes| random_tree(&mut n, nodes, vocab));
        let masks = [0, 1, 2].map(|i| masks(&trees[i].0));
        let segments = [0, 1, 2].map(|i| Segment {
            pages: &pages[i],
            committed: lengths[i],
            rows: trees[i].1.len(),
            mask: Mask::Tree(&masks[i]),
        });
        let tokens: Vec<u32> = trees.iter().flat_map(|(_, rows)| rows.clone()).collect();
        let all = logits(&models.target, &cache, &tokens, &segments);
        let mut row = all.iter();
        for ((tree, rows), prompt) in trees.iter().zip(&prompts) {
            for node in tree.rows() {
                // Prompt, root and path from nothing, in pages of their own.
                let mut path = prompt.clone();
                path.push(rows[0]);
                path.extend(tree.path_tokens(node));
                let fresh = Context::new(&models, &[], vec![PageId(1), PageId(0)], 2);
                let expected = fresh.logits(&path, Mask::Causal);
                assert_eq!(row.next(), expected.last(), "node {node} after {} tokens", prompt.len());
            }
        }
    }
}

#[test]
fn fault_32_counters_stay_with_their_requests_in_any_order() {
    let models = narrow();
    let mut n = Numbers(32);
    let requests: Vec<Request> = (0..8).map(|_| request(&mut n, NARROW)).collect();
    let counters = |a: &kd_tests::drive::Answer| {
        let s = &a.stats;
        (
            s.rounds,
            s.round_tokens,
            s.nodes,
            s.drafted_by_depth.clone(),
            s.accepted_by_depth.clone(),
            s.generated,
        )
    };
    let expected = together(&models, requests.clone());
    assert!(
        expected.iter().any(|a| counters(a) != counters(&expected[0])),
        "all alike: nothing could be confused"
    );
    for _ in 0..3 {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        n.shuffle(&mut order);
        let answers = together(&models, order.iter().map(|&i| requests[i].clone()));
        for (answer, &i) in answers.iter().zip(&order) {
            answer.assert_equals(&expected[i], "in another order");
            assert_eq!(counters(answer), counters(&expected[i]));
        }
    }
}

#[test]
fn fault_35_the_mask_id_is_an_ordinary_token() {
    for (models, vocab) in [(narrow(), NARROW), (wide(), WIDE)] {
        let mask = models.drafter.as_ref().expect("a drafter").config().mask_token_id;
        let mut request = fixed(4, vocab, 10);
        request.prompt[1] = mask;
        request.params.logit_bias = vec![(mask, 1e6)];
        for budget in [0, 8, 128] {
            let answer = alone(&models, &tree(budget, &request));
            assert_eq!(answer.tokens(), [mask; 10], "budget {budget}");
            answer.assert_equals(&plain(&models, &request), "the mask id");
        }
    }
}

#[test]
fn a_token_without_text_ends_its_stream_where_plain_decoding_would() {
    // The demo pair with a tokenizer that knows only ids below 512.
    let models = Models { tokenizer: Some(byte_tokenizer()), ..demo_models() };
    let golden = json(&demo("golden/golden.json"));
    let case = &golden["cases"][3];
    let (prompt, greedy) = (ids(&case["prompt"]), ids(&case["greedy"]));
    assert!(greedy[0] < 512 && greedy[1] < 512 && greedy[2] >= 512, "the third token has no text");
    let request = Request::new(prompt, 20);
    let expected = plain(&models, &request);
    assert_eq!(expected.tokens(), greedy[..2]);
    assert!(matches!(expected.end, Some(Err(StreamError::Decode(_)))));
    alone(&models, &tree(16, &request)).assert_equals(&expected, "up to the token without text");
}

#[test]
fn a_drafter_of_another_target_is_refused() {
    let other = Models { drafter: demo_models().drafter, ..narrow() };
    let error = Engine::new(other, Pool::single(), OPTIONS).expect_err("a mismatch");
    assert!(error.to_string().contains("does not fit"), "{error}");
    let plain_only = Models { drafter: None, ..narrow() };
    let mut engine = Engine::new(plain_only, Pool::single(), OPTIONS).expect("a target alone");
    assert!(engine.submit(tree(1, &fixed(3, NARROW, 3))).is_err());
    assert!(engine.submit(tree(0, &fixed(3, NARROW, 3))).is_ok());
}
