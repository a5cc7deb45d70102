//! Bundles that are damaged, foreign or missing are typed errors that say what to do.

use std::path::Path;

use kd_kernels::{Bundle, KernelError, Search};

const HASH_OF_IMAGE: &str = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d";

fn header(payload: u64, offset: u64, sha256: &str) -> String {
    format!(
        r#"{{"profile":"demo-tp1","arch":"sm_90a","kind":"cubin","toolchain":"t","payload":{payload},"units":[{{
        "family":"f","unit":"f__H8__a","variant":"a","contract":"c","source":"s","dims":{{"H":8}},"constants":{{}},
        "block":32,"min_ctas":1,"cluster":1,"smem":0,"registers":1,"spill_bytes":0,"offset":{offset},"bytes":5,
        "sha256":"{sha256}"}}]}}"#
    )
}

fn bundle(header: &str) -> Vec<u8> {
    let length = u32::try_from(header.len()).expect("a short header");
    let payload = zstd::encode_all(&b"image"[..], 1).expect("compressed");
    [b"KDBUNDLE", &1u32.to_le_bytes()[..], &length.to_le_bytes(), header.as_bytes(), &payload].concat()
}

fn parse(bytes: &[u8]) -> Result<Bundle, KernelError> {
    Bundle::parse(Path::new("test.kdb"), bytes)
}

#[test]
fn a_whole_bundle_gives_its_image() {
    let bundle = parse(&bundle(&header(5, 0, HASH_OF_IMAGE))).expect("parsed");
    assert_eq!(bundle.image(&bundle.header().units[0]), Ok(&b"image"[..]));
}

#[test]
fn every_truncation_is_an_error() {
    let whole = bundle(&header(5, 0, HASH_OF_IMAGE));
    for length in 0..whole.len() {
        assert!(parse(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
}

#[test]
fn faults_are_named() {
    let good = bundle(&header(5, 0, HASH_OF_IMAGE));
    let with = |at: usize, bytes: &[u8]| [&good[..at], bytes, &good[at + bytes.len()..]].concat();
    let cases = [
        (with(0, b"X"), "not a kernel bundle"),
        (with(8, &9u32.to_le_bytes()), "format 9, but this program reads 1"),
        (with(12, &u32::MAX.to_le_bytes()), "cut short"),
        (bundle("{}"), "header: missing field"),
        (bundle(&header(4, 0, "")), "not the 4 bytes that the header promises"),
        (bundle(&header(1 << 40, 0, "")), "the most is"),
        (bundle(&header(5, 1, "")), "f__H8__a ends beyond the payload"),
        (bundle(&header(5, u64::MAX, "")), "f__H8__a ends beyond the payload"),
    ];
    for (bytes, expected) in cases {
        let message = parse(&bytes).expect_err(expected).to_string();
        assert!(message.contains(expected) && message.starts_with("kernel bundle test.kdb"), "{message}");
    }
}

#[test]
fn an_altered_image_is_refused() {
    let bundle = parse(&bundle(&header(5, 0, &HASH_OF_IMAGE.replace('6', "7")))).expect("parsed");
    let message = bundle.image(&bundle.header().units[0]).expect_err("altered").to_string();
    assert!(message.contains("does not match its hash"), "{message}");
}

#[test]
fn a_missing_bundle_says_where_it_was_looked_for_and_what_to_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let search = Search::only(folder.path());
    let message = search.find("demo-tp1", "sm_90a").expect_err("missing").to_string();
    assert!(message.contains(&folder.path().display().to_string()), "{message}");
    assert!(
        message.ends_with("run `cargo xtask build-kernels --profile demo-tp1 --arch sm_90a`"),
        "{message}"
    );
    let file = folder.path().join("demo-tp1-sm_90a.kdb");
    std::fs::write(&file, "").expect("written");
    assert_eq!(search.find("demo-tp1", "sm_90a"), Ok(file));
}
