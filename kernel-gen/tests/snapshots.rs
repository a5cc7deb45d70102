//! What is generated, as committed text. `UPDATE_SNAPSHOTS=1` rewrites it.

use std::path::Path;

use kernel_gen::{ARCHS, Catalog, Profile, emit, kernels_dir, parse_families};

fn matches_snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var("UPDATE_SNAPSHOTS").is_ok_and(|value| value == "1") {
        std::fs::write(&path, text).expect("written");
    }
    let expected = std::fs::read_to_string(&path).expect("a snapshot; make it with UPDATE_SNAPSHOTS=1");
    assert!(expected.lines().eq(text.lines()), "{name} changed; UPDATE_SNAPSHOTS=1 accepts this:\n{text}");
}

#[test]
fn a_unit_of_the_norm() {
    let catalog = Catalog::read(&kernels_dir()).expect("the catalog");
    let units = catalog.units(&Profile::named("k26-tp8").expect("a profile"), &ARCHS[0]).expect("units");
    let (family, unit) = units.iter().find(|(_, unit)| unit.name == "rms_norm__H1536__v2").expect("the unit");
    matches_snapshot("rms_norm.cu", &emit::source(family, unit, "unit.layout.cuh"));
    matches_snapshot("rms_norm.layout.cuh", &emit::layout_header(family, unit));
}

/// The design's own example, with every clause of the language in one launcher.
#[test]
fn a_launcher_with_every_clause() {
    let source = "\
/// Test of every clause.
family! { every_clause, template \"none.cuh\";
  dims    { H = hidden, E = experts / ep, N = expert_width / tp }
  variant n8 { NT = 1 } on sm_90a when M <= 64 && H >= 128
  variant n64 { NT = 8 } prefer M > 16 && M * E < 4096
  const   { TN = 8 * NT }
  require { H % 8 == 0 }
  smem    { w: u8[TN * 64] align 128, bar: u64[2] }
  sass    { \"HMMA.16816.F32.BF16\" }
  args    { x: bf16[M, H], b: bf16[M, H] boxes [TN, NT], off: i32[E + 1], rows: i32[R], q: int4g32<E, 2 * N, H>, scale: f32, y: mut f32[R, H] }
  launch  { grid (ceil_div(M, TN), E), block 32 * 4, min_ctas 2, cluster 2, cooperative, pdl }
}";
    let family = &parse_families("every_clause.rs", source).expect("parsed")[0];
    assert_eq!(family.symbols, ["M", "R"]);
    matches_snapshot("every_clause.rs.txt", &emit::launcher(family));
    let unit =
        &kernel_gen::expand(family, &Profile::named("demo-tp1").expect("a profile")).expect("units")[0];
    matches_snapshot("every_clause.cu.txt", &emit::source(family, unit, "unit.layout.cuh"));
    matches_snapshot("every_clause.layout.cuh", &emit::layout_header(family, unit));
}
