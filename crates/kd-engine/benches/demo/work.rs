//! What a round must at least do: the products of its passes.

use std::collections::HashSet;

use kd_attn::{Mask, PageId, PagedCache, Segment};
use kd_engine::{Models, Round};
use kd_model::{Drafter, Forward, Target, Trace};
use kd_moe::Routing;
use kd_tensor::Pool;

/// One product, or several of one layer that may go on at once.
#[derive(Clone, Copy)]
struct Product {
    multiply_adds: usize,
    bytes: usize,
}

/// The products of a round.
#[derive(Default, Clone)]
pub(crate) struct Work(Vec<Product>);

/// Multiply-adds and bytes a second.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) peak: f64,
    pub(crate) bandwidth: f64,
}

impl Work {
    fn add(&mut self, multiply_adds: usize, bytes: usize) {
        self.0.push(Product { multiply_adds, bytes });
    }

    /// `rows` products with a bf16 matrix of `size` elements.
    fn dense(&mut self, rows: usize, size: usize) {
        self.add(rows * size, 2 * size);
    }

    pub(crate) fn multiply_adds(&self) -> f64 {
        self.0.iter().map(|product| product.multiply_adds as f64).sum()
    }

    pub(crate) fn bytes(&self) -> f64 {
        self.0.iter().map(|product| product.bytes as f64).sum()
    }

    /// Least seconds: products depend on each other, so the floor is the sum of their floors, each the larger of its multiply-adds ÷
    /// peak and its bytes ÷ bandwidth.
    pub(crate) fn floor(&self, limits: Limits) -> f64 {
        let floor = |product: &Product| {
            (product.multiply_adds as f64 / limits.peak).max(product.bytes as f64 / limits.bandwidth)
        };
        self.0.iter().map(floor).sum()
    }

    /// What would be least if reading and multiplying of different products overlapped wholly: the larger of both sums.
    pub(crate) fn overlapped(&self, limits: Limits) -> f64 {
        (self.multiply_adds() / limits.peak).max(self.bytes() / limits.bandwidth)
    }
}

/// Different experts of the rows of a pass, in each layer that has experts.
#[derive(Default)]
struct Distinct(Vec<usize>);

impl Trace for Distinct {
    fn routing(&mut self, _layer: usize, routing: &Routing) {
        self.0.push(routing.ids.iter().collect::<HashSet<_>>().len());
    }
}

/// The work of each of `rounds`, of one stream that began with `prompt`. Their passes are run again, for the experts that their rows choose.
pub(crate) fn of_rounds(models: &Models, pool: &Pool, prompt: &[u32], rounds: &[Round]) -> Vec<Work> {
    let target = &models.target;
    let last = rounds.last().map_or(0, |round| round.start + round.rows.len());
    let pages: Vec<PageId> = (0..PagedCache::pages_for(prompt.len().max(last)) as u32).map(PageId).collect();
    let mut cache = target.new_cache(pages.len());
    let run =
        |cache: &PagedCache, tokens: &[u32], committed, mask: Mask<'_>, trace: &mut dyn Trace| -> Forward {
            let segment = Segment { pages: &pages, committed, rows: tokens.len(), mask };
            target.forward(pool, tokens, &[segment], cache, &[], trace).expect("tokens of the vocabulary")
        };
    let pass = run(&cache, prompt, 0, Mask::Causal, &mut ());
    cache.commit(&pass.latents, &(0..prompt.len()).collect::<Vec<_>>(), &pages, 0);
    let mut all = Vec::with_capacity(rounds.len());
    for round in rounds {
        let tree = &round.tree;
        let mut tokens = vec![round.bonus];
        tokens.extend(tree.nodes().iter().map(|node| node.token));
        let mask: Vec<_> = (1..=tree.len()).map(|row| tree.mask(row)).collect();
        let mut distinct = Distinct::default();
        let pass = run(&cache, &tokens, round.start, Mask::Tree(&mask), &mut distinct);
        cache.commit(&pass.latents, &round.rows, &pages, round.start);
        let own = tree.rows().map(|row| tree.depth(row) + 1).sum::<usize>().div_ceil(tokens.len());
        let mut work = Work::default();
        if let (Some(drafter), false) = (&models.drafter, tree.is_empty()) {
            draft(&mut work, drafter, round.start, round.rows.len());
        }
        verify(&mut work, target, tokens.len(), round.start, own, &distinct.0);
        all.push(work);
    }
    all
}

/// One pass of the target over a tree: `rows` rows after `start` committed tokens, each with about `own` tree keys, that choose so many different experts.
fn verify(work: &mut Work, target: &Target, rows: usize, start: usize, own: usize, distinct: &[usize]) {
    let c = target.config();
    let (hidden, heads, latent) = (c.hidden_size, c.num_attention_heads, c.kv_lora_rank);
    let (nope, rope, value) = (c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim);
    let wide = heads * (nope + rope);
    let mut distinct = distinct.iter();
    for layer in 0..c.num_hidden_layers {
        match c.q_lora_rank {
            None => work.dense(rows, hidden * wide),
            Some(rank) => {
                work.dense(rows, hidden * rank);
                work.dense(rows, rank * wide);
            }
        }
        work.dense(rows, hidden * (latent + rope));
        work.dense(rows, heads * latent * nope);
        work.add(rows * heads * (start + own) * (2 * latent + rope), start * (latent + rope) * 4);
        work.dense(rows, heads * latent * value);
        work.dense(rows, hidden * heads * value);
        if layer < c.first_k_dense_replace {
            work.dense(rows, 3 * hidden * c.intermediate_size);
        } else {
            let expert = 3 * hidden * c.moe_intermediate_size;
            let read = distinct.next().expect("a routing of each layer with experts");
            work.dense(rows, hidden * c.n_routed_experts);
            work.dense(rows, c.n_shared_experts * expert);
            work.add(rows * c.num_experts_per_tok * expert, read * expert * 9 / 16);
        }
    }
    work.dense(rows, c.vocab_size * hidden);
}

/// One block of the drafter, and the context of `kept` tokens.
fn draft(work: &mut Work, drafter: &Drafter, start: usize, kept: usize) {
    let c = drafter.config();
    let (hidden, block) = (c.hidden_size, c.block_size);
    let (wide, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    work.dense(kept, c.target_layer_ids.len() * hidden * hidden);
    for _ in 0..c.layers.len() {
        work.dense(kept, hidden * 2 * kv);
        work.dense(block, hidden * (wide + 2 * kv));
        work.add(block * (start + block) * 2 * wide, start * 2 * kv * 4);
        work.dense(block, hidden * wide);
        work.dense(block, 3 * hidden * c.intermediate_size);
    }
    work.dense(block - 1, c.vocab_size * hidden);
}
