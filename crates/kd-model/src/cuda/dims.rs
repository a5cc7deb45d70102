//! What one rank of a target looks like: sizes, and the constants that are no weights.

use kd_attn::{Fp8Entry, KvCacheDtype, MlaConfig, Rope};
use kd_kernels::Profile;
use kd_moe::RouterConfig;
use kd_moe::gpu::Shape;

use super::CudaError;
use crate::Target;
use crate::config::{LATENT_NORM_EPS, TargetConfig};

/// Sizes of one rank, and the constants of its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Dims {
    /// Name of the profile whose kernels are used.
    pub profile: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Which layers have experts.
    pub moe: Vec<bool>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rank of the compressed query.
    pub q_rank: usize,
    /// Attention of this rank: heads, widths, scale and the epsilon of its norms.
    pub attention: MlaConfig,
    /// Routed experts of this rank.
    pub experts: Shape,
    /// Width of the shared expert on this rank.
    pub shared_width: usize,
    /// Width of a dense MLP on this rank.
    pub dense_width: usize,
    /// Token ids on this rank.
    pub vocab: usize,
    /// Which part of the vocabulary, counted in parts of `vocab` ids.
    pub rank: usize,
    /// The router.
    pub router: RouterConfig,
    /// Epsilon of the block norms.
    pub eps: f32,
    /// The rotary embedding.
    pub rope: Rope,
    /// Positions that the model is made for.
    pub positions: usize,
    /// What pages hold.
    pub kv_cache_dtype: KvCacheDtype,
}

impl Dims {
    /// One rank of a loaded target.
    ///
    /// # Errors
    /// As [`Dims::of`].
    pub fn of_target(target: &Target, rank: usize) -> Result<Self, CudaError> {
        let kv_cache_dtype = target.kv_cache_dtype();
        Ok(Self { kv_cache_dtype, ..Self::of(target.config(), rank, target.ranks())? })
    }

    /// Bytes of a token's entry in the pages of a layer.
    pub fn entry_bytes(&self) -> usize {
        self.kv_cache_dtype.entry_bytes(Fp8Entry { latent: self.attention.latent, rope: self.attention.rope })
    }

    /// One rank of `ranks` of a checkpoint.
    ///
    /// # Errors
    /// A shape without a profile, or a configuration that the GPU forward does not implement.
    pub fn of(config: &TargetConfig, rank: usize, ranks: usize) -> Result<Self, CudaError> {
        let q_rank = config.q_lora_rank.ok_or(CudaError::Unsupported {
            key: "q_lora_rank",
            found: "null".to_owned(),
            supported: "a compressed query",
        })?;
        let profile = profile_of(config, q_rank, ranks)?;
        let sized = Self::sized(profile, config.num_hidden_layers);
        Ok(Self {
            moe: (0..config.num_hidden_layers).map(|layer| config.is_moe(layer)).collect(),
            attention: MlaConfig { softmax_scale: config.softmax_scale() as f32, ..sized.attention },
            rank,
            router: RouterConfig {
                top_k: config.num_experts_per_tok,
                groups: config.n_group,
                top_groups: config.topk_group,
                normalize: config.norm_topk_prob,
                scaling: config.routed_scaling_factor as f32,
            },
            eps: config.rms_norm_eps as f32,
            rope: config.rope.embedding(),
            positions: config.max_position_embeddings,
            ..sized
        })
    }

