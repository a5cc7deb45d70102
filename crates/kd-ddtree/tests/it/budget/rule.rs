//! When drafting begins, how long it lasts, and when it is looked at again.

use kd_ddtree::budget::Counts;

use super::sim::{Drafts, Policy, Sim};
use super::{GOOD, GPU};

const STREAMS: usize = 16;
const TOKENS: usize = 128;
/// Good and bad from the first token to the last, whatever the rows promise.
const BAD: Drafts = Drafts { best: (0.3, 0.5), truth: (2.0, 3.0) };
/// Drafting pays there by an eighth.
const FAIR: Drafts = Drafts { best: (0.3, 0.62), truth: (1.0, 1.0) };

fn counts(sim: &Sim) -> Counts {
    let Policy::Auto(allocator) = &sim.policy else { unreachable!("the policy is auto") };
    allocator.counts()
}

fn begin(policy: Policy, seed: u64) -> Sim {
    Sim::seeded(GPU, GOOD, policy, seed)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Tokens a second of plain decoding by so many streams.
fn plain(streams: usize) -> f64 {
    begin(Policy::Fixed(0), 1).answer(streams, TOKENS, 0.0)
}

/// All streams wait for the last one, and that one gains nothing.
#[test]
fn what_the_last_stream_does_not_gain_is_not_worth_drafting() {
    for seed in 0..5 {
        let mut sim = begin(Policy::auto(), seed);
        sim.first = Some(BAD);
        let rates = (0..15).map(|_| sim.answer(STREAMS, TOKENS, 1.0) / plain(STREAMS));
        let rate = median(rates.collect());
        assert!(rate >= 0.97, "chances {seed}: {rate} of plain decoding");
    }
}

/// The last stream of an answer drafts alone, where that pays; sixteen new ones do not go on with it.
#[test]
fn the_rule_for_a_last_stream_is_none_for_new_ones() {
    for seed in 0..5 {
        let mut sim = begin(Policy::auto(), seed);
        // One alone is drafted well, sixteen are not.
        let mut rates = Vec::new();
        for _ in 0..15 {
            sim.drafts = GOOD;
            sim.answer(1, TOKENS, 1.0);
            sim.drafts = BAD;
            rates.push(sim.answer(STREAMS, TOKENS, 1.0) / plain(STREAMS));
        }
        let rate = median(rates);
        assert!(rate >= 0.97, "chances {seed}: {rate} of plain decoding");
    }
}

/// Where drafting pays on average, single drafts that do not are no reason to end it.
#[test]
fn a_few_bad_drafts_do_not_end_drafting() {
    for seed in 0..5 {
        let mut sim = begin(Policy::auto(), seed);
        (0..3).for_each(|_| _ = sim.answer(1, TOKENS, 0.0));
        sim.drafts = FAIR;
        let before = counts(&sim);
        (0..10).for_each(|_| _ = sim.answer(1, TOKENS, 0.0));
        let now = counts(&sim);
        let (plain, drafted) = (now.plain - before.plain, now.drafted - before.drafted);
        assert!(plain * 4 < drafted, "chances {seed}: {plain} plain rounds, {drafted} with drafts");
    }
}
