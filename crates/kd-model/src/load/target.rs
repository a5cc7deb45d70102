//! Loading the target.

use std::num::NonZeroUsize;
use std::path::Path;

use kd_attn::{KvCacheDtype, Mla, MlaConfig, QueryProjection};
use kd_moe::{Expert, Experts, Mlp, Moe, Router, RouterConfig};
use kd_tensor::Storage;

use super::{Cut, Reader};
use crate::checkpoint::{Checkpoint, CheckpointError, VISION_PREFIXES};
use crate::config::{LATENT_NORM_EPS, TargetConfig};
use crate::error::ModelError;
use crate::inventory::Split;
use crate::share::Share;
use crate::target::{FeedForward, Layer, Target};

impl Target {
    /// Loads a checkpoint folder as published: `config.json`, shards and their index. Weights are mapped, not read; the
    /// first product of a weight copies it into the order in which products read.
    ///
    /// # Errors
    /// [`ModelError`] naming the key or tensor, the file, what was found and what was expected. Every tensor must be
    /// used, but for the vision half, which is skipped and counted.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        Self::load_sharded(dir, NonZeroUsize::MIN)
    }

    /// As [`Target::load`], for as many ranks. Each takes its own part: heads, widths, rows of the vocabulary. What cannot
    /// be divided (norms, the router, the latent projections) every rank sees whole. Nothing is copied.
    ///
    /// # Errors
    /// Also [`CheckpointError::Share`] for the first tensor that so many ranks cannot share.
    pub fn load_sharded(dir: &Path, ranks: NonZeroUsize) -> Result<Self, ModelError> {
        let ranks = ranks.get();
        let config = TargetConfig::from_dir(dir)?;
        let checkpoint = Checkpoint::open(dir)?;
        let top = checkpoint.target_prefix();
        let (vocabulary, width) = (config.dimension(Split::Vocabulary), config.hidden_size);
        let reader = |share| Reader { checkpoint: &checkpoint, share };
        let first = reader(Share { rank: 0, ranks });
        let embed = first.table(&format!("{top}model.embed_tokens.weight"), vocabulary, width)?;
        let head = first.table(&format!("{top}lm_head.weight"), vocabulary, width)?;
        let norm = first.gains(&format!("{top}model.norm.weight"), width)?;
        let layers = |share| {
            let loader = Loader { reader: reader(share), config: &config };
            let layers = 0..config.num_hidden_layers;
            layers.map(|i| loader.layer(i, &format!("{top}model.layers.{i}"))).collect()
        };
        let ranks = Share::all(ranks).map(layers).collect::<Result<_, CheckpointError>>()?;
        let skipped = checkpoint.finish(VISION_PREFIXES)?;
        let rope = config.rope.embedding();
        Ok(Self { rope, embed, ranks, norm, head, skipped, config, kv_cache_dtype: KvCacheDtype::Auto })
    }
}

/// Loads what one rank holds.
struct Loader<'a> {
    reader: Reader<'a>,
    config: &'a TargetConfig,
}

