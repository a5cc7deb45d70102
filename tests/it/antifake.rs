//! What a fake or half-broken engine could not do.

use std::sync::Arc;

use kd_attn::{Ancestors, Mask, PAGE_TOKENS, PageId, PagedCache, Segment};
use kd_ddtree::Tree;
use kd_engine::{Engine, Models, Request};
use kd_model::{OpCounter, Target};
use kd_tensor::Pool;
use kd_tests::drive::{OPTIONS, alone, plain};
use kd_tests::random::{Numbers, Tensors, edit_bf16, pair, scrambled_drafter};
use kd_tests::{demo, demo_models};

use crate::pairs::{NARROW, WIDE, at, fixed, narrow, narrow_shape, tree, wide};

/// A context in pages, and the passes that look at it.
pub(crate) struct Context {
    target: Arc<Target>,
    pub(crate) cache: PagedCache,
    pub(crate) pages: Vec<PageId>,
    pub(crate) committed: usize,
}

impl Context {
    /// `tokens` committed to these pages of a cache of `total`; every other value of the cache is NaN.
    pub(crate) fn new(models: &Models, tokens: &[u32], pages: Vec<PageId>, total: usize) -> Self {
        let target = models.target.clone();
        let mut cache = target.new_cache(total);
        (0..total as u32).for_each(|page| cache.fill_page(PageId(page), f32::NAN));
        let mut context = Self { target, cache, pages, committed: 0 };
        if !tokens.is_empty() {
            context.commit(tokens, Mask::Causal, &(0..tokens.len()).collect::<Vec<_>>());
        }
        context
    }

    pub(crate) fn segment<'a>(&'a self, rows: usize, mask: Mask<'a>) -> Segment<'a> {
        Segment { pages: &self.pages, committed: self.committed, rows, mask }
    }

    /// Logits of rows after this context, one list a row.
    pub(crate) fn logits(&self, tokens: &[u32], mask: Mask<'_>) -> Vec<Vec<f32>> {
        let segment = self.segment(tokens.len(), mask);
        logits(&self.target, &self.cache, tokens, &[segment])
    }

    /// Runs `tokens` and commits the named rows.
    pub(crate) fn commit(&mut self, tokens: &[u32], mask: Mask<'_>, rows: &[usize]) {
        let segment = Segment { pages: &self.pages, committed: self.committed, rows: tokens.len(), mask };
        let pool = Pool::single();
        let pass = self.target.forward(&pool, tokens, &[segment], &self.cache, &[], &mut ()).expect("a pass");
        self.cache.commit(&pass.latents, rows, &self.pages, self.committed);
        self.committed += rows.len();
    }
}

