//! Mixture-of-experts kernels against the operations of this crate, where there is a GPU.

use kd_kernels::testing;
use kd_moe::selftest::CHECKS;

#[test]
fn router_matches_the_cpu_at_k26_sizes() {
    testing::check("router_matches_the_cpu_at_k26_sizes", "k26-tp8", CHECKS[0].1);
}

#[test]
fn router_matches_the_cpu_at_k26_tp1_sizes() {
    testing::check("router_matches_the_cpu_at_k26_tp1_sizes", "k26-tp1", CHECKS[0].1);
}

#[test]
fn router_matches_the_cpu_at_demo_sizes() {
    testing::check("router_matches_the_cpu_at_demo_sizes", "demo-tp1", CHECKS[0].1);
}

#[test]
fn experts_match_the_cpu_at_k26_sizes() {
    testing::check("experts_match_the_cpu_at_k26_sizes", "k26-tp8", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_at_demo_sizes() {
    testing::check("experts_match_the_cpu_at_demo_sizes", "demo-tp1", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_at_half_the_demo_width() {
    testing::check("experts_match_the_cpu_at_half_the_demo_width", "demo-tp2", CHECKS[1].1);
}

#[test]
fn uneven_routings_match_the_cpu_at_k26_sizes() {
    testing::check("uneven_routings_match_the_cpu_at_k26_sizes", "k26-tp8", CHECKS[2].1);
}

#[test]
fn uneven_routings_match_the_cpu_at_demo_sizes() {
    testing::check("uneven_routings_match_the_cpu_at_demo_sizes", "demo-tp1", CHECKS[2].1);
}

#[test]
fn experts_match_the_cpu_at_k26_tp1_sizes() {
    testing::check("experts_match_the_cpu_at_k26_tp1_sizes", "k26-tp1", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_at_k26_tp2_sizes() {
    testing::check("experts_match_the_cpu_at_k26_tp2_sizes", "k26-tp2", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_at_k26_tp4_sizes() {
    testing::check("experts_match_the_cpu_at_k26_tp4_sizes", "k26-tp4", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_with_a_quarter_of_the_k26_experts() {
    testing::check("experts_match_the_cpu_with_a_quarter_of_the_k26_experts", "k26-ep4", CHECKS[1].1);
}

#[test]
fn experts_match_the_cpu_with_an_eighth_of_the_k26_experts() {
    testing::check("experts_match_the_cpu_with_an_eighth_of_the_k26_experts", "k26-ep8", CHECKS[1].1);
}

#[test]
fn uneven_routings_match_the_cpu_at_k26_tp1_sizes() {
    testing::check("uneven_routings_match_the_cpu_at_k26_tp1_sizes", "k26-tp1", CHECKS[2].1);
}

#[test]
fn uneven_routings_match_the_cpu_at_k26_tp2_sizes() {
    testing::check("uneven_routings_match_the_cpu_at_k26_tp2_sizes", "k26-tp2", CHECKS[2].1);
}

#[test]
fn uneven_routings_match_the_cpu_at_k26_tp4_sizes() {
    testing::check("uneven_routings_match_the_cpu_at_k26_tp4_sizes", "k26-tp4", CHECKS[2].1);
}

#[test]
fn uneven_routings_match_the_cpu_with_an_eighth_of_the_k26_experts() {
    testing::check("uneven_routings_match_the_cpu_with_an_eighth_of_the_k26_experts", "k26-ep8", CHECKS[2].1);
}

#[test]
fn expert_replays_give_the_same_bits_beside_a_busy_stream_at_k26_sizes() {
    testing::check(
        "expert_replays_give_the_same_bits_beside_a_busy_stream_at_k26_sizes",
        "k26-tp8",
        CHECKS[3].1,
    );
}

#[test]
fn expert_replays_give_the_same_bits_beside_a_busy_stream_at_demo_sizes() {
    testing::check(
        "expert_replays_give_the_same_bits_beside_a_busy_stream_at_demo_sizes",
        "demo-tp1",
        CHECKS[3].1,
    );
}

#[test]
fn all_forms_give_the_same_bits_at_k26_sizes() {
    testing::check("all_forms_give_the_same_bits_at_k26_sizes", "k26-tp8", CHECKS[4].1);
}

#[test]
fn all_forms_give_the_same_bits_at_k26_tp1_sizes() {
    testing::check("all_forms_give_the_same_bits_at_k26_tp1_sizes", "k26-tp1", CHECKS[4].1);
}

#[test]
fn all_forms_give_the_same_bits_at_demo_sizes() {
    testing::check("all_forms_give_the_same_bits_at_demo_sizes", "demo-tp1", CHECKS[4].1);
}

#[test]
fn extreme_rows_and_weights_are_right_at_k26_sizes() {
    testing::check("extreme_rows_and_weights_are_right_at_k26_sizes", "k26-tp8", CHECKS[5].1);
}

#[test]
fn extreme_rows_and_weights_are_right_at_demo_sizes() {
    testing::check("extreme_rows_and_weights_are_right_at_demo_sizes", "demo-tp1", CHECKS[5].1);
}
