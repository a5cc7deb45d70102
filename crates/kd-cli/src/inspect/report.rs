//! What an inspection found, as it is printed with `--json`.

use std::path::PathBuf;

use kd_attn::{Fp8Entry, KvCacheDtype};
use kd_model::config::{DrafterConfig, RopeConfig, TargetConfig};
use serde::Serialize;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) dir: PathBuf,
    pub(super) model: Option<Model>,
    pub(super) constants: Option<Constants>,
    pub(super) text: Option<TextFiles>,
    pub(super) tensors: Vec<Group>,
    /// Vision tensors, which a load skips.
    pub(super) skipped: u64,
    pub(super) ranks: Vec<Rank>,
    /// Why a load would fail; empty if nothing was found.
    pub(super) refused: Vec<String>,
}

/// The sizes of the architecture, by their published names.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    pub(super) kind: &'static str,
    pub(super) sizes: Vec<(&'static str, usize)>,
    /// Keys that are read over.
    pub(super) ignored_keys: Vec<String>,
}

/// What follows from the configuration.
#[derive(Debug, Serialize)]
pub(super) struct Constants {
    pub(super) softmax_scale: f64,
    pub(super) rope_theta: f64,
    /// `factor × original positions` of YaRN.
    pub(super) yarn: Option<String>,
    /// What cosines and sines are multiplied by.
    pub(super) rope_gain: f64,
    /// Radians a position of the first and the last rotated pair.
    pub(super) inv_freq: [f64; 2],
    /// Bytes that one token takes in a GPU's pages of all layers.
    pub(super) kv_bytes_per_token: u64,
    pub(super) context: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct TextFiles {
    /// Ids of the tokenizer, if there is one.
    pub(super) tokenizer: Option<usize>,
    /// Which renderer chat prompts get.
    pub(super) template: String,
}

/// Tensors that differ in their layer or expert only.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// What one rank holds.
#[derive(Debug, Serialize)]
pub(super) struct Rank {
    pub(super) tp: usize,
    pub(super) weight_bytes: u64,
    /// Tokens whose pages fit beside the weights: before workspace, graphs and the driver's own memory.
    pub(super) kv_tokens: u64,
    /// Why so many ranks cannot share the model.
    pub(super) refused: Vec<String>,
}

impl Constants {
    pub(super) fn of_target(config: &TargetConfig, cache: KvCacheDtype) -> Self {
        let entry =
            cache.entry_bytes(Fp8Entry { latent: config.kv_lora_rank, rope: config.qk_rope_head_dim });
        let bytes = (config.num_hidden_layers * entry) as u64;
        Self::new(&config.rope, config.softmax_scale(), bytes, config.max_position_embeddings)
    }

    pub(super) fn of_drafter(config: &DrafterConfig) -> Self {
        let bytes = 2 * 2 * config.layers.len() * config.num_key_value_heads * config.head_dim;
        let scale = (config.head_dim as f64).powf(-0.5);
        Self::new(&config.rope, scale, bytes as u64, config.max_position_embeddings)
    }

    fn new(rope: &RopeConfig, softmax_scale: f64, kv_bytes_per_token: u64, context: usize) -> Self {
        let embedding = rope.embedding();
        let inv_freq = embedding.inv_freq();
        let ends = [inv_freq.first(), inv_freq.last()].map(|end| end.copied().unwrap_or_default());
        Self {
            softmax_scale,
            rope_theta: rope.theta,
            yarn: rope.yarn.as_ref().map(|yarn| format!("{} x {}", yarn.factor, yarn.original_max_position)),
            rope_gain: embedding.gain(),
            inv_freq: ends,
            kv_bytes_per_token,
            context,
        }
    }
}

impl Model {
    pub(super) fn of_target(c: &TargetConfig) -> Self {
        let sizes = vec![
            ("num_hidden_layers", c.num_hidden_layers),
            ("first_k_dense_replace", c.first_k_dense_replace),
            ("hidden_size", c.hidden_size),
            ("intermediate_size", c.intermediate_size),
            ("num_attention_heads", c.num_attention_heads),
            ("q_lora_rank", c.q_lora_rank.unwrap_or(0)),
            ("kv_lora_rank", c.kv_lora_rank),
            ("qk_nope_head_dim", c.qk_nope_head_dim),
            ("qk_rope_head_dim", c.qk_rope_head_dim),
            ("v_head_dim", c.v_head_dim),
            ("n_routed_experts", c.n_routed_experts),
            ("num_experts_per_tok", c.num_experts_per_tok),
            ("n_shared_experts", c.n_shared_experts),
            ("moe_intermediate_size", c.moe_intermediate_size),
            ("vocab_size", c.vocab_size),
        ];
        Self { kind: "target: latent attention, INT4 experts", sizes, ignored_keys: Vec::new() }
    }

    pub(super) fn of_drafter(c: &DrafterConfig) -> Self {
        let sizes = vec![
            ("num_hidden_layers", c.layers.len()),
            ("hidden_size", c.hidden_size),
            ("intermediate_size", c.intermediate_size),
            ("num_attention_heads", c.num_attention_heads),
            ("num_key_value_heads", c.num_key_value_heads),
            ("head_dim", c.head_dim),
            ("block_size", c.block_size),
            ("taps", c.target_layer_ids.len()),
            ("target_hidden_size", c.target_hidden_size),
            ("vocab_size", c.vocab_size),
            ("draft_vocab_size", c.draft_vocab_size),
        ];
        Self { kind: "drafter: DFlash", sizes, ignored_keys: c.ignored_keys.clone() }
    }
}
