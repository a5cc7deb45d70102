//! Loading the target.

use std::path::Path;

use kd_attn::{Mla, MlaConfig, QueryProjection};
use kd_moe::{Expert, Experts, Mlp, Moe, Router, RouterConfig};
use kd_tensor::{Int4Matrix, Storage};

use super::{gains, matrix, rope};
use crate::checkpoint::{Checkpoint, CheckpointError, VISION_PREFIXES};
use crate::config::{LATENT_NORM_EPS, TargetConfig};
use crate::error::ModelError;
use crate::target::{FeedForward, Layer, Target};

impl Target {
    /// Loads a checkpoint folder as published: `config.json`, shards and their index. Weights are mapped, not read.
    ///
    /// # Errors
    /// [`ModelError`] naming the key or tensor, the file, what was found and what was expected. Every tensor must be
    /// used, but for the vision half, which is skipped and counted.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let config = TargetConfig::from_dir(dir)?;
        let loader = Loader { checkpoint: Checkpoint::open(dir)?, config: &config };
        let top = loader.checkpoint.target_prefix();
        let (vocab, width) = (config.vocab_size, config.hidden_size);
        let embed = matrix(&loader.checkpoint, &format!("{top}model.embed_tokens.weight"), vocab, width)?;
        let head = matrix(&loader.checkpoint, &format!("{top}lm_head.weight"), vocab, width)?;
        let norm = gains(&loader.checkpoint, &format!("{top}model.norm.weight"), width)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| loader.layer(i, &format!("{top}model.layers.{i}")))
            .collect::<Result<_, _>>()?;
        let skipped = loader.checkpoint.finish(VISION_PREFIXES)?;
        let rope = rope(&config.rope);
        Ok(Self { rope, embed, layers, norm, head, skipped, config })
    }
}

struct Loader<'a> {
    checkpoint: Checkpoint,
    config: &'a TargetConfig,
}

impl Loader<'_> {
    fn layer(&self, index: usize, name: &str) -> Result<Layer, CheckpointError> {
        let width = self.config.hidden_size;
        let norm = |which: &str| gains(&self.checkpoint, &format!("{name}.{which}.weight"), width);
        let feed_forward = if self.config.is_moe(index) {
            FeedForward::Moe(self.moe(&format!("{name}.mlp"))?)
        } else {
            FeedForward::Dense(self.mlp(&format!("{name}.mlp"), self.config.intermediate_size)?)
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
            |which: &str, rows, cols| matrix(&self.checkpoint, &format!("{name}.{which}.weight"), rows, cols);
        let norm = |which: &str, len| gains(&self.checkpoint, &format!("{name}.{which}.weight"), len);
        let query_rows = heads * c.qk_head_dim();
        let query = match c.q_lora_rank {
            None => QueryProjection::Direct(take("q_proj", query_rows, width)?),
            Some(rank) => QueryProjection::LowRank {
                a: take("q_a_proj", rank, width)?,
                norm: norm("q_a_layernorm", rank)?,
                b: take("q_b_proj", query_rows, rank)?,
            },
        };
        let shape = MlaConfig {
            heads,
            nope: c.qk_nope_head_dim,
            rope: c.qk_rope_head_dim,
            value: c.v_head_dim,
            latent: c.kv_lora_rank,
            softmax_scale: c.softmax_scale() as f32,
            latent_eps: LATENT_NORM_EPS,
        };
        let kv_a = take("kv_a_proj_with_mqa", c.cache_width(), width)?;
        let kv_norm = norm("kv_a_layernorm", c.kv_lora_rank)?;
        let kv_b = take("kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)?;
        let output = take("o_proj", width, heads * c.v_head_dim)?;
        Ok(Mla::new(shape, query, kv_a, kv_norm, &kv_b, output))
    }

    fn moe(&self, name: &str) -> Result<Moe, CheckpointError> {
        let c = self.config;
        let experts = c.n_routed_experts;
        let bias: Storage<f32> =
            self.checkpoint.take(&format!("{name}.gate.e_score_correction_bias"), &[experts])?;
        let router = Router {
            weight: matrix(&self.checkpoint, &format!("{name}.gate.weight"), experts, c.hidden_size)?,
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
            let part =
                |which: &str, rows, cols| self.int4(&format!("{name}.experts.{e}.{which}"), rows, cols);
            Ok(Expert {
                gate: part("gate_proj", width, hidden)?,
                up: part("up_proj", width, hidden)?,
                down: part("down_proj", hidden, width)?,
            })
        };
        let experts = Experts((0..experts).map(expert).collect::<Result<_, _>>()?);
        let shared = self.mlp(&format!("{name}.shared_experts"), c.n_shared_experts * width)?;
        Ok(Moe { router, experts, shared: Some(shared) })
    }

    fn int4(&self, module: &str, rows: usize, cols: usize) -> Result<Int4Matrix, CheckpointError> {
        let tensor = self.checkpoint.take_int4(module, rows, cols)?;
        let matrix = Int4Matrix::new(rows, cols, tensor.packed, tensor.scales);
        Ok(matrix.expect("a taken tensor has the shape that was asked for"))
    }

    fn mlp(&self, name: &str, width: usize) -> Result<Mlp, CheckpointError> {
        let hidden = self.config.hidden_size;
        let take =
            |which: &str, rows, cols| matrix(&self.checkpoint, &format!("{name}.{which}.weight"), rows, cols);
        Ok(Mlp {
            gate: take("gate_proj", width, hidden)?,
            up: take("up_proj", width, hidden)?,
            down: take("down_proj", hidden, width)?,
        })
    }
}
