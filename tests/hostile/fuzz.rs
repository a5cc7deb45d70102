//! The fuzz targets, bounded.

use kd_tests::fuzz::targets;

/// Executions of each target for each unit of its weight.
const EXECUTIONS: u64 = 100;

#[test]
fn no_bytes_make_a_reader_panic() {
    let seed = 5;
    for target in targets() {
        let outcome = target.fuzz(EXECUTIONS * target.weight, seed);
        let input = outcome.panics.first().map(|input| String::from_utf8_lossy(input).into_owned());
        assert_eq!(input, None, "{} panics; more of it: cargo run -p kd-tests --example fuzz", target.name);
    }
}
