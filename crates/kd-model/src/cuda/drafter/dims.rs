//! What one rank of a drafter looks like: sizes, and the constants that are no weights.

use kd_attn::{Rope, Yarn};
use kd_kernels::Profile;

use crate::config::{DrafterConfig, DrafterLayer};
use crate::cuda::CudaError;

/// Sizes of one rank of a drafter, and the constants of its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftDims {
    /// Name of the profile whose kernels are used.
    pub profile: &'static str,
    /// Attention of each layer.
    pub layers: Vec<DrafterLayer>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads of this rank.
    pub heads: usize,
    /// Key and value heads of this rank.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Inner width of the MLPs on this rank.
    pub width: usize,
    /// Rows of a block.
    pub block: usize,
    /// Taps of a token, `taps · target hidden` values over all ranks.
    pub tap_width: usize,
    /// Draft ids on this rank.
    pub vocab: usize,
    /// This rank.
    pub rank: usize,
    /// Ranks that share the drafter.
    pub ranks: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// The rotary embedding.
    pub rope: Rope,
    /// Target id that fills the rows to be predicted.
    pub mask: u32,
}

impl DraftDims {
    /// One rank of `ranks` of a checkpoint.
    ///
    /// # Errors
    /// A shape without a profile.
    pub fn of(config: &DrafterConfig, rank: usize, ranks: usize) -> Result<Self, CudaError> {
        let profile = profile_of(config, ranks)?;
        let sized = Self::sized(profile, config.layers.len()).ok_or_else(|| missing(config, ranks))?;
        Ok(Self {
            layers: config.layers.clone(),
            vocab: config.draft_vocab_size / ranks,
            rank,
            eps: config.rms_norm_eps as f32,
            rope: config.rope.embedding(),
            mask: config.mask_token_id,
            ..sized
        })
    }

    /// The sizes of one rank of `profile` with `layers` layers that see everything, and the constants of K2.6's published
    /// drafter. `None` for a profile without a drafter.
    pub fn sized(profile: &'static Profile, layers: usize) -> Option<Self> {
        let (p, d) = (profile, profile.drafter?);
        let yarn = Yarn { factor: 64.0, original_max_position: 4096.0, beta_fast: 32.0, beta_slow: 1.0 };
        Some(Self {
            profile: p.name,
            layers: vec![DrafterLayer { window: None, causal: false }; layers],
            hidden: p.hidden,
            heads: d.heads / p.tp,
            kv_heads: d.kv_heads / p.tp.min(d.kv_heads),
            head_dim: d.head_dim,
            width: d.width / p.tp,
            block: d.block,
            tap_width: d.taps * p.hidden,
            vocab: p.vocab / p.tp,
            rank: 0,
            ranks: p.tp,
            eps: 1e-5,
            rope: Rope::new(d.head_dim, 50_000.0, Some(yarn), 1.0),
            mask: 0,
        })
    }

    /// Rows of a stream that predict a token.
    pub fn drafted(&self) -> usize {
        self.block - 1
    }

    /// Columns of the taps that this rank multiplies.
    pub(crate) fn tap_columns(&self) -> usize {
        self.tap_width / self.ranks
    }

    /// Columns of all query heads.
    pub(crate) fn queries(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Keys and values of a token in one layer.
    pub(crate) fn entry(&self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// Query heads of a key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Ranges of keys of a stream at most, as `drafter_attention` declares them.
    pub(crate) fn splits(&self) -> usize {
        (256 / self.kv_heads).min(128)
    }
}

fn profile_of(config: &DrafterConfig, ranks: usize) -> Result<&'static Profile, CudaError> {
    let fits = |p: &&Profile| {
        p.drafter.is_some_and(|d| {
            let own = [
                [p.tp, ranks],
                [p.ep, 1],
                [p.hidden, config.hidden_size],
                [p.hidden, config.target_hidden_size],
                [p.vocab, config.vocab_size],
                [d.heads, config.num_attention_heads],
                [d.kv_heads, config.num_key_value_heads],
                [d.head_dim, config.head_dim],
                [d.width, config.intermediate_size],
                [d.block, config.block_size],
                [d.taps, config.target_layer_ids.len()],
            ];
            own.iter().all(|[declared, found]| declared == found)
        })
    };
    Profile::all().iter().find(fits).ok_or_else(|| missing(config, ranks))
}

fn missing(config: &DrafterConfig, ranks: usize) -> CudaError {
    CudaError::NoProfile {
        shape: format!(
            "a drafter of hidden {}, {} / {} heads of {}, MLP {}, blocks of {}, {} taps of {}, vocabulary {}, {ranks} ranks",
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.intermediate_size,
            config.block_size,
            config.target_layer_ids.len(),
            config.target_hidden_size,
            config.vocab_size,
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_demo_drafter_has_a_profile_on_one_and_two_ranks_and_none_on_three() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/drafter");
        let config = DrafterConfig::from_dir(&dir).expect("the demo drafter");
        let whole = DraftDims::of(&config, 0, 1).expect("a profile");
        assert_eq!((whole.profile, whole.heads, whole.kv_heads, whole.vocab), ("demo-tp1", 4, 2, 4352));
        assert_eq!((whole.mask, whole.tap_columns(), whole.splits()), (4350, 1024, 128));
        let half = DraftDims::of(&config, 1, 2).expect("a profile");
        assert_eq!((half.profile, half.heads, half.kv_heads, half.width), ("demo-tp2", 2, 1, 384));
        let message = DraftDims::of(&config, 0, 3).expect_err("no profile").to_string();
        assert!(message.contains("3 ranks") && message.contains("--device cpu"), "{message}");
    }

    #[test]
    fn a_rank_of_eight_of_k26_has_one_key_head() {
        let dims = DraftDims::sized(Profile::named("k26-tp8").expect("declared"), 6).expect("a drafter");
        assert_eq!((dims.heads, dims.kv_heads, dims.group(), dims.width), (8, 1, 8, 2304));
        assert_eq!((dims.tap_columns(), dims.vocab, dims.layers.len()), (5376, 20480, 6));
        assert!(DraftDims::sized(Profile::named("golden-realdims-tp1").expect("declared"), 6).is_none());
    }
}
