//! The K2.6 target: a DeepSeek-V3 decoder with MLA and INT4 experts.

use std::ops::Range;

use kd_attn::{CacheError, Mla, MlaPass, PagedCache, Rope, Segment, positions, rows};
use kd_moe::{Mlp, Moe, Router};
use kd_tensor::ops::{TokenOutOfRange, check_ids, embed_part, rms_norm_rows};
use kd_tensor::{Alone, Bf16Matrix, CollectiveError, Matrix, Pool, linear};

use crate::checkpoint::Skipped;
use crate::config::TargetConfig;
use crate::seam::{Place, reduce_add, reduce_add_norm, row_parts, side_by_side, succeeded};
use crate::share::Share;
use crate::trace::Trace;

/// The feed-forward half of a layer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Mlp),
    Moe(Moe),
}

/// What one rank holds of a layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: Vec<f32>,
    pub(crate) attention: Mla,
    pub(crate) post_norm: Vec<f32>,
    pub(crate) feed_forward: FeedForward,
}

/// A loaded target model, whole or shared by several ranks of this process.
#[derive(Debug)]
pub struct Target {
    pub(crate) config: TargetConfig,
    pub(crate) rope: Rope,
    pub(crate) embed: Bf16Matrix,
    /// The layers of each rank.
    pub(crate) ranks: Vec<Vec<Layer>>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: Bf16Matrix,
    pub(crate) skipped: Skipped,
}

/// What one pass computed.
#[derive(Debug)]
pub struct Forward {
    /// The residual stream after the last layer, `[rows, hidden]`, before the final norm.
    pub hidden: Matrix,
    /// What the cache would hold for each row: a matrix `[rows, kv_lora_rank + qk_rope_head_dim]` a layer.
    pub latents: Vec<Matrix>,
    /// The tapped residuals of each row, concatenated in the order of the taps: `[rows, taps · hidden]`.
    pub taps: Matrix,
}

/// What all ranks of one pass are given.
#[derive(Clone, Copy)]
struct Pass<'a> {
    tokens: &'a [u32],
    attention: MlaPass<'a>,
}

impl Target {
    /// The configuration that the model was loaded with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Ranks that share the model. A pool that runs it is divided among as many ([`Pool::with_ranks`]).
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The rotary embedding of the rotated query and key parts.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Vision tensors of the checkpoint that were left alone.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// The router of a layer; `None` for a dense one.
    pub fn router(&self, layer: usize) -> Option<&Router> {
        match &self.ranks.first()?.get(layer)?.feed_forward {
            FeedForward::Moe(moe) => Some(&moe.router),
            FeedForward::Dense(_) => None,
        }
    }

    /// `embed_tokens`, which a drafter without an embedding of its own borrows.
    pub fn embedding(&self) -> &Bf16Matrix {
        &self.embed
    }

    /// `lm_head`, which a drafter without a head of its own borrows.
    pub fn head(&self) -> &Bf16Matrix {
        &self.head
    }

