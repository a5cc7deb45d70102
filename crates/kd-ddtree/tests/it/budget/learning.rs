//! Whatever the limits, the number of streams and the length of answers, drafting is looked at where it pays.

use kd_ddtree::budget::{Allocator, Candidate, Counts, Load, Options, Outcome, Record};
use kd_ddtree::{StreamLimits, Tree};

use super::sim::{Policy, Sim};
use super::{CONCAVE, GOOD, GPU, LINEAR, POOR};

fn limited(floor: usize, cap: usize) -> Policy {
    let limits = StreamLimits { floor, cap };
    Policy::Auto(Box::new(Allocator::new(Options { limits, ..Options::default() })))
}

fn counts(sim: &Sim) -> Counts {
    let Policy::Auto(allocator) = &sim.policy else { unreachable!("the policy is auto") };
    allocator.counts()
}

/// The smallest drafted pass may be more than four times as large as a plain one.
#[test]
fn a_floor_does_not_keep_drafting_from_being_tried() {
    for (floor, streams) in [(4, 1), (8, 1), (8, 2), (16, 4)] {
        let mut sim = Sim::new(CONCAVE, GOOD, limited(floor, 64));
        sim.run(streams, 2000);
        let counts = counts(&sim);
        assert!(counts.drafted > 0, "floor {floor}, {streams} streams: {counts:?}");
        assert!(sim.sizes.iter().all(|&nodes| nodes == 0 || nodes >= floor), "{:?}", sim.sizes);
    }
}

/// One stream's nodes may not reach the next size of passes, while those of several do.
#[test]
fn a_small_cap_does_not_keep_many_streams_from_drafting() {
    for (cap, streams) in [(7, 16), (8, 32), (64, 130), (64, 191)] {
        let mut sim = Sim::new(CONCAVE, GOOD, limited(0, cap));
        sim.run(streams, 500);
        let counts = counts(&sim);
        assert!(counts.looks > 0, "cap {cap}, {streams} streams: {counts:?}");
        // Hundreds of streams gain next to nothing by drafts there.
        let pays = streams <= 32;
        assert!(!pays || counts.drafted > counts.plain, "cap {cap}, {streams} streams: {counts:?}");
        assert!(sim.sizes.iter().all(|&nodes| nodes <= cap), "{:?}", sim.sizes);
    }
}

/// No single answer pays for learning, but the process lives on.
#[test]
fn short_answers_one_after_another_come_to_draft() {
    for tokens in [8, 13] {
        let mut sim = Sim::new(CONCAVE, GOOD, Policy::auto());
        (0..400).for_each(|_| _ = sim.answer(1, tokens, 0.0));
        let counts = counts(&sim);
        assert!(counts.drafted > counts.plain, "answers of {tokens} tokens: {counts:?}");
    }
}

/// Who drafts ahead of a decision seldom does so for nothing, and seldom waits for one.
#[test]
fn most_drafts_are_foretold_and_few_in_vain() {
    for streams in [1, 4] {
        let mut sim = Sim::new(CONCAVE, GOOD, Policy::auto());
        sim.run(streams, 3000);
        let ([drafted, not], counts) = (sim.foretold, counts(&sim));
        assert!(counts.drafted > 1000, "{streams} streams: {counts:?}");
        assert!(50 * not <= drafted, "{streams} streams: {not} of {} were not drafted", drafted + not);
        assert!(10 * drafted >= 8 * counts.drafted, "{streams} streams: {drafted} of {counts:?}");
    }
}

