//! What the passes of a model have to do at least: multiply-adds, and bytes of weights.

use kd_engine::Models;
use kd_model::config::{DrafterConfig, TargetConfig};

/// Bytes of an INT4 weight with its share of a bf16 scale for 32 of them.
const INT4: f64 = 0.5 + 2.0 / 32.0;
const BF16: f64 = 2.0;

/// Work of one pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) multiply_adds: f64,
    /// Weights that are read at least once. Of the experts, as many as one row needs.
    pub(crate) bytes: f64,
}

/// A target pass of `rows` rows with logits, each row seeing `context` tokens.
pub(crate) fn target(config: &TargetConfig, rows: f64, context: f64) -> Work {
    let hidden = config.hidden_size as f64;
    let heads = config.num_attention_heads as f64;
    let latent = config.kv_lora_rank as f64;
    let query_width = heads * config.qk_head_dim() as f64;
    let query = config.q_lora_rank.map_or(hidden * query_width, |rank| rank as f64 * (hidden + query_width));
    let absorbed = heads * latent * (config.qk_nope_head_dim + config.v_head_dim) as f64;
    let output = heads * config.v_head_dim as f64 * hidden;
    let attention = query + hidden * config.cache_width() as f64 + absorbed + output;
    let seen = heads * (config.cache_width() as f64 + latent) * context;
    let expert = 3.0 * hidden * config.moe_intermediate_size as f64;
    let mut weights = hidden * config.vocab_size as f64;
    let (mut multiply_adds, mut bytes) = (0.0, 0.0);
    for layer in 0..config.num_hidden_layers {
        weights += attention;
        multiply_adds += seen;
        if config.is_moe(layer) {
            weights += hidden * config.n_routed_experts as f64 + expert * config.n_shared_experts as f64;
            multiply_adds += expert * config.num_experts_per_tok as f64;
            bytes += INT4 * expert * config.num_experts_per_tok as f64;
        } else {
            weights += 3.0 * hidden * config.intermediate_size as f64;
        }
    }
    Work { multiply_adds: rows * (multiply_adds + weights), bytes: bytes + BF16 * weights }
}

/// A pass that drafts for `streams` streams, without the reading of committed tokens.
pub(crate) fn drafter(config: &DrafterConfig, streams: f64) -> Work {
    let hidden = config.hidden_size as f64;
    let heads = (2 * config.num_attention_heads + 2 * config.num_key_value_heads) as f64;
    let layer = hidden * heads * config.head_dim as f64 + 3.0 * hidden * config.intermediate_size as f64;
    let layers = layer * config.layers.len() as f64;
    let head = hidden * config.draft_vocab_size as f64;
    let block = config.block_size as f64;
    Work { multiply_adds: streams * (block * layers + (block - 1.0) * head), bytes: BF16 * (layers + head) }
}

/// Bytes of all weights that passes go through, as a working set.
pub(crate) fn weight_bytes(models: &Models) -> f64 {
    let config = models.target.config();
    let every = TargetConfig { num_experts_per_tok: config.n_routed_experts, ..config.clone() };
    let drafter = models.drafter.as_ref().map_or(0.0, |d| drafter(d.config(), 1.0).bytes);
    target(&every, 1.0, 0.0).bytes + drafter
}