    /// A cache for `pages` pages of this model's latents.
    ///
    /// # Panics
    /// If they do not fit in memory; [`Self::try_new_cache`] for a number of pages that comes from outside.
    pub fn new_cache(&self, pages: usize) -> PagedCache {
        self.try_new_cache(pages).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Self::new_cache`].
    ///
    /// # Errors
    /// [`CacheError`] if they do not fit in memory.
    pub fn try_new_cache(&self, pages: usize) -> Result<PagedCache, CacheError> {
        PagedCache::try_new(self.config.num_hidden_layers, pages, self.config.cache_width())
    }

    /// Runs `tokens` through all layers in one pass: the rows of the first segment, then those of the next.
    ///
    /// Nothing is written to `cache`; the caller commits the latents of the rows it keeps. `taps` are layers, counted
    /// from 0, whose output is kept for the drafter.
    ///
    /// # Errors
    /// A token id outside the vocabulary.
    ///
    /// # Panics
    /// If there are not as many tokens as rows, a tap is not a layer, or the pool is divided among other ranks.
    pub fn forward(
        &self,
        pool: &Pool,
        tokens: &[u32],
        segments: &[Segment<'_>],
        cache: &PagedCache,
        taps: &[usize],
        trace: &mut dyn Trace,
    ) -> Result<Forward, TokenOutOfRange> {
        assert_eq!(tokens.len(), rows(segments), "one token a row");
        assert!(taps.iter().all(|&tap| tap < self.config.num_hidden_layers), "taps outside the model");
        check_ids(tokens, self.config.vocab_size)?;
        let rope = &self.rope.table(positions(segments));
        let pass = Pass { tokens, attention: MlaPass { rope, segments, cache } };
        let mut watchers = Some((taps, trace)).into_iter();
        let items = self.ranks.iter().map(|layers| (layers.as_slice(), watchers.next())).collect();
        let results = pool.each_rank(items, |group, pool, (layers, watcher)| {
            let mut nobody = ();
            let (taps, trace): (_, &mut dyn Trace) = watcher.unwrap_or((&[], &mut nobody));
            let whole = group.ranks() > 1 || trace.looks();
            let parts = if whole { vec![] } else { self.row_parts(pool, segments) };
            if parts.len() <= 1 {
                let place = Place { group, parts: &Alone, rows: 0..tokens.len() };
                return self.pass(place, pool, layers, &pass, taps, trace);
            }
            let mut traces = Some(trace).into_iter();
            let items = parts.into_iter().map(|rows| (rows, traces.next())).collect();
            let results = pool.in_parts(items, |parts, pool, (rows, trace)| {
                let (mut nobody, place) = ((), Place { group: &Alone, parts, rows });
                self.pass(place, pool, layers, &pass, taps, trace.unwrap_or(&mut nobody))
            });
            Ok(succeeded(results).swap_remove(0))
        });
        Ok(succeeded(results).swap_remove(0))
    }

    /// The rows that each thread takes through all layers; a single part if threads share all rows.
    fn row_parts(&self, pool: &Pool, segments: &[Segment<'_>]) -> Vec<Range<usize>> {
        // A row sees as many keys as tokens lie before it, and its own.
        let costs = positions(segments).map(|position| self.row_cost(position + 1));
        row_parts(pool, self.mlp_bytes(), rows(segments), costs)
    }

    /// Multiply-adds of a layer with experts for a row that sees so many keys.
    fn row_cost(&self, keys: usize) -> f64 {
        let c = &self.config;
        let (heads, rope) = (c.num_attention_heads as f64, c.qk_rope_head_dim as f64);
        let (hidden, latent) = (c.hidden_size as f64, c.kv_lora_rank as f64);
        let (nope, value) = (c.qk_nope_head_dim as f64, c.v_head_dim as f64);
        let queries = heads * (nope + rope);
        let queries = c.q_lora_rank.map_or(hidden * queries, |low| low as f64 * (hidden + queries));
        let heads_own = heads * (nope * latent + latent * value + value * hidden);
        let experts = (c.num_experts_per_tok + c.n_shared_experts) as f64 * c.moe_intermediate_size as f64;
        let experts = hidden * (3.0 * experts + c.n_routed_experts as f64);
        let seen = keys as f64 * heads * (2.0 * latent + rope);
        queries + hidden * (latent + rope) + heads_own + experts + seen
    }

    /// Bytes of feed-forward weights, most of a model.
    fn mlp_bytes(&self) -> usize {
        let c = &self.config;
        let expert = 3 * c.hidden_size * c.moe_intermediate_size;
        let moe = expert * (c.n_routed_experts * 9 / 16 + 2 * c.n_shared_experts);
        let dense = 6 * c.hidden_size * c.intermediate_size;
        let count = c.first_k_dense_replace.min(c.num_hidden_layers);
        dense.saturating_mul(count).saturating_add(moe.saturating_mul(c.num_hidden_layers - count))
    }

    /// One rank's part of a pass, or that of some of the rows. All ranks compute the same residuals and latents; the first is
    /// asked for them.
    fn pass(
        &self,
        Place { group, parts, rows: own }: Place<'_>,
        pool: &Pool,
        layers: &[Layer],
        pass: &Pass<'_>,
        taps: &[usize],
        trace: &mut dyn Trace,
    ) -> Result<Forward, CollectiveError> {
        let Pass { tokens, attention } = *pass;
        let eps = self.config.rms_norm_eps as f32;
        let width = self.config.hidden_size;
        let span = Share::of(group).span(self.embed.rows());
        let embedded = embed_part(&self.embed.slice_rows(span.clone()), span.start, &tokens[own.clone()]);
        let mut hidden = group.all_reduce(embedded)?;
        let mut all_latents = Vec::with_capacity(layers.len());
        let mut tapped = Matrix::unwritten(own.len(), taps.len() * width);
        trace.hidden(0, &hidden);
        let mut x = rms_norm_rows(&hidden, &layers[0].input_norm, eps);
        for (i, layer) in layers.iter().enumerate() {
            let (latents, low) = layer.attention.inputs(pool, x.view(), own.start, attention.rope);
            let latents = parts.all_gather_rows(latents)?;
            let x_low = low.as_ref().unwrap_or(&x).view();
            let out = layer.attention.outputs(pool, x_low, own.start, &latents, &attention, i);
            trace.attention(i, tokens.len());
            all_latents.push(latents);
            x = reduce_add_norm(group, out, &mut hidden, &layer.post_norm, eps)?;
            let out = match &layer.feed_forward {
                FeedForward::Dense(mlp) => mlp.forward(pool, x.view()),
                FeedForward::Moe(moe) => {
                    let (out, routing) = moe.forward(pool, x.view());
                    trace.routing(i, &routing);
                    out
                }
            };
            match layers.get(i + 1) {
                Some(next) => x = reduce_add_norm(group, out, &mut hidden, &next.input_norm, eps)?,
                None => reduce_add(group, out, &mut hidden)?,
            }
            trace.hidden(i + 1, &hidden);
            for (slot, _) in taps.iter().enumerate().filter(|&(_, &tap)| tap == i) {
                for (to, from) in tapped.iter_rows_mut().zip(hidden.iter_rows()) {
                    to[slot * width..][..width].copy_from_slice(from);
                }
            }
        }
        let (hidden, taps) = (parts.all_gather_rows(hidden)?, parts.all_gather_rows(tapped)?);
        Ok(Forward { hidden, latents: all_latents, taps })
    }

    /// The input of the head: `hidden` through the final norm.
    pub fn final_norm(&self, hidden: &Matrix) -> Matrix {
        rms_norm_rows(hidden, &self.norm, self.config.rms_norm_eps as f32)
    }

    /// Logits `[rows, vocab]` of residuals `[rows, hidden]`.
    ///
    /// # Panics
    /// If the pool is divided among other ranks.
    pub fn logits(&self, pool: &Pool, hidden: &Matrix) -> Matrix {
        let x = self.final_norm(hidden);
        let parts = pool.each_rank(vec![(); self.ranks.len()], |group, pool, ()| {
            let span = Share::of(group).span(self.head.rows());
            linear(pool, x.view(), &self.head.slice_rows(span))
        });
        side_by_side(parts)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;

    use kd_attn::{Mask, PageId};

    use super::*;

    /// A prompt's chunk and the trees of the demo, on as many threads as they have rows for.
    #[test]
    fn the_demo_has_a_part_for_each_thread() {
        let target = Target::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/target"));
        let (target, pages) = (target.unwrap(), [PageId(0)]);
        let parts = |threads, committed, rows| {
            let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let nodes: Vec<_> = (1..rows).map(|_| [1, 0]).collect();
            target
                .row_parts(&pool, &[Segment { pages: &pages, committed, rows, mask: Mask::Tree(&nodes) }])
                .len()
        };
        for committed in [0, 100, 1900] {
            assert_eq!([1, 9, 17, 33].map(|rows| parts(2, committed, rows)), [1, 1, 2, 2], "{committed}");
            assert_eq!([17, 33].map(|rows| parts(4, committed, rows)), [1, 4], "{committed}");
        }
    }

    /// Its later rows see more: they get fewer in a part.
    #[test]
    fn a_prompt_is_cut_by_what_its_rows_see() {
        let target = Target::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/target"));
        let (target, pool) = (target.unwrap(), Pool::new(NonZeroUsize::new(2).unwrap()).unwrap());
        let chunk = Segment { pages: &[PageId(0)], committed: 0, rows: 1024, mask: Mask::Causal };
        let parts = target.row_parts(&pool, &[chunk]);
        let cost = |rows: &Range<usize>| rows.clone().map(|row| target.row_cost(row + 1)).sum::<f64>();
        assert_eq!(parts.len(), 2);
        assert!(parts[0].len() > 560 && parts[0].end == parts[1].start, "{parts:?}");
        assert!((cost(&parts[0]) / cost(&parts[1]) - 1.0).abs() < 0.01, "{parts:?}");
    }
}