impl Loader<'_> {
    fn rows(&self, split: Split) -> Cut {
        Cut::Rows(self.config.dimension(split))
    }

    fn columns(&self, split: Split) -> Cut {
        Cut::Columns(self.config.dimension(split))
    }

    fn layer(&self, index: usize, name: &str) -> Result<Layer, CheckpointError> {
        let width = self.config.hidden_size;
        let norm = |which: &str| self.reader.gains(&format!("{name}.{which}.weight"), width);
        let feed_forward = if self.config.is_moe(index) {
            FeedForward::Moe(self.moe(&format!("{name}.mlp"))?)
        } else {
            let width = self.config.intermediate_size;
            FeedForward::Dense(self.mlp(&format!("{name}.mlp"), width, Split::DenseWidth)?)
        };
        Ok(Layer {
            input_norm: norm("input_layernorm")?,
            attention: self.attention(&format!("{name}.self_attn"))?,
            post_norm: norm("post_attention_layernorm")?,
            feed_forward,
        })
    }

    fn attention(&self, name: &str) -> Result<Mla, CheckpointError> {
        let c = self.config;
        let (width, heads) = (c.hidden_size, c.num_attention_heads);
        let take =
            |which: &str, shape, cut| self.reader.matrix(&format!("{name}.{which}.weight"), shape, cut);
        let norm = |which: &str, len| self.reader.gains(&format!("{name}.{which}.weight"), len);
        let query_rows = heads * c.qk_head_dim();
        let query = match c.q_lora_rank {
            None => QueryProjection::Direct(take("q_proj", [query_rows, width], self.rows(Split::Heads))?),
            Some(rank) => QueryProjection::LowRank {
                a: take("q_a_proj", [rank, width], Cut::Whole)?,
                norm: norm("q_a_layernorm", rank)?,
                b: take("q_b_proj", [query_rows, rank], self.rows(Split::Heads))?,
            },
        };
        let kv_a = take("kv_a_proj_with_mqa", [c.cache_width(), width], Cut::Whole)?;
        let kv_norm = norm("kv_a_layernorm", c.kv_lora_rank)?;
        let kv_b = [heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank];
        let kv_b = take("kv_b_proj", kv_b, self.rows(Split::Heads))?;
        let output = take("o_proj", [width, heads * c.v_head_dim], self.columns(Split::Heads))?;
        let shape = MlaConfig {
            heads: output.cols() / c.v_head_dim,
            nope: c.qk_nope_head_dim,
            rope: c.qk_rope_head_dim,
            value: c.v_head_dim,
            latent: c.kv_lora_rank,
            softmax_scale: c.softmax_scale() as f32,
            latent_eps: LATENT_NORM_EPS,
        };
        Ok(Mla::new(shape, query, kv_a, kv_norm, &kv_b, output))
    }

    fn moe(&self, name: &str) -> Result<Moe, CheckpointError> {
        let c = self.config;
        let checkpoint = self.reader.checkpoint;
        let experts = c.n_routed_experts;
        let bias_name = format!("{name}.gate.e_score_correction_bias");
        let bias: Storage<f32> = checkpoint.take(&bias_name, &[experts])?;
        checkpoint.require_finite(&bias_name, bias.iter().copied())?;
        let gate =
            self.reader.matrix(&format!("{name}.gate.weight"), [experts, c.hidden_size], Cut::Whole)?;
        let router = Router {
            weight: gate,
            bias: bias.to_vec(),
            config: RouterConfig {
                top_k: c.num_experts_per_tok,
                groups: c.n_group,
                top_groups: c.topk_group,
                normalize: c.norm_topk_prob,
                scaling: c.routed_scaling_factor as f32,
            },
        };
        let (width, hidden) = (c.moe_intermediate_size, c.hidden_size);
        let expert = |e: usize| -> Result<Expert, CheckpointError> {
            let part = |which: &str, shape, cut| {
                self.reader.int4(&format!("{name}.experts.{e}.{which}"), shape, cut)
            };
            Ok(Expert {
                gate: part("gate_proj", [width, hidden], self.rows(Split::ExpertWidth))?,
                up: part("up_proj", [width, hidden], self.rows(Split::ExpertWidth))?,
                down: part("down_proj", [hidden, width], self.columns(Split::ExpertWidth))?,
            })
        };
        let experts = Experts((0..experts).map(expert).collect::<Result<_, _>>()?);
        let shared = c.n_shared_experts * width;
        let shared = self.mlp(&format!("{name}.shared_experts"), shared, Split::SharedWidth)?;
        Ok(Moe { router, experts, shared: Some(shared) })
    }

    fn mlp(&self, name: &str, width: usize, split: Split) -> Result<Mlp, CheckpointError> {
        let hidden = self.config.hidden_size;
        let take =
            |which: &str, shape, cut| self.reader.matrix(&format!("{name}.{which}.weight"), shape, cut);
        Ok(Mlp {
            gate: take("gate_proj", [width, hidden], self.rows(split))?,
            up: take("up_proj", [width, hidden], self.rows(split))?,
            down: take("down_proj", [hidden, width], self.columns(split))?,
        })
    }
}