pub(crate) fn logits(
    target: &Target,
    cache: &PagedCache,
    tokens: &[u32],
    segments: &[Segment<'_>],
) -> Vec<Vec<f32>> {
    let pool = Pool::single();
    let pass = target.forward(&pool, tokens, segments, cache, &[], &mut ()).expect("a pass");
    target.logits(&pool, &pass.hidden).iter_rows().map(<[f32]>::to_vec).collect()
}

/// A random tree and its tokens, the root first.
pub(crate) fn random_tree(n: &mut Numbers, nodes: usize, vocab: usize) -> (Tree, Vec<u32>) {
    let tokens = n.prompt(nodes, vocab);
    let parents: Vec<i64> = (0..nodes).map(|i| n.below(i + 1) as i64 - 1).collect();
    let (tree, _) = Tree::from_parents(&tokens, &parents).expect("a tree");
    let root = n.below(vocab) as u32;
    let rows = std::iter::once(root).chain(tree.nodes().iter().map(|node| node.token)).collect();
    (tree, rows)
}

pub(crate) fn masks(tree: &Tree) -> Vec<Ancestors> {
    (1..=tree.len()).map(|row| tree.mask(row)).collect()
}

fn pages(ids: impl IntoIterator<Item = u32>) -> Vec<PageId> {
    ids.into_iter().map(PageId).collect()
}

#[test]
fn a_round_is_one_attention_call_a_layer_over_all_rows_of_all_trees() {
    let models = narrow();
    let layers = models.target.config().num_hidden_layers as u64;
    let mut engine = Engine::new(models, Pool::single(), OPTIONS).expect("a pair that fits");
    for (len, nodes) in [(5, 64), (9, 17), (2, 0)] {
        engine.submit(tree(nodes, &fixed(len, NARROW, 40))).expect("a valid request");
    }
    // Prefill, and the first round with it.
    engine.step();
    for _ in 0..4 {
        let before = engine.ops();
        let step = engine.step();
        let nodes: Vec<usize> = step.rounds.iter().map(|round| round.tree.len()).collect();
        assert_eq!(nodes, [64, 17, 0]);
        let rows: usize = nodes.iter().map(|nodes| 1 + nodes).sum();
        let OpCounter { attention_calls, attention_rows } = engine.ops();
        assert_eq!(attention_calls - before.attention_calls, layers);
        assert_eq!(attention_rows - before.attention_rows, layers * rows as u64);
    }
}

/// The requests with a tree, against plain decoding; tokens a round.
fn rate(models: &Models, requests: &[Request]) -> f64 {
    let (mut rounds, mut tokens) = (0, 0);
    for request in requests {
        let answer = alone(models, &tree(16, request));
        answer.assert_equals(&plain(models, request), "random drafter");
        assert!(answer.rounds.iter().all(|round| round.tree.len() == 16), "drafts are really made");
        (rounds, tokens) = (rounds + answer.stats.rounds, tokens + answer.stats.round_tokens);
    }
    tokens as f64 / rounds as f64
}

#[test]
fn a_random_drafter_changes_speed_and_never_tokens() {
    let random = rate(&wide(), &[3, 65].map(|len| at(0.7, fixed(len, WIDE, 24))));
    assert!(random < 1.3, "{random} tokens a round from a random drafter");
    // The demo target with its own drafter, and with the same drafter's weights in disorder.
    let trained = demo_models();
    let scrambled = Some(Arc::new(scrambled_drafter(&demo("drafter"), 3)));
    let untrained = Models { drafter: scrambled, ..trained.clone() };
    let prompt = trained.tokenizer.as_ref().expect("a tokenizer").encode_ordinary("use std::fmt;\n\nimpl");
    let request = [Request::new(prompt.expect("ids"), 32)];
    let (good, bad) = (rate(&trained, &request), rate(&untrained, &request));
    assert!(
        good > 2.0 && bad < 1.3,
        "{good} tokens a round from the trained drafter, {bad} from the scrambled one"
    );
}

#[test]
fn one_other_weight_gives_other_tokens() {
    let (target, drafter) = narrow_shape();
    let request = tree(32, &at(0.7, fixed(33, NARROW, 60)));
    let original = alone(&narrow(), &request).tokens();
    let unchanged = pair(&target, &drafter, 1, |_| ());
    assert_eq!(alone(&unchanged, &request).tokens(), original, "the same seed gives the same model");
    for name in [
        "layers.0.self_attn.kv_a_proj_with_mqa",
        "layers.0.self_attn.q_a_proj",
        "layers.1.self_attn.o_proj",
        "layers.0.mlp.up_proj",
        "layers.1.mlp.gate",
        "layers.1.mlp.shared_experts.down_proj",
        "layers.1.post_attention_layernorm",
        "norm",
    ] {
        let name = format!("language_model.model.{name}.weight");
        // One direction may only push an expert further down that no token chooses anyway.
        let differs = [8.0, -8.0].map(|by| {
            let other =
                |tensors: &mut Tensors| edit_bf16(tensors, &name, |w| w[7] += half::bf16::from_f32(by));
            let models = pair(&target, &drafter, 1, other);
            let answer = alone(&models, &request);
            answer.assert_equals(&plain(&models, &request), &name);
            answer.tokens() != original
        });
        assert!(differs.contains(&true), "{name} does not matter");
    }
    let expert = "language_model.model.layers.1.mlp.experts.2.down_proj.weight_scale";
    let models = pair(&target, &drafter, 1, |t| edit_bf16(t, expert, |w| w[0] += half::bf16::from_f32(8.0)));
    assert_ne!(alone(&models, &request).tokens(), original, "{expert} does not matter");
}

#[test]
fn the_first_key_of_the_context_is_seen_by_every_row() {
    let models = narrow();
    let mut n = Numbers(4);
    let (tree, rows) = random_tree(&mut n, 20, NARROW);
    let masks = masks(&tree);
    let mut context = Context::new(&models, &n.prompt(70, NARROW), pages(0..2), 2);
    let seen = context.logits(&rows, Mask::Tree(&masks));
    // As good as hidden: a latent of zeros adds nothing but its share of the softmax.
    for layer in 0..models.target.config().num_hidden_layers {
        let zeros = vec![0.0; context.cache.width()];
        context.cache.write(layer, &[PageId(0)], 0, &zeros);
    }
    let hidden = context.logits(&rows, Mask::Tree(&masks));
    assert!(seen.iter().zip(&hidden).all(|(a, b)| a != b), "a row does not see the first key");
}

#[test]
fn a_node_sees_its_ancestors_and_nothing_else() {
    let models = narrow();
    let mut n = Numbers(5);
    let (tree, mut rows) = random_tree(&mut n, 100, NARROW);
    let masks = masks(&tree);
    let context = Context::new(&models, &n.prompt(67, NARROW), pages([3, 1]), 5);
    let original = context.logits(&rows, Mask::Tree(&masks));
    for changed in [0, 1, 5, 63, 64, 65, 100] {
        rows[changed] = (rows[changed] + 1) % NARROW as u32;
        let logits = context.logits(&rows, Mask::Tree(&masks));
        for row in tree.rows() {
            let below = changed == 0 || row == changed || tree.path(row).any(|r| r == changed);
            assert_eq!(logits[row] != original[row], below, "row {row} after a change of row {changed}");
        }
        rows[changed] = (rows[changed] + NARROW as u32 - 1) % NARROW as u32;
    }
}

#[test]
fn a_root_alone_is_a_plain_row_and_a_chain_is_a_causal_chain_bitwise() {
    for (models, vocab) in [(narrow(), NARROW), (wide(), WIDE)] {
        let mut n = Numbers(6);
        let context = Context::new(&models, &n.prompt(62, vocab), pages([2, 0, 1]), 3);
        let tokens = n.prompt(8, vocab);
        assert_eq!(context.logits(&tokens[..1], Mask::Tree(&[])), context.logits(&tokens[..1], Mask::Causal));
        let chain: Vec<Ancestors> = (1..8).map(|depth| [(1 << depth) - 1, 0]).collect();
        let causal = context.logits(&tokens, Mask::Causal);
        assert_eq!(context.logits(&tokens, Mask::Tree(&chain)), causal);
        // And row by row through the pages, over a page end.
        let mut plain = context;
        for (token, expected) in tokens.iter().zip(&causal) {
            assert_eq!(&plain.logits(&[*token], Mask::Causal)[0], expected);
            plain.commit(&[*token], Mask::Causal, &[0]);
        }
    }
}

#[test]
fn poisoned_pages_and_high_page_ids_do_not_matter() {
    let models = narrow();
    let mut n = Numbers(7);
    let prompt = n.prompt(64 + 63, NARROW);
    let (tree, rows) = random_tree(&mut n, 30, NARROW);
    let masks = masks(&tree);
    // Context::new poisons whatever it does not commit, so also the slot after the last token.
    let low = Context::new(&models, &prompt, pages([0, 1]), 2);
    let mut high = Context::new(&models, &prompt, pages([4095, 2048]), 4096);
    // A page that were mistaken for another, by a narrow index, would be overwritten now.
    let others = (0..4096).map(PageId).filter(|page| !high.pages.contains(page));
    others.collect::<Vec<_>>().into_iter().for_each(|page| high.cache.fill_page(page, f32::NAN));
    let expected = low.logits(&rows, Mask::Tree(&masks));
    assert!(expected.iter().flatten().all(|x| x.is_finite()), "NaN was read");
    assert_eq!(high.logits(&rows, Mask::Tree(&masks)), expected);
    assert!(low.cache.token(0, &low.pages, 2 * PAGE_TOKENS - 1)[0].is_nan(), "the poison is there");
}

#[test]
fn rejected_nodes_are_never_seen_again() {
    let models = narrow();
    let mut n = Numbers(8);
    let prompt = n.prompt(61, NARROW);
    let mut context = Context::new(&models, &prompt, pages([1, 0]), 2);
    let mut tokens = prompt;
    for round in 0..6 {
        let (tree, rows) = random_tree(&mut n, 40, NARROW);
        // Accept the path to some node.
        let mut path = vec![0];
        path.extend(tree.path(1 + n.below(tree.len())));
        context.commit(&rows, Mask::Tree(&masks(&tree)), &path);
        tokens.extend(path.iter().map(|&row| rows[row]));
        let fresh = Context::new(&models, &tokens, pages([0, 1]), 2);
        assert_eq!(context.committed, tokens.len());
        let probe = [0, 1, 2];
        assert_eq!(context.logits(&probe, Mask::Causal), fresh.logits(&probe, Mask::Causal), "round {round}");
    }
}

#[test]
fn thread_counts_give_the_same_logits_bitwise() {
    for (models, vocab) in [(wide(), WIDE), (demo_models(), 4096)] {
        let mut n = Numbers(9);
        let tokens = n.prompt(40, vocab);
        let cache = models.target.new_cache(1);
        let table = pages([0]);
        let mut all = [1, 2, 3].map(|threads: usize| {
            let pool = Pool::new(threads.try_into().expect("threads")).expect("a pool");
            let segment = Segment { pages: &table, committed: 0, rows: tokens.len(), mask: Mask::Causal };
            let pass =
                models.target.forward(&pool, &tokens, &[segment], &cache, &[], &mut ()).expect("a pass");
            models.target.logits(&pool, &pass.hidden).data().to_vec()
        });
        let single = std::mem::take(&mut all[0]);
        assert!(all[1..].iter().all(|logits| *logits == single));
    }
}