    /// The sizes of one rank of `profile` with `layers` layers, and K2.6's own constants: the first layer dense, its rope,
    /// router and epsilons.
    pub fn sized(profile: &'static Profile, layers: usize) -> Self {
        let p = profile;
        let scale = ((p.nope_dim + p.rope_dim) as f32).powf(-0.5);
        let yarn_gain = 0.1f32 * 64f32.ln() + 1.0;
        let yarn =
            kd_attn::Yarn { factor: 64.0, original_max_position: 4096.0, beta_fast: 32.0, beta_slow: 1.0 };
        Self {
            profile: p.name,
            layers,
            moe: (0..layers).map(|layer| layer > 0).collect(),
            hidden: p.hidden,
            q_rank: p.q_lora_rank,
            attention: MlaConfig {
                heads: p.heads / p.tp,
                nope: p.nope_dim,
                rope: p.rope_dim,
                value: p.value_dim,
                latent: p.kv_lora_rank,
                softmax_scale: scale * yarn_gain * yarn_gain,
                latent_eps: LATENT_NORM_EPS,
            },
            experts: Shape {
                hidden: p.hidden,
                width: p.expert_width / p.tp,
                experts: p.experts / p.ep,
                top_k: p.experts_per_token,
            },
            shared_width: p.shared_experts * p.expert_width / p.tp,
            dense_width: p.dense_width / p.tp,
            vocab: p.vocab / p.tp,
            rank: 0,
            router: RouterConfig {
                top_k: p.experts_per_token,
                groups: 1,
                top_groups: 1,
                normalize: true,
                scaling: 2.827,
            },
            eps: 1e-5,
            rope: Rope::new(p.rope_dim, 50_000.0, Some(yarn), 1.0),
            positions: 262_144,
            kv_cache_dtype: KvCacheDtype::Auto,
        }
    }

    /// Columns of the joint product of `q_a_proj` and `kv_a_proj_with_mqa`.
    pub(crate) fn joint(&self) -> usize {
        self.q_rank + self.attention.cache_width()
    }

    /// Columns of all heads' queries.
    pub(crate) fn queries(&self) -> usize {
        self.attention.heads * (self.attention.nope + self.attention.rope)
    }

    /// Columns of all heads' values.
    pub(crate) fn values(&self) -> usize {
        self.attention.heads * self.attention.value
    }

    /// The wider MLP.
    pub(crate) fn widest(&self) -> usize {
        self.dense_width.max(self.shared_width)
    }
}

fn profile_of(config: &TargetConfig, q_rank: usize, ranks: usize) -> Result<&'static Profile, CudaError> {
    let fits = |p: &&Profile| {
        let own = [
            [p.tp, ranks],
            [p.ep, 1],
            [p.hidden, config.hidden_size],
            [p.q_lora_rank, q_rank],
            [p.kv_lora_rank, config.kv_lora_rank],
            [p.heads, config.num_attention_heads],
            [p.nope_dim, config.qk_nope_head_dim],
            [p.rope_dim, config.qk_rope_head_dim],
            [p.value_dim, config.v_head_dim],
            [p.experts, config.n_routed_experts],
            [p.experts_per_token, config.num_experts_per_tok],
            [p.expert_width, config.moe_intermediate_size],
            [p.shared_experts, config.n_shared_experts],
            [p.dense_width, config.intermediate_size],
            [p.vocab, config.vocab_size],
        ];
        own.iter().all(|[declared, found]| declared == found)
    };
    Profile::all().iter().find(fits).ok_or_else(|| CudaError::NoProfile {
        shape: format!(
            "hidden {}, q_lora {q_rank}, kv_lora {}, {} heads of {} + {} and {}, {} experts (top {}) of {}, {} shared, \
             dense {}, vocabulary {}, {ranks} ranks",
            config.hidden_size,
            config.kv_lora_rank,
            config.num_attention_heads,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            config.n_shared_experts,
            config.intermediate_size,
            config.vocab_size,
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_checkpoint_finds_its_profile_or_is_told_what_to_build() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/target");
        let config = TargetConfig::from_dir(&dir).expect("the demo's configuration");
        let dims = Dims::of(&config, 1, 2).expect("a profile");
        assert_eq!(
            (dims.profile, dims.attention.heads, dims.rank),
            ("demo-tp2", config.num_attention_heads / 2, 1)
        );
        let message = Dims::of(&config, 0, 3).expect_err("three ranks").to_string();
        assert!(message.contains("3 ranks") && message.contains("cargo xtask build-kernels"), "{message}");
        let other = TargetConfig { hidden_size: 288, ..config.clone() };
        assert!(matches!(Dims::of(&other, 0, 1), Err(CudaError::NoProfile { .. })));
        let direct = TargetConfig { q_lora_rank: None, ..config };
        let message = Dims::of(&direct, 0, 1).expect_err("no compressed query").to_string();
        assert!(message.contains("q_lora_rank") && message.contains("--device cpu"), "{message}");
    }
}
