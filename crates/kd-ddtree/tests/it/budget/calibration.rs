//! Timing rounds of every size before anything is served.

use std::collections::BTreeSet;

use kd_ddtree::budget::{Allocator, Load, Options, Outcome};

use super::sim::{DEPTHS, Policy, Sim};
use super::{CONCAVE, GOOD, GPU, LINEAR, TRAP};

/// What another process measured spares the calibration, and serves as well.
#[test]
fn a_stored_calibration_spares_the_rounds_of_one() {
    let mut sim = Sim::new(TRAP, GOOD, Policy::auto());
    sim.run(4, 2000);
    let Policy::Auto(learnt) = &sim.policy else { unreachable!("the policy is auto") };
    let mut seeded = Allocator::new(Options::default());
    assert!(!seeded.is_calibrated() && seeded.untimed(4, DEPTHS, 64).is_some());
    seeded.seed(&learnt.costs().store());
    assert!(seeded.is_calibrated());
    for streams in [1, 4, 16] {
        assert_eq!(seeded.untimed(streams, DEPTHS, 64), None, "{streams} streams");
    }
    let warm = Sim::new(TRAP, GOOD, Policy::Auto(Box::new(seeded))).run(4, 60);
    let best = Sim::new(TRAP, GOOD, Policy::Fixed(64)).run(4, 60);
    assert!(warm >= 0.9 * best, "{warm} tokens/s with a calibration, {best} is best");
}

/// A calibration ends, reaches all sizes that may pay, and times hardly one that never does.
#[test]
fn a_calibration_times_what_may_pay() {
    for (what, machine) in [("linear", LINEAR), ("concave", CONCAVE), ("trap", TRAP), ("gpu", GPU)] {
        for streams in [1, 3, 16] {
            let mut allocator = Allocator::new(Options::default());
            let draft = (machine.draft)(streams as f64);
            let seconds = |nodes: usize| (machine.verify)((streams * (1 + nodes)) as f64);
            let (mut timed, mut rounds) = (BTreeSet::new(), 0);
            while let Some(nodes) = allocator.untimed(streams, DEPTHS, 64) {
                let rows = streams * (1 + nodes);
                let load = Load { streams, rows, drafting: 0, context: 30, depths: DEPTHS, candidates: &[] };
                let plan = allocator.plan(&load);
                let (drafting, draft) = if nodes == 0 { (0, 0.0) } else { (streams, draft) };
                let verify = seconds(nodes);
                let outcome = Outcome { rows, drafting, context: 30, draft, verify, ..Outcome::default() };
                allocator.observe(&plan, &outcome);
                timed.insert(nodes);
                rounds += 1;
                assert!(rounds < 100, "{what}, {streams} streams: no end");
            }
            let most = (1 + DEPTHS) as f64 * seconds(0) - draft;
            let over = timed.iter().filter(|&&nodes| nodes > 0 && seconds(nodes) > most).count();
            assert!(over <= 1, "{what}, {streams} streams: {timed:?} were timed");
            // The largest tree that may pay is no more than half as large again as one that was timed, and a row.
            let pays = (0..=64).filter(|&nodes| seconds(nodes) <= most).max().expect("plain decoding");
            let largest = timed.last().copied().expect("plain decoding");
            assert!(
                3 * (largest + 1) >= 2 * pays,
                "{what}, {streams} streams: {timed:?}, {pays} nodes may pay"
            );
        }
    }
}

/// The first draft of a process may meet cold memory, or weights that are only then put in order: the calibration goes on.
#[test]
fn a_first_draft_that_takes_long_does_not_end_a_calibration() {
    let mut allocator = Allocator::new(Options::default());
    let (mut drafts, mut largest) = (0, 0);
    while let Some(nodes) = allocator.untimed(1, DEPTHS, 64) {
        let load =
            Load { streams: 1, rows: 1 + nodes, drafting: 0, context: 30, depths: DEPTHS, candidates: &[] };
        let plan = allocator.plan(&load);
        let drafting = usize::from(nodes > 0);
        drafts += drafting;
        let draft = drafting as f64 * if drafts == 1 { 50.0 } else { 1.0 } * (GPU.draft)(1.0);
        let verify = (GPU.verify)((1 + nodes) as f64);
        let outcome = Outcome { rows: 1 + nodes, drafting, context: 30, draft, verify, ..Outcome::default() };
        allocator.observe(&plan, &outcome);
        largest = nodes;
    }
    assert!(largest >= 32, "trees of up to {largest} nodes were timed");
    let draft = allocator.costs().prices(30, 1).draft(1).expect("timed");
    assert!(draft < 2.0 * (GPU.draft)(1.0), "{draft} s a draft");
}
