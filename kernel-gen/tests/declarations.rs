//! Faults in a declaration are refused with their place; good ones expand for any profile.

use kernel_gen::{ARCHS, Arch, Catalog, Family, Profile, emit, expand, kernels_dir, parse_families};
use proptest::prelude::*;

/// A whole declaration, with each part open to a fault.
const GOOD: &str = "\
/// A test.
family! { probe, template \"norm/rms_norm.cuh\";
  dims    { H = hidden }
  variant a { T = 64 }
  const   { N = H / T }
  require { H % 8 == 0 }
  smem    { first: u8[N + 1], second: f32[T] align 128 }
  args    { x: bf16[M, H], y: mut bf16[M, H] }
  launch  { grid M, block 32 * 4 }
}
";

fn fault(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    parse_families("probe.rs", &GOOD.replacen(from, to, 1)).expect_err("refused").to_string()
}

#[test]
fn faults_point_into_the_declaration() {
    let cases = [
        ("bf16[M, H], y", "bf32[M, H], y", "probe.rs:8:16: unknown element type `bf32`"),
        ("N = H / T", "N = K / T", "probe.rs:5:17: `K` is unknown in const; known here: H, T"),
        ("H = hidden", "H = hiden", "probe.rs:3:17: `hiden` is unknown in dims"),
        ("H % 8 == 0", "H % 8 == M", "probe.rs:6:22: `M` is unknown in require"),
        ("H % 8 == 0", "H % 8", "probe.rs:6:13: expected a comparison"),
        ("H / T", "H << T", "probe.rs:5:"),
        ("H / T", "H / 1.5", "probe.rs:5:21: expected an integer"),
        ("H / T", "max(H)", "max() takes two arguments, not 1"),
        ("block 32 * 4", "blok 32 * 4", "probe.rs:9:21: expected one of: grid, block"),
        ("grid M, ", "", "probe.rs:9:3: `launch` needs a grid"),
        ("grid M", "grid (M, 1, 1, 1)", "at most three axes"),
        (
            "variant a { T = 64 }",
            "variant a { T = 64 } on sm_91",
            "probe.rs:4:27: unknown architecture `sm_91`; known: sm_120, sm_90a",
        ),
        ("variant a { T = 64 }", "", "probe.rs:2:11: `probe` needs at least one `variant`"),
        ("variant a { T = 64 }", "variant a { T = 64 } variant b { U = 1 }", "variant `b` sets"),
        ("variant a { T = 64 }", "variant a { T = 64 } variant a { T = 1 }", "variant `a` is defined twice"),
        (
            "variant a { T = 64 }",
            "variant a { T = 64 } variant b { T = 1 } prefer M <= 1",
            "probe.rs:4:32: variant `b` is never preferred: `a` in front of it always is",
        ),
        ("y: mut", "x: mut", "`x` is defined twice"),
        ("N = H / T", "n = H / T", "constant `n` must be upper case"),
        ("y: mut bf16[M, H]", "y: mut f32", "cannot be `mut`"),
        ("y: mut bf16[M, H]", "w: mut int4g32<M, H>, y: mut bf16[M, H]", "a composite is read only"),
        ("y: mut bf16[M, H]", "w: int4g32[M, H], y: mut bf16[M, H]", "probe.rs:8:38: expected `<`"),
        ("y: mut bf16[M, H]", "y: mut bf16[M, H] boxes [T, T]", "only a bf16 matrix is read in boxes"),
        (
            "y: mut bf16[M, H]",
            "w: f32[M, H] boxes [T, T], y: mut bf16[M, H]",
            "only a bf16 matrix is read in boxes",
        ),
        ("y: mut bf16[M, H]", "w: bf16[M, H] boxes [T], y: mut bf16[M, H]", "expected two constants"),
        ("y: mut bf16[M, H]", "w: bf16[M, H] boxes [T, M], y: mut bf16[M, H]", "`M` is unknown in boxes"),
        ("second: f32[T]", "second: int4g32[T]", "unknown element type `int4g32`"),
        (
            "launch ",
            "sass { \"hmma 16816\" } launch ",
            "expected an instruction as the disassembler spells it",
        ),
        ("/// A test.\n", "", "needs a doc comment"),
        ("smem ", "shared ", "expected one of: dims, const"),
        ("family!", "kernel!", "expected `family!`"),
    ];
    for (from, to, expected) in cases {
        let message = fault(from, to);
        assert!(message.contains(expected), "{from} -> {to}: {message}");
    }
}

fn probe(from: &str, to: &str, change: impl Fn(&mut Profile)) -> Result<Vec<kernel_gen::Unit>, String> {
    assert!(GOOD.contains(from), "{from}");
    let family = &parse_families("probe.rs", &GOOD.replacen(from, to, 1)).map_err(|e| e.to_string())?[0];
    let mut profile = Profile::named("demo-tp1").expect("a profile");
    change(&mut profile);
    let units = expand(family, &profile).map_err(|error| error.to_string())?;
    for unit in &units {
        unit.fits(family, &ARCHS[0]).map_err(|error| error.to_string())?;
    }
    Ok(units)
}

