//! The K2.6 target: a DeepSeek-V3 decoder with MLA and INT4 experts.

use kd_attn::{CacheError, Mla, PagedCache, Rope, Segment, positions, rows};
use kd_moe::{Mlp, Moe, Router};
use kd_tensor::ops::{TokenOutOfRange, add_assign, embed, rms_norm_rows};
use kd_tensor::{Bf16Matrix, Matrix, Pool, linear};

use crate::checkpoint::Skipped;
use crate::config::TargetConfig;
use crate::trace::Trace;

/// The feed-forward half of a layer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Mlp),
    Moe(Moe),
}

#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: Vec<f32>,
    pub(crate) attention: Mla,
    pub(crate) post_norm: Vec<f32>,
    pub(crate) feed_forward: FeedForward,
}

/// A loaded target model.
#[derive(Debug)]
pub struct Target {
    pub(crate) config: TargetConfig,
    pub(crate) rope: Rope,
    pub(crate) embed: Bf16Matrix,
    pub(crate) layers: Vec<Layer>,
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

impl Target {
    /// The configuration that the model was loaded with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
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
        match &self.layers.get(layer)?.feed_forward {
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
        PagedCache::try_new(self.layers.len(), pages, self.config.cache_width())
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
    /// If there are not as many tokens as rows, or a tap is not a layer.
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
        let eps = self.config.rms_norm_eps as f32;
        let width = self.config.hidden_size;
        let rope = self.rope.table(positions(segments));
        let mut hidden = embed(&self.embed, tokens)?;
        let mut latents = Vec::with_capacity(self.layers.len());
        let mut tapped = Matrix::zeros(tokens.len(), taps.len() * width);
        trace.hidden(0, &hidden);
        for (i, layer) in self.layers.iter().enumerate() {
            let x = rms_norm_rows(&hidden, &layer.input_norm, eps);
            let (latent, attention) = layer.attention.forward(pool, x.view(), &rope, segments, cache, i);
            trace.attention(i, tokens.len());
            latents.push(latent);
            add_assign(&mut hidden, &attention);
            let x = rms_norm_rows(&hidden, &layer.post_norm, eps);
            let out = match &layer.feed_forward {
                FeedForward::Dense(mlp) => mlp.forward(pool, x.view()),
                FeedForward::Moe(moe) => {
                    let (out, routing) = moe.forward(pool, x.view());
                    trace.routing(i, &routing);
                    out
                }
            };
            add_assign(&mut hidden, &out);
            trace.hidden(i + 1, &hidden);
            for (slot, _) in taps.iter().enumerate().filter(|&(_, &tap)| tap == i) {
                for (to, from) in tapped.iter_rows_mut().zip(hidden.iter_rows()) {
                    to[slot * width..][..width].copy_from_slice(from);
                }
            }
        }
        assert!(taps.iter().all(|&tap| tap < self.layers.len()), "taps outside the model");
        Ok(Forward { hidden, latents, taps: tapped })
    }

    /// The input of the head: `hidden` through the final norm.
    pub fn final_norm(&self, hidden: &Matrix) -> Matrix {
        rms_norm_rows(hidden, &self.norm, self.config.rms_norm_eps as f32)
    }

    /// Logits `[rows, vocab]` of residuals `[rows, hidden]`.
    pub fn logits(&self, pool: &Pool, hidden: &Matrix) -> Matrix {
        linear(pool, self.final_norm(hidden).view(), &self.head)
    }
}
