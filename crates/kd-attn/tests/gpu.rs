//! Attention kernels against the operations of this crate, where there is a GPU.

#[path = "gpu/far_pages.rs"]
mod far_pages;

use kd_attn::selftest::CHECKS;
use kd_kernels::testing;

macro_rules! checks {
    ($($name:ident: $check:literal at $profile:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let (_, check) = CHECKS.into_iter().find(|(name, _)| *name == $check).expect("a check");
                testing::check(stringify!($name), $profile, check);
            }
        )*
    };
}

checks! {
    mla_inputs_matches_the_cpu_at_k26_sizes: "mla_inputs" at "k26-tp8";
    mla_inputs_matches_the_cpu_at_k26_tp1_sizes: "mla_inputs" at "k26-tp1";
    mla_inputs_matches_the_cpu_at_demo_sizes: "mla_inputs" at "demo-tp1";
    query_rope_matches_the_cpu_at_k26_sizes: "query_rope" at "k26-tp8";
    query_rope_matches_the_cpu_at_demo_sizes: "query_rope" at "demo-tp1";
    head_queries_have_the_bits_of_four_launches_at_k26_sizes: "head_queries" at "k26-tp8";
    head_queries_have_the_bits_of_four_launches_at_demo_sizes: "head_queries" at "demo-tp1";
    head_values_have_the_bits_of_two_launches_at_k26_sizes: "head_values" at "k26-tp8";
    head_values_have_the_bits_of_two_launches_at_demo_sizes: "head_values" at "demo-tp1";
    drafter_heads_match_the_cpu_at_k26_sizes: "drafter_heads" at "k26-tp8";
    drafter_heads_match_the_cpu_at_k26_tp1_sizes: "drafter_heads" at "k26-tp1";
    drafter_heads_match_the_cpu_at_demo_sizes: "drafter_heads" at "demo-tp1";
    drafter_context_matches_the_cpu_at_k26_sizes: "drafter_context" at "k26-tp8";
    drafter_context_matches_the_cpu_at_demo_sizes: "drafter_context" at "demo-tp1";
    commit_matches_the_cpu_at_k26_sizes: "commit" at "k26-tp8";
    commit_matches_the_cpu_at_k26_tp1_sizes: "commit" at "k26-tp1";
    commit_matches_the_cpu_at_demo_sizes: "commit" at "demo-tp1";
    prefill_attention_matches_f64_at_k26_sizes: "prefill_attention" at "k26-tp8";
    prefill_attention_matches_f64_at_demo_sizes: "prefill_attention" at "demo-tp1";
    a_chunk_matches_f64_at_k26_sizes: "prefill" at "k26-tp8";
    a_chunk_matches_f64_at_demo_sizes: "prefill" at "demo-tp1";
    drafter_attention_matches_the_cpu_at_k26_sizes: "drafter_attention" at "k26-tp8";
    drafter_attention_matches_the_cpu_at_demo_sizes: "drafter_attention" at "demo-tp1";
    tree_mla_matches_the_cpu_at_k26_sizes: "tree_mla" at "k26-tp8";
    tree_mla_matches_the_cpu_at_demo_sizes: "tree_mla" at "demo-tp1";
    fp8_entries_match_the_cpu_at_k26_sizes: "fp8_entries" at "k26-tp8";
    fp8_entries_match_the_cpu_at_demo_sizes: "fp8_entries" at "demo-tp1";
    tree_mla_over_fp8_pages_matches_the_cpu_at_k26_sizes: "tree_mla_fp8" at "k26-tp8";
    tree_mla_over_fp8_pages_matches_the_cpu_at_demo_sizes: "tree_mla_fp8" at "demo-tp1";
}
