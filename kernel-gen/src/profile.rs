//! Model shapes that kernels are specialised for.

/// The drafter's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafter {
    /// Query heads.
    pub heads: i64,
    /// Key/value heads.
    pub kv_heads: i64,
    /// Width of a head.
    pub head_dim: i64,
    /// Intermediate width of the MLP.
    pub width: i64,
    /// Rows of one drafting pass.
    pub block: i64,
    /// Target layers whose outputs feed the drafter.
    pub taps: i64,
}

/// One model shape split over ranks. Declarations name its fields in `dims`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name on the command line and in bundle files.
    pub name: String,
    /// Ranks that split heads, dense widths, expert widths and vocabulary.
    pub tp: i64,
    /// Ranks that split whole experts.
    pub ep: i64,
    /// Width of the residual stream.
    pub hidden: i64,
    /// Rank of the compressed query.
    pub q_lora_rank: i64,
    /// Rank of the compressed key/value latent.
    pub kv_lora_rank: i64,
    /// Attention heads, over all ranks.
    pub heads: i64,
    /// Query/key dimensions without position.
    pub nope_dim: i64,
    /// Query/key dimensions with rotary position.
    pub rope_dim: i64,
    /// Value dimensions of a head.
    pub value_dim: i64,
    /// Routed experts, over all ranks.
    pub experts: i64,
    /// Experts a token is sent to.
    pub experts_per_token: i64,
    /// Intermediate width of one expert, over all ranks.
    pub expert_width: i64,
    /// Shared experts.
    pub shared_experts: i64,
    /// Intermediate width of the dense layers, over all ranks.
    pub dense_width: i64,
    /// Vocabulary, over all ranks.
    pub vocab: i64,
    /// The drafter, where the profile has one.
    pub drafter: Option<Drafter>,
}

impl Profile {
    /// Names that `dims` may use.
    pub const FIELDS: [&'static str; 22] = [
        "tp",
        "ep",
        "hidden",
        "q_lora_rank",
        "kv_lora_rank",
        "heads",
        "nope_dim",
        "rope_dim",
        "value_dim",
        "experts",
        "experts_per_token",
        "expert_width",
        "shared_experts",
        "dense_width",
        "vocab",
        "drafter_heads",
        "drafter_kv_heads",
        "drafter_head_dim",
        "drafter_width",
        "drafter_block",
        "drafter_taps",
        "latent_dim",
    ];

    /// The value of a field; `None` for an unknown one and for drafter fields of a profile without a drafter.
    pub fn field(&self, name: &str) -> Option<i64> {
        let drafter = self.drafter.as_ref();
        match name {
            "tp" => Some(self.tp),
            "ep" => Some(self.ep),
            "hidden" => Some(self.hidden),
            "q_lora_rank" => Some(self.q_lora_rank),
            "kv_lora_rank" => Some(self.kv_lora_rank),
            "latent_dim" => self.kv_lora_rank.checked_add(self.rope_dim),
            "heads" => Some(self.heads),
            "nope_dim" => Some(self.nope_dim),
            "rope_dim" => Some(self.rope_dim),
            "value_dim" => Some(self.value_dim),
            "experts" => Some(self.experts),
            "experts_per_token" => Some(self.experts_per_token),
            "expert_width" => Some(self.expert_width),
            "shared_experts" => Some(self.shared_experts),
            "dense_width" => Some(self.dense_width),
            "vocab" => Some(self.vocab),
            "drafter_heads" => drafter.map(|d| d.heads),
            "drafter_kv_heads" => drafter.map(|d| d.kv_heads),
            "drafter_head_dim" => drafter.map(|d| d.head_dim),
            "drafter_width" => drafter.map(|d| d.width),
            "drafter_block" => drafter.map(|d| d.block),
            "drafter_taps" => drafter.map(|d| d.taps),
            _ => None,
        }
    }

    /// Every profile of a release.
    pub fn all() -> Vec<Self> {
        let k26 = |tp, ep| Self { tp, ep, ..Self::k26() };
        let named = |name: String, profile| Self { name, ..profile };
        let mut profiles: Vec<Self> = [1, 2, 4, 8].map(|tp| named(format!("k26-tp{tp}"), k26(tp, 1))).into();
        profiles.extend([4, 8].map(|ep| named(format!("k26-ep{ep}"), k26(1, ep))));
        profiles.extend([1, 2].map(|tp| named(format!("demo-tp{tp}"), Self { tp, ..Self::demo() })));
        profiles.push(named("golden-realdims-tp1".to_owned(), Self::golden_realdims()));
        profiles
    }

    /// The profile called `name`: one of a release, or [`Profile::small`].
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().chain([Self::small()]).find(|profile| profile.name == name)
    }

    /// Kimi K2.6 with its published DFlash drafter.
    fn k26() -> Self {
        Self {
            name: String::new(),
            tp: 1,
            ep: 1,
            hidden: 7168,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            heads: 64,
            nope_dim: 128,
            rope_dim: 64,
            value_dim: 128,
            experts: 384,
            experts_per_token: 8,
            expert_width: 2048,
            shared_experts: 1,
            dense_width: 18432,
            vocab: 163_840,
            drafter: Some(Drafter { heads: 64, kv_heads: 8, head_dim: 128, width: 18432, block: 8, taps: 6 }),
        }
    }

    /// The trained pair in `models/demo`.
    fn demo() -> Self {
        Self {
            name: String::new(),
            tp: 1,
            ep: 1,
            hidden: 256,
            q_lora_rank: 128,
            kv_lora_rank: 128,
            heads: 8,
            nope_dim: 32,
            rope_dim: 32,
            value_dim: 32,
            experts: 24,
            experts_per_token: 4,
            expert_width: 128,
            shared_experts: 1,
            dense_width: 512,
            vocab: 4352,
            drafter: Some(Drafter { heads: 4, kv_heads: 2, head_dim: 64, width: 768, block: 8, taps: 4 }),
        }
    }

    /// K2.6's layers in small, no model's and in no release: nearly every variant of every family, sums of several segments among them,
    /// in launches that a sanitizer gets through. A rank has eight experts.
    fn small() -> Self {
        Self {
            name: "small-ep16".to_owned(),
            tp: 1,
            ep: 16,
            hidden: 2048,
            q_lora_rank: 256,
            kv_lora_rank: 512,
            heads: 8,
            nope_dim: 128,
            rope_dim: 64,
            value_dim: 128,
            experts: 128,
            experts_per_token: 4,
            expert_width: 256,
            shared_experts: 1,
            dense_width: 7232,
            vocab: 640,
            drafter: Some(Drafter { heads: 16, kv_heads: 2, head_dim: 128, width: 512, block: 8, taps: 2 }),
        }
    }

    /// The golden variant with K2.6's own attention widths (`tests/golden/realdims`); it has no drafter.
    fn golden_realdims() -> Self {
        Self {
            name: String::new(),
            tp: 1,
            ep: 1,
            hidden: 256,
            q_lora_rank: 96,
            kv_lora_rank: 512,
            heads: 4,
            nope_dim: 128,
            rope_dim: 64,
            value_dim: 128,
            experts: 16,
            experts_per_token: 8,
            expert_width: 64,
            shared_experts: 1,
            dense_width: 256,
            vocab: 640,
            drafter: None,
        }
    }
}
