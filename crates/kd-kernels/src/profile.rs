//! Model shapes that kernels of this release are compiled for.

use crate::generated::profiles::PROFILES;

/// One model shape split over ranks; all sizes are over all ranks. `kernel-gen/src/profile.rs` is where they are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name on the command line and in bundle files.
    pub name: &'static str,
    /// Ranks that split heads, dense widths, expert widths and vocabulary.
    pub tp: usize,
    /// Ranks that split whole experts.
    pub ep: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rank of the compressed query.
    pub q_lora_rank: usize,
    /// Rank of the compressed key/value latent.
    pub kv_lora_rank: usize,
    /// Attention heads.
    pub heads: usize,
    /// Query/key dimensions without position.
    pub nope_dim: usize,
    /// Query/key dimensions with rotary position.
    pub rope_dim: usize,
    /// Value dimensions of a head.
    pub value_dim: usize,
    /// Routed experts.
    pub experts: usize,
    /// Experts a token is sent to.
    pub experts_per_token: usize,
    /// Intermediate width of one expert.
    pub expert_width: usize,
    /// Shared experts.
    pub shared_experts: usize,
    /// Intermediate width of the dense layers.
    pub dense_width: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// The drafter, where the profile has one.
    pub drafter: Option<Drafter>,
}

/// The drafter's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafter {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Intermediate width of the MLP.
    pub width: usize,
    /// Rows of one drafting pass.
    pub block: usize,
    /// Target layers whose outputs feed the drafter.
    pub taps: usize,
}

impl Profile {
    /// Every profile of this release.
    pub fn all() -> &'static [Self] {
        PROFILES
    }

    /// The profile called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }
}
