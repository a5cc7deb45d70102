//! Loading the drafter.

use std::path::Path;

use kd_attn::GqaConfig;
use kd_moe::Mlp;
use kd_tensor::Bf16Matrix;

use super::{gains, matrix, rope};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::{DrafterConfig, DrafterLayer};
use crate::drafter::{DraftLayer, Drafter};
use crate::error::ModelError;

impl Drafter {
    /// Loads a DFlash checkpoint folder: `config.json` and its weights, names with or without `model.` in front.
    ///
    /// # Errors
    /// [`ModelError`] naming the key or tensor, the file, what was found and what was expected. Every tensor must be
    /// used.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let config = DrafterConfig::from_dir(dir)?;
        let loader = Loader { checkpoint: Checkpoint::open(dir)?, config: &config };
        let width = config.hidden_size;
        let fc = loader.matrix("fc.weight", width, config.tap_width())?;
        let hidden_norm = loader.gains("hidden_norm.weight", width)?;
        let norm = loader.gains("norm.weight", width)?;
        let layers = config.layers.iter().enumerate().map(|(i, layer)| loader.layer(i, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let vocabulary = loader.checkpoint.take_drafter_vocabulary(&config)?;
        let embed = loader.optional("embed_tokens.weight", config.vocab_size, width)?;
        let head = match vocabulary {
            // Only a head of its own can speak a vocabulary of its own.
            Some(_) => Some(loader.matrix("lm_head.weight", config.draft_vocab_size, width)?),
            None => loader.optional("lm_head.weight", config.draft_vocab_size, width)?,
        };
        loader.checkpoint.finish(&[])?;
        let (rope, target_ids) = (rope(&config.rope), vocabulary.map(|v| v.target_ids));
        Ok(Self { rope, fc, hidden_norm, layers, norm, embed, head, target_ids, config })
    }
}

struct Loader<'a> {
    checkpoint: Checkpoint,
    config: &'a DrafterConfig,
}

impl Loader<'_> {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Bf16Matrix, CheckpointError> {
        matrix(&self.checkpoint, &self.checkpoint.drafter_name(name), rows, cols)
    }

    fn optional(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Bf16Matrix>, CheckpointError> {
        let name = self.checkpoint.drafter_name(name);
        self.checkpoint.contains(&name).then(|| matrix(&self.checkpoint, &name, rows, cols)).transpose()
    }

    fn gains(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        gains(&self.checkpoint, &self.checkpoint.drafter_name(name), len)
    }

    fn layer(&self, index: usize, layer: &DrafterLayer) -> Result<DraftLayer, CheckpointError> {
        let c = self.config;
        let (width, dim) = (c.hidden_size, c.head_dim);
        let (queries, keys) = (c.num_attention_heads * dim, c.num_key_value_heads * dim);
        let take =
            |which: &str, rows, cols| self.matrix(&format!("layers.{index}.{which}.weight"), rows, cols);
        let norm = |which: &str, len| self.gains(&format!("layers.{index}.{which}.weight"), len);
        Ok(DraftLayer {
            shape: GqaConfig {
                heads: c.num_attention_heads,
                kv_heads: c.num_key_value_heads,
                head_dim: dim,
                window: layer.window,
                causal: layer.causal,
            },
            input_norm: norm("input_layernorm", width)?,
            query: take("self_attn.q_proj", queries, width)?,
            key: take("self_attn.k_proj", keys, width)?,
            value: take("self_attn.v_proj", keys, width)?,
            output: take("self_attn.o_proj", width, queries)?,
            query_norm: norm("self_attn.q_norm", dim)?,
            key_norm: norm("self_attn.k_norm", dim)?,
            post_norm: norm("post_attention_layernorm", width)?,
            mlp: Mlp {
                gate: take("mlp.gate_proj", c.intermediate_size, width)?,
                up: take("mlp.up_proj", c.intermediate_size, width)?,
                down: take("mlp.down_proj", width, c.intermediate_size)?,
            },
        })
    }
}
