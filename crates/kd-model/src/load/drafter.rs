//! Loading the drafter.

use std::num::NonZeroUsize;
use std::path::Path;

use kd_attn::GqaConfig;
use kd_moe::Mlp;
use kd_tensor::Bf16Matrix;

use super::{Cut, Reader};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::{DrafterConfig, DrafterLayer};
use crate::drafter::{DraftLayer, Drafter, Shard};
use crate::error::ModelError;
use crate::share::{Dimension, Share};

impl Drafter {
    /// Loads a DFlash checkpoint folder: `config.json` and its weights, names with or without `model.` in front.
    ///
    /// # Errors
    /// [`ModelError`] naming the key or tensor, the file, what was found and what was expected. Every tensor must be
    /// used.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        Self::load_sharded(dir, NonZeroUsize::MIN)
    }

    /// As [`Drafter::load`], for as many ranks. Each takes its own heads, widths and rows of the vocabulary; ranks that are
    /// more than the key heads hold one of them together. Nothing is copied.
    ///
    /// # Errors
    /// Also [`CheckpointError::Share`] for the first tensor that so many ranks cannot share.
    pub fn load_sharded(dir: &Path, ranks: NonZeroUsize) -> Result<Self, ModelError> {
        let ranks = ranks.get();
        let config = DrafterConfig::from_dir(dir)?;
        let checkpoint = Checkpoint::open(dir)?;
        let loader = |share| Loader { reader: Reader { checkpoint: &checkpoint, share }, config: &config };
        let first = loader(Share { rank: 0, ranks });
        let vocabulary = checkpoint.take_drafter_vocabulary(&config)?;
        let embed = first.optional("embed_tokens.weight", "vocab_size", config.vocab_size)?;
        let head = ("lm_head.weight", "draft_vocab_size", config.draft_vocab_size);
        let head = match vocabulary {
            // Only a head of its own can speak a vocabulary of its own.
            Some(_) => Some(first.table(head.0, head.1, head.2)?),
            None => first.optional(head.0, head.1, head.2)?,
        };
        let ranks = Share::all(ranks).map(|share| loader(share).shard()).collect::<Result<_, _>>()?;
        checkpoint.finish(&[])?;
        let (rope, target_ids) = (config.rope.embedding(), vocabulary.map(|v| v.target_ids));
        Ok(Self { rope, ranks, embed, head, target_ids, config })
    }
}

/// Loads what one rank holds.
struct Loader<'a> {
    reader: Reader<'a>,
    config: &'a DrafterConfig,
}

impl Loader<'_> {
    fn matrix(&self, name: &str, shape: [usize; 2], cut: Cut) -> Result<Bf16Matrix, CheckpointError> {
        self.reader.matrix(&self.reader.checkpoint.drafter_name(name), shape, cut)
    }

    fn table(&self, name: &str, key: &'static str, rows: usize) -> Result<Bf16Matrix, CheckpointError> {
        let name = self.reader.checkpoint.drafter_name(name);
        self.reader.table(&name, Dimension::new(key, rows), self.config.hidden_size)
    }

    fn optional(
        &self,
        name: &str,
        key: &'static str,
        rows: usize,
    ) -> Result<Option<Bf16Matrix>, CheckpointError> {
        let checkpoint = self.reader.checkpoint;
        let held = checkpoint.contains(&checkpoint.drafter_name(name));
        held.then(|| self.table(name, key, rows)).transpose()
    }

    fn gains(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        self.reader.gains(&self.reader.checkpoint.drafter_name(name), len)
    }

    fn shard(&self) -> Result<Shard, CheckpointError> {
        let c = self.config;
        let width = c.hidden_size;
        let layers = c.layers.iter().enumerate().map(|(i, layer)| self.layer(i, layer));
        Ok(Shard {
            eps: c.rms_norm_eps as f32,
            // Rows, whose results are gathered: adding up parts of the taps would only cost accuracy.
            fc: self.matrix(
                "fc.weight",
                [width, c.tap_width()],
                Cut::Rows(Dimension::new("hidden_size", width)),
            )?,
            hidden_norm: self.gains("hidden_norm.weight", width)?,
            norm: self.gains("norm.weight", width)?,
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    fn layer(&self, index: usize, layer: &DrafterLayer) -> Result<DraftLayer, CheckpointError> {
        let c = self.config;
        let (hidden, dim, inner) = (c.hidden_size, c.head_dim, c.intermediate_size);
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let take =
            |which: &str, shape, cut| self.matrix(&format!("layers.{index}.{which}.weight"), shape, cut);
        let norm = |which: &str, len| self.gains(&format!("layers.{index}.{which}.weight"), len);
        let by_head = Dimension::new("num_attention_heads", heads);
        let by_key = Dimension { repeats: true, ..Dimension::new("num_key_value_heads", kv_heads) };
        let by_width = Dimension::new("intermediate_size", inner);
        let query = take("self_attn.q_proj", [heads * dim, hidden], Cut::Rows(by_head))?;
        let key = take("self_attn.k_proj", [kv_heads * dim, hidden], Cut::Rows(by_key))?;
        let shape = GqaConfig {
            heads: query.rows() / dim,
            kv_heads: key.rows() / dim,
            cached_heads: kv_heads,
            first_cached: by_key.cut(self.reader.share).map_or(0, |heads| heads.start),
            head_dim: dim,
            window: layer.window,
            causal: layer.causal,
        };
        Ok(DraftLayer {
            shape,
            input_norm: norm("input_layernorm", hidden)?,
            query,
            key,
            value: take("self_attn.v_proj", [kv_heads * dim, hidden], Cut::Rows(by_key))?,
            output: take("self_attn.o_proj", [hidden, heads * dim], Cut::Columns(by_head))?,
            query_norm: norm("self_attn.q_norm", dim)?,
            key_norm: norm("self_attn.k_norm", dim)?,
            post_norm: norm("post_attention_layernorm", hidden)?,
            mlp: Mlp {
                gate: take("mlp.gate_proj", [inner, hidden], Cut::Rows(by_width))?,
                up: take("mlp.up_proj", [inner, hidden], Cut::Rows(by_width))?,
                down: take("mlp.down_proj", [hidden, inner], Cut::Columns(by_width))?,
            },
        })
    }
}
