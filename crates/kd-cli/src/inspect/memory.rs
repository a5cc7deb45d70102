//! Memory of one tensor-parallel rank.

use kd_attn::KvCacheDtype;
use kd_model::TensorSpec;
use kd_model::config::TargetConfig;

use super::report::{Constants, Rank};

/// Tokens of a page, the unit in which the cache is handed out.
const PAGE: u64 = kd_attn::PAGE_TOKENS as u64;

/// The share of rank 0 of `tp`, with pages of `cache`. Latents are not divided: every rank's heads read all of them.
pub(super) fn rank(
    config: &TargetConfig,
    specs: &[TensorSpec],
    tp: usize,
    card_gb: f64,
    cache: KvCacheDtype,
) -> Rank {
    let weight_bytes = specs.iter().map(|spec| spec.bytes_per_rank(tp)).fold(0, u64::saturating_add);
    let card = (card_gb * (1u64 << 30) as f64) as u64;
    let per_page = Constants::of_target(config, cache).kv_bytes_per_token.saturating_mul(PAGE).max(1);
    let kv_tokens = card.saturating_sub(weight_bytes) / per_page * PAGE;
    Rank { tp, weight_bytes, kv_tokens, refused: config.refuses_ranks(tp) }
}
