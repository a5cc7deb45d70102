//! The parts that a round is broken into, by the kernel families that do them.

/// A part of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Routed experts, from grouping to combine.
    Moe,
    /// Tree-verify attention over context and tree.
    Attention,
    /// Products with bf16 weights, shared expert and absorbed heads included; for few rows also what shares a launch with them:
    /// norms and rotation of queries, the merge of attention, the activation of the shared expert, for one row the norm in front.
    Dense,
    /// Scores and choices of experts; for one row also the norm in front and the shared expert.
    Router,
    /// The seams between layers: sums and norms, which write the taps.
    Norms,
    /// Norms and rotations of latents and queries, activations, embedding.
    Small,
    /// The target's head.
    Logits,
    /// Draws of all rows.
    Sampling,
    /// Latents into pages, taps side by side.
    Commit,
    /// Context of committed tokens, one block a stream, the head once more, and its best tokens.
    Draft,
}

/// Which families' launches are made.
pub(super) type Admits = fn(&str) -> bool;

impl Phase {
    /// Those of the verify pass, each with what admits its families alone.
    pub(super) const VERIFY: [(Self, Admits); 8] = [
        (Self::Moe, |family| of(family) == Self::Moe),
        (Self::Attention, |family| of(family) == Self::Attention),
        (Self::Dense, |family| of(family) == Self::Dense),
        (Self::Router, |family| of(family) == Self::Router),
        (Self::Norms, |family| of(family) == Self::Norms),
        (Self::Small, |family| of(family) == Self::Small),
        (Self::Logits, |family| of(family) == Self::Logits),
        (Self::Sampling, |family| of(family) == Self::Sampling),
    ];

    /// Its name in tables and records.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Moe => "moe",
            Self::Attention => "attention",
            Self::Dense => "dense",
            Self::Router => "router",
            Self::Norms => "norms",
            Self::Small => "small",
            Self::Logits => "logits",
            Self::Sampling => "sampling",
            Self::Commit => "commit",
            Self::Draft => "draft",
        }
    }
}

/// Where a family's launches belong in a verify pass. What is not named is small.
fn of(family: &str) -> Phase {
    match family {
        "tree_mla" | "tree_mla_merge" => Phase::Attention,
        "dense" | "dense_mid" | "dense_many" | "dense_wgmma" | "absorb_query" | "absorb_value" => {
            Phase::Dense
        }
        "head_queries" | "head_values" | "few_gate" | "norm_dense" => Phase::Dense,
        "router" | "router_wgmma" | "few_route" => Phase::Router,
        "rms_norm" | "add_rms_norm" => Phase::Norms,
        "lm_head" | "lm_head_wgmma" => Phase::Logits,
        "sample" => Phase::Sampling,
        "commit" | "gather_taps" => Phase::Commit,
        _ if family.starts_with("moe_") => Phase::Moe,
        _ => Phase::Small,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_a_pass_is_admitted_by_one_phase_alone() {
        let families = [
            "embed",
            "rms_norm",
            "add_rms_norm",
            "dense",
            "mla_inputs",
            "query_rope",
            "absorb_query",
            "tree_mla",
            "tree_mla_merge",
            "absorb_value",
            "head_queries",
            "head_values",
            "few_gate",
            "few_route",
            "norm_dense",
            "silu_mul",
            "router",
            "router_wgmma",
            "moe_group",
            "moe_gate_up",
            "moe_down",
            "moe_combine",
            "lm_head",
            "lm_head_wgmma",
            "sample",
        ];
        for family in families {
            let count = Phase::VERIFY.iter().filter(|(_, admits)| admits(family)).count();
            assert_eq!(count, 1, "{family}");
        }
        for (phase, admits) in Phase::VERIFY {
            assert!(families.iter().any(|family| admits(family)), "{}", phase.name());
        }
    }
}
