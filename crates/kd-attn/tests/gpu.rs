//! Attention kernels against the operations of this crate, where there is a GPU.

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
    latent_append_matches_the_cpu_at_k26_sizes: "latent_append" at "k26-tp8";
    latent_append_matches_the_cpu_at_demo_sizes: "latent_append" at "demo-tp1";
    head_norm_rope_matches_the_cpu_at_k26_sizes: "head_norm_rope" at "k26-tp8";
    head_norm_rope_matches_the_cpu_at_demo_sizes: "head_norm_rope" at "demo-tp1";
    drafter_append_matches_the_cpu_at_k26_sizes: "drafter_append" at "k26-tp8";
    drafter_append_matches_the_cpu_at_demo_sizes: "drafter_append" at "demo-tp1";
    commit_matches_the_cpu_at_k26_sizes: "commit" at "k26-tp8";
    commit_matches_the_cpu_at_demo_sizes: "commit" at "demo-tp1";
    tree_mla_matches_the_cpu_at_k26_sizes: "tree_mla" at "k26-tp8";
    tree_mla_matches_the_cpu_at_demo_sizes: "tree_mla" at "demo-tp1";
}