#[test]
fn a_variant_of_one_architecture_is_built_for_it_alone() {
    let two = "variant b { T = 128 } on sm_90a when M > 1 variant a { T = 64 }";
    let names = |arch: &Arch| -> Vec<String> {
        let units = probe("variant a { T = 64 }", two, |_| ()).expect("units");
        units.into_iter().filter(|unit| unit.runs_on(arch)).map(|unit| unit.variant).collect()
    };
    assert_eq!(names(&Arch::named("sm_90a").expect("known")), ["b", "a"]);
    assert_eq!(names(&Arch::named("sm_120").expect("known")), ["a"]);
}

#[test]
fn an_unmet_requirement_names_profile_family_and_values() {
    let message = probe("A test", "A test", |profile| profile.hidden = 260).expect_err("unmet");
    let expected =
        "probe.rs:6:13: probe for profile demo-tp1: requires H % 8 == 0, but the sides are 4 and 0";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn oversized_shared_memory_is_refused_with_formula_and_limit() {
    let message = probe("f32[T]", "f32[T * 400]", |_| ()).expect_err("too large");
    assert!(
        message.starts_with(
            "probe.rs:7:13: probe__H256__a: shared memory 102528 B is over the 101376 B of sm_120"
        )
    );
    assert!(message.contains("second: T * 400 * 4 = 102400 B at 128"), "{message}");
    // What fits one CTA may still not fit the residency that a cooperative launch asks for.
    let message = probe("block 32 * 4", "block 32 * 4, min_ctas 300", |_| ()).expect_err("out of range");
    assert!(message.contains("min_ctas 300"), "{message}");
    let source = GOOD
        .replace("f32[T]", "f32[T * 300]")
        .replace("block 32 * 4", "block 32 * 4, min_ctas 2, cooperative");
    let family = &parse_families("probe.rs", &source).expect("parsed")[0];
    let unit = &expand(family, &Profile::named("demo-tp1").expect("a profile")).expect("units")[0];
    assert!(
        unit.fits(family, &ARCHS[0]).expect_err("too large").to_string().contains("2 CTAs of 76928 + 1024 B")
    );
    assert!(unit.fits(family, &Arch::named("sm_90a").expect("an architecture")).is_ok());
}

#[test]
fn more_threads_than_an_sm_holds_are_refused_where_they_are_declared() {
    let family = |min_ctas: u32| {
        let source = GOOD.replace("block 32 * 4", &format!("block 32 * 16, min_ctas {min_ctas}"));
        parse_families("probe.rs", &source).expect("parsed").remove(0)
    };
    let fits = |family: &Family, name: &str| {
        let unit = &expand(family, &Profile::named("demo-tp1").expect("a profile")).expect("units")[0];
        unit.fits(family, &Arch::named(name).expect("an architecture")).map_err(|error| error.to_string())
    };
    assert_eq!(fits(&family(3), "sm_120"), Ok(()));
    assert_eq!(fits(&family(4), "sm_90a"), Ok(()));
    let message = fits(&family(4), "sm_120").expect_err("too many");
    assert!(
        message.contains("min_ctas 4 of 512 threads are over the 1536 threads of an SM of sm_120"),
        "{message}"
    );
}

#[test]
fn sizes_without_meaning_are_refused() {
    for (from, to) in [
        ("f32[T]", "f32[T - 64]"),
        ("align 128", "align 96"),
        ("align 128", "align 2048"),
        ("block 32 * 4", "block 32 * 64"),
        ("H = hidden", "H = hidden / 3"),
        ("N = H / T", "N = H / (T - 64)"),
        ("variant a { T = 64 }", "variant a { T = 64 } when H > 1000000"),
    ] {
        let message = probe(from, to, |_| ()).expect_err(to);
        assert!(message.contains("probe for profile demo-tp1"), "{to}: {message}");
    }
}

#[test]
fn members_are_laid_out_in_order_without_overlap() {
    let units = probe("A test", "A test", |_| ()).expect("units");
    let places: Vec<_> =
        units[0].layout.members.iter().map(|m| (m.name.as_str(), m.offset, m.bytes, m.align)).collect();
    assert_eq!(places, [("first", 0, 5, 16), ("second", 128, 256, 128)]);
    assert_eq!(units[0].layout.bytes, 384);
}

#[test]
fn units_are_keyed_by_resolved_constants() {
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    let norm = catalog.family("rms_norm").expect("rms_norm");
    let names = |profile: &str| {
        let units = expand(norm, &Profile::named(profile).expect("a profile")).expect("units");
        units.into_iter().map(|unit| unit.name).collect::<Vec<_>>()
    };
    // The norms are not split over ranks: all K2.6 profiles share them. In the demo two of the three widths are equal.
    assert_eq!(names("k26-tp1"), names("k26-ep8"));
    assert_eq!(names("demo-tp1"), ["rms_norm__H256__v2", "rms_norm__H128__v2"]);
}

#[test]
fn only_an_optional_family_may_be_without_a_variant() {
    let units = |source: &str| {
        let family = &parse_families("probe.rs", source).expect("parsed")[0];
        expand(family, &Profile::named("k26-tp8").expect("a profile"))
    };
    let none = GOOD.replace("T = 64 }", "T = 64 } when H < 64");
    let message = units(&none).expect_err("no variant").to_string();
    assert!(message.contains("no variant can run H = 7168"), "{message}");
    let optional = |source: &str| source.replace("block 32 * 4", "block 32 * 4, optional");
    assert_eq!(units(&optional(&none)).expect("none").len(), 0);
    assert_eq!(units(&optional(GOOD)).expect("one").len(), 1);
}

#[test]
fn every_profile_field_resolves() {
    for field in Profile::FIELDS {
        assert!(Profile::named("k26-tp8").expect("a profile").field(field).is_some(), "{field}");
    }
    assert_eq!(Profile::named("golden-realdims-tp1").expect("a profile").field("drafter_heads"), None);
}

#[test]
fn the_contract_follows_the_declaration_but_not_its_layout_on_the_page() {
    let contract = |source: &str| emit::contract(&parse_families("probe.rs", source).expect("parsed")[0]);
    assert_eq!(contract(GOOD), contract(&GOOD.replace("  ", "    ").replace("A test", "Another")));
    assert_ne!(contract(GOOD), contract(&GOOD.replace("x: bf16", "x: f32")));
}

/// Where queries are too narrow for its sums, or weights too large for shared memory, the optional launch for few rows is left out.
#[test]
fn a_shape_that_head_queries_cannot_have_does_without_it() {
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    let has = |change: fn(&mut Profile)| {
        let mut profile = Profile::named("k26-tp8").expect("a profile");
        change(&mut profile);
        let units = catalog.units(&profile, &ARCHS[0]).expect("units");
        units.iter().any(|(family, _)| family.name == "head_queries")
    };
    assert!(has(|_| ()));
    assert!(!has(|profile| profile.q_lora_rank = 32));
    assert!(!has(|profile| profile.nope_dim = 192));
}

/// Leaves are whole: their lengths double up to the longest, and regions of one length hold whole leaves.
#[test]
fn heads_that_would_cut_leaves_are_refused() {
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    // `head_values` is for few heads, of which none cuts a leaf.
    for name in ["tree_mla", "tree_mla_fp8", "tree_mla_merge"] {
        let family = catalog.family(name).expect("a family");
        for (heads, unmet) in [(18, "SHORT % (2 * BASE) == 0"), (96, "2048 % BASE == 0")] {
            let mut profile = Profile::named("k26-tp1").expect("a profile");
            profile.heads = heads;
            let message = expand(family, &profile).expect_err("leaves that are cut").to_string();
            assert!(message.contains(&format!("requires {unmet}")), "{name} of {heads} heads: {message}");
        }
    }
}

proptest! {
    /// Any model shape that the requirements admit expands and fits both architectures, and emits the same text twice.
    #[test]
    fn a_profile_invented_at_random_expands(hidden in 1..=56i64, q in 1..=128i64, kv in 1..=9i64, ranks in 0..=3u32) {
        let mut profile = Profile::named("k26-tp1").expect("a profile");
        profile.name = "invented".to_owned();
        (profile.hidden, profile.q_lora_rank, profile.kv_lora_rank, profile.tp) = (512 * hidden, 32 * q, 64 * kv, 1 << ranks);
        let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
        for arch in &ARCHS {
            let result = catalog.units(&profile, arch);
            // 32 warps of 2 x 8 elements a thread are the widest row of the norms' preferred variant.
            if 512 * hidden > 16_384 {
                prop_assert!(result.expect_err("too wide").to_string().contains("WARPS <= 32"));
                continue;
            }
            // Attention takes latents of 128, 256 and 512.
            if ![2, 4, 8].contains(&kv) {
                let message = result.expect_err("no such latent").to_string();
                prop_assert!(message.contains("requires C % 128") || message.contains("requires 512 % C"), "{}", message);
                continue;
            }
            for (family, unit) in result.expect("units") {
                let source = emit::source(family, &unit, "unit.layout.cuh");
                prop_assert_eq!(&source, &emit::source(family, &unit, "unit.layout.cuh"));
                prop_assert!(source.contains(&unit.name) && unit.block <= 1024);
            }
        }
    }
}