/// Streams are put in order whenever their plan is reviewed, and only then.
#[test]
fn streams_are_in_order_when_they_are_reviewed() {
    // Nothing to choose from: reviews rest.
    let limits = StreamLimits { floor: 0, cap: 0 };
    let mut allocator = Allocator::new(Options { limits, ..Options::default() });
    let (mut old, fresh) = (Record::new(0.0), Record::new(0.0));
    let streams = 2;
    for round in 0..10 {
        let candidates = [(0, 9), (1, 3)].map(|(id, unread)| Candidate { id, record: old, unread, left: 99 });
        let load =
            Load { streams, rows: streams, drafting: 0, context: 40, depths: 7, candidates: &candidates };
        let plan = allocator.plan(&load);
        if round == 0 {
            allocator.drafted(&plan, &mut old, &Tree::empty());
        }
        allocator.observe(&plan, &Outcome { rows: streams, context: 40, verify: 0.01, ..Outcome::default() });
    }
    let ranked = |streams: usize, records: [Record; 2]| {
        let mut candidates = [(0, 9), (1, 3)].map(|(id, unread)| {
            let record = records[id];
            Candidate { id, record, unread, left: 99 }
        });
        allocator.rank(streams, &mut candidates);
        candidates.map(|candidate| candidate.id)
    };
    assert_eq!(ranked(streams, [old, old]), [0, 1], "the same streams are not reviewed yet");
    assert_eq!(ranked(streams, [old, fresh]), [1, 0], "one ended and another one was admitted");
    assert_eq!(ranked(streams + 1, [old, old]), [1, 0], "one came that has a budget of its own");
}

/// What drafts of one kind are worth says nothing of another: the first streams of a kind are glanced at, whatever came before.
#[test]
fn the_first_streams_of_a_kind_are_glanced_at() {
    let mut sim = Sim::new(GPU, GOOD, Policy::auto());
    (0..4).for_each(|_| _ = sim.answer(1, 128, 0.0));
    let before = counts(&sim);
    sim.answer(1, 128, 1.0);
    let after = counts(&sim);
    let [drafted, plain] = [after.drafted - before.drafted, after.plain - before.plain];
    assert!(drafted > plain, "{drafted} rounds of the first answer drafted, {plain} did not");
}

/// One stream of a kind of which no draft was seen does not keep the others from drafting, and drafts with them.
#[test]
fn streams_of_a_new_kind_draft_with_others() {
    let mut sim = Sim::new(GPU, GOOD, Policy::auto());
    sim.run(2, 300);
    let Policy::Auto(mut allocator) = sim.policy else { unreachable!("the policy is auto") };
    let candidates = [(0, 0.0), (1, 1.0)].map(|(id, temperature)| Candidate {
        id,
        record: Record::new(temperature),
        unread: 0,
        left: usize::MAX / 32,
    });
    let load = Load { streams: 2, rows: 2, drafting: 0, context: 100, depths: 7, candidates: &candidates };
    assert_eq!(allocator.plan(&load).drafters, 2);
}

/// A round that need not be planned is as it would have been.
#[test]
fn rounds_that_are_not_planned_are_the_same() {
    for (machine, temperature) in [(GPU, 1.0), (GPU, 0.0), (LINEAR, 0.0)] {
        let run = |rests: bool| {
            let mut sim = Sim::new(machine, POOR, Policy::auto());
            sim.rests = rests;
            let rates: Vec<f64> = [16, 4, 1, 16].map(|streams| sim.answer(streams, 128, temperature)).into();
            (rates, counts(&sim), sim.rested)
        };
        let ((rates, all, none), (others, same, rested)) = (run(false), run(true));
        assert_eq!((rates, all), (others, same));
        assert!(none == 0 && rested > 100, "{rested} rounds were not planned");
    }
}

/// One of several streams that is looked at stays in step with the others.
#[test]
fn a_look_at_some_streams_verifies_nothing() {
    for streams in [4, 16] {
        let mut sim = Sim::new(LINEAR, GOOD, Policy::auto());
        (0..4).for_each(|_| _ = sim.answer(streams, 128, 0.0));
        let counts = counts(&sim);
        assert!(counts.looks > 0 && counts.drafted == 0, "{streams} streams: {counts:?}");
        assert_eq!(sim.sizes.last(), Some(&0), "{streams} streams");
    }
}
