//! Who drafts in a round, and how many nodes are verified.

use std::cmp::{Ordering, Reverse};

use super::account::Account;
use super::calibration::{Calibrated, Calibration, Errors, Verdict};
use super::cost::{CostModel, Stored};
use super::gain::Gain;
use super::growth::Growth;
use super::record::{CLASSES, Record};
use super::search::{Candidate, Load, Market, Way};
use crate::forest::StreamLimits;
use crate::row::DraftRow;
use crate::tree::{MAX_NODES, Tree};

/// Rounds without nodes before anything else is thought of.
const WARM: u32 = 4;
/// How drafting must compare with plain decoding to become the rule, and to remain it, where there is one stream.
const BETTER: f64 = 1.01;
const STILL: f64 = 0.99;
/// What it must be better beyond that where there are many.
const TOGETHER: f64 = 0.04;
/// Rounds between two reviews while plain decoding is the rule.
const REVIEW: u32 = 8;
/// Rounds after which the other way is looked at again: at first, and at most.
const AGAIN: [u32; 2] = [64, 2048];
/// Drafted rounds between two plain ones, so that the comparison stays true: at least and at most, and how many more for an
/// advantage of one.
const COMPARE: [u32; 2] = [8, 48];
const CLOSE: f64 = 200.0;

/// Nodes at which streams are compared.
const USUAL: f64 = 8.0;

/// How drafting must compare with plain decoding to be the rule. Of many streams that draft some end early, and the last ones run
/// alone; a single one loses nothing by that.
fn margin(streams: usize, drafting: bool) -> f64 {
    let alone = if drafting { STILL } else { BETTER };
    alone + TOGETHER * (1.0 - 1.0 / streams as f64)
}

/// Drafted rounds between two plain ones: the fewer the closer drafting is to plain decoding, and the less a plain one costs.
fn distance(advantage: f64) -> u32 {
    let [least, most] = COMPARE.map(f64::from);
    (least + CLOSE * (advantage - 1.0).max(0.0)).min(most) as u32
}

/// What an [`Allocator`] may do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Nodes of each stream, if any: the floor is served first, the cap is never exceeded.
    pub limits: StreamLimits,
    /// Share of the time that may be spent on learning.
    pub exploration: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { limits: StreamLimits { floor: 0, cap: 64 }, exploration: 0.01 }
    }
}

/// What was decided before a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// So many streams draft: the first ones of [`Load::candidates`].
    pub drafters: usize,
    /// Most nodes that may be of use.
    reach: usize,
    kind: Kind,
    /// Tokens a second of the best way known; not positive before one is.
    rate: f64,
    /// What a gained token is worth, if this is a look.
    worth: f64,
    /// Seconds of a round without nodes.
    plain: f64,
    streams: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// The best way known.
    Best,
    /// To learn; with so many rows, where they are given.
    Look(Option<usize>),
}

/// What a round took and gained.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Rows of the verify pass.
    pub rows: usize,
    /// Streams that drafted, those with a budget of their own included.
    pub drafting: usize,
    /// Committed tokens of a stream, the mean over all.
    pub context: usize,
    /// Committed tokens that the drafter read before it drafted.
    pub read_tokens: usize,
    /// Seconds of reading them.
    pub read: f64,
    /// Seconds of drafting, building and choosing.
    pub draft: f64,
    /// Whether a draft was at work while something else was waited for: `draft` is less than it costs, and nothing is learnt of it.
    pub overlapped: bool,
    /// Seconds of everything after.
    pub verify: f64,
    /// Draft tokens that were expected to be accepted: Φ of the nodes that the allocator chose.
    pub promised: f64,
    /// Draft tokens accepted of these nodes.
    pub accepted: f64,
}

impl Outcome {
    /// Seconds of the whole round.
    pub fn seconds(&self) -> f64 {
        self.read + self.draft + self.verify
    }
}

/// How many rounds were spent on what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds without nodes because that was best.
    pub plain: u64,
    /// Rounds that drafted because that was best.
    pub drafted: u64,
    /// Rounds that were spent to learn.
    pub looks: u64,
}

/// What was learnt from streams of one kind.
#[derive(Debug, Clone, Default)]
struct Class {
    gain: Gain,
    calibration: Calibration,
}

/// Chooses budgets from what rounds of this process took and gained.
///
/// ```
/// use kd_ddtree::budget::{Allocator, Candidate, Load, Options, Outcome, Record};
///
/// let mut allocator = Allocator::new(Options::default());
/// let stream = Candidate { id: 0, record: Record::new(0.0), unread: 3, left: 100 };
/// let load = Load { streams: 1, rows: 1, drafting: 0, context: 40, depths: 7, candidates: &[stream] };
/// let plan = allocator.plan(&load);
/// assert_eq!(plan.drafters, 0, "what plain decoding takes is not known yet");
/// allocator.observe(&plan, &Outcome { rows: 1, context: 40, verify: 0.01, ..Outcome::default() });
/// ```
#[derive(Debug, Clone)]
pub struct Allocator {
    options: Options,
    costs: CostModel,
    classes: [Class; CLASSES],
    account: Account,
    counts: Counts,
    /// Whether drafting is the rule.
    drafting: bool,
    /// Rounds since the other way was last seen, and how many it may be.
    since: u32,
    again: u32,
    /// Rounds until the next review, and the streams for which the last one holds, as [`streams_of`] counts them.
    rest: u32,
    reviewed: [usize; 3],
    rounds: u32,
}

/// What a review depends on: all streams, those that may draft, and those of them that never did.
fn streams_of(streams: usize, candidates: &[Candidate]) -> [usize; 3] {
    let fresh = candidates.iter().filter(|candidate| candidate.record.drafts() == 0).count();
    [streams, candidates.len(), fresh]
}

/// Orders streams by what their drafts may be worth.
#[derive(PartialEq)]
struct Worth(f64);

impl Eq for Worth {}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worth {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Allocator {
    /// An allocator that knows nothing yet.
    /// A cap above what a tree holds, or a floor above the cap, counts as that.
    pub fn new(options: Options) -> Allocator {
        let StreamLimits { floor, cap } = options.limits;
        let cap = cap.min(MAX_NODES);
        let options = Options { limits: StreamLimits { floor: floor.min(cap), cap }, ..options };
        Allocator {
            options,
            costs: CostModel::default(),
            classes: Default::default(),
            account: Account::new(options.exploration),
            counts: Counts::default(),
            drafting: false,
            since: 0,
            again: AGAIN[0],
            rest: 0,
            reviewed: [0; 3],
            rounds: 0,
        }
    }

    /// Starts from costs that were measured before.
    pub fn seed(&mut self, stored: &Stored) {
        self.costs = CostModel::seeded(stored);
    }

    /// What this allocator may do.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What rounds take.
    pub fn costs(&self) -> &CostModel {
        &self.costs
    }

    /// How far scores were off; `None` while nothing was accepted.
    pub fn errors(&self) -> Option<Errors> {
        Errors::of(self.classes.iter().map(|class| &class.calibration))
    }

    /// Rounds so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Seconds that learning has cost so far.
    pub fn spent(&self) -> f64 {
        self.account.spent()
    }

    /// Puts those of a round of `streams` streams first that are to draft first: whose drafts may be worth most, and of equals
    /// those with least to read.
    pub fn rank(&self, streams: usize, candidates: &mut [Candidate]) {
        // A round without drafts takes a third of a millisecond on a GPU: nothing is put in order that nobody asks for.
        if self.rests(streams_of(streams, candidates)) {
            return;
        }
        let usual = self.classes.each_ref().map(|class| class.gain.expected(USUAL).unwrap_or(1.0));
        let worth = |candidate: &Candidate| {
            let class = candidate.record.class();
            candidate.record.hope(self.classes[class].gain.spread()) * usual[class]
        };
        candidates.sort_by_cached_key(|candidate| (Reverse(Worth(worth(candidate))), candidate.unread));
    }

    /// Decides who drafts.
    pub fn plan(&mut self, load: &Load<'_>) -> Plan {
        let streams = load.streams;
        let idle =
            Plan { drafters: 0, reach: 0, kind: Kind::Best, rate: 0.0, worth: 1.0, plain: 0.0, streams };
        if self.rounds < WARM || load.candidates.is_empty() {
            return idle;
        }
        let reviewed = streams_of(streams, load.candidates);
        if self.rests(reviewed) {
            self.rest -= 1;
            return idle;
        }
        let market = self.market(*load);
        // Nothing is compared with a guess: rounds of a new size or context are plain until they are measured.
        let Some(plain) = market.plain_seconds().filter(|_| market.is_size_measured(load.rows)) else {
            return idle;
        };
        let plain_rate = streams as f64 / plain;
        let needed = plain_rate * margin(streams, self.drafting);
        let best = market.best().filter(|&(_, rate)| rate > needed);
        let rate = best.map_or(plain_rate, |(_, rate)| rate);
        let draft = |drafters: usize, kind: Kind| {
            let reach = market.reach(drafters, rate);
            Plan { drafters, reach, kind, rate, worth: market.worth(drafters), plain, streams }
        };
        let look = |way: Way| {
            let plan = draft(way.drafters, Kind::Look(Some(way.rows)));
            Plan { reach: plan.reach.max(way.rows - load.rows), ..plan }
        };
        let compare = Plan { kind: Kind::Look(None), rate, plain, ..idle };
        let affords = |regret| self.account.affords(regret);
        let plan = match best {
            Some((_, rate))
                if self.since >= distance(rate / plain_rate) && affords(plain - streams as f64 / rate) =>
            {
                compare
            }
            Some((way, _)) => {
                let promising = market.promising(rate, affords);
                promising.map_or_else(|| draft(way.drafters, Kind::Best), |(way, _)| look(way))
            }
            None => {
                let promising = market.promising(rate, affords);
                // What is in doubt is cleared up before what is only unmeasured, if that costs less.
                let cheaper = |r: f64| promising.is_none_or(|(_, other)| r <= other);
                let probe =
                    market.probe(rate, margin(streams, false)).filter(|&(_, r)| affords(r) && cheaper(r));
                let refresh =
                    || market.refresh(rate).filter(|&(_, r)| self.since >= self.again && affords(r));
                let way = || promising.or_else(refresh).map(|(way, _)| look(way));
                let probe = probe.map(|(drafters, _)| draft(drafters, Kind::Look(None)));
                probe.or_else(way).unwrap_or(Plan { rate, plain, ..idle })
            }
        };
        let drafts = best.is_some();
        if drafts != self.drafting {
            (self.drafting, self.since, self.again) = (drafts, 0, AGAIN[0]);
        }
        self.rest = if plan == (Plan { rate, plain, ..idle }) { REVIEW } else { 0 };
        self.reviewed = reviewed;
        plan
    }

    /// Whether the streams of this plan will draft in the round after it as well, as far as that can be said before it is run.
    pub fn goes_on(&self, plan: &Plan) -> bool {
        let next = distance(plan.rate * plan.plain / plan.streams as f64);
        plan.drafters > 0 && self.drafting && self.since + 1 < next
    }

    /// Draft rows of the stream of this record with the probabilities that they are worth.
    pub fn scorer<'a>(&self, record: &Record, rows: &'a [DraftRow]) -> Calibrated<'a> {
        self.classes[record.class()].calibration.calibrate(rows, record)
    }

    /// Decides how far the trees of this plan's streams grow, and how many nodes are verified.
    pub fn growth(&self, plan: &Plan, load: &Load<'_>) -> Growth {
        let market = self.market(*load);
        let drafters = plan.drafters;
        let fixed = match plan.kind {
            Kind::Look(Some(rows)) => Some(rows - load.rows),
            _ => None,
        };
        let least = drafters * load.depths;
        let floor = drafters * self.options.limits.floor;
        let least = least.max(floor).max(fixed.unwrap_or(0)).min(plan.reach);
        Growth::new(&market, drafters, floor, [least, plan.reach], fixed)
    }

    /// Learns from the tree that was grown of the draft of a stream of this plan, before it is cut to what is verified.
    pub fn drafted(&mut self, plan: &Plan, record: &mut Record, tree: &Tree) {
        self.classes[record.class()].gain.observe(record, tree, plan.drafters.max(1));
    }

    /// Learns from the tokens that the target chose where a stream had drafted.
    pub fn learn(&mut self, record: &mut Record, verdict: Verdict<'_>) {
        self.classes[record.class()].calibration.learn(record, verdict);
    }

    /// Learns from a round of this plan.
    pub fn observe(&mut self, plan: &Plan, outcome: &Outcome) {
        self.rounds = self.rounds.saturating_add(1);
        self.since = self.since.saturating_add(1);
        self.costs.observe_read(outcome.read_tokens, outcome.read);
        if outcome.drafting > 0 && !outcome.overlapped {
            self.costs.observe_draft(outcome.drafting, outcome.context, outcome.draft);
        }
        self.costs.observe_verify(outcome.rows, outcome.context, outcome.verify);
        let plain = if plan.plain > 0.0 { plan.plain } else { outcome.seconds() };
        match plan.kind {
            Kind::Best => self.account.earn(outcome.seconds(), plain),
            Kind::Look(_) => {
                let tokens = plan.streams as f64 + plan.worth * outcome.accepted;
                // A disturbance would have come anyway: what a look costs is what such a round takes.
                let prices = self.costs.prices(outcome.context);
                let verify = prices.verify(outcome.rows).unwrap_or(outcome.verify);
                let draft = prices.draft(outcome.drafting).unwrap_or(outcome.draft);
                let usual = prices.read(outcome.read_tokens) + draft + verify;
                self.account.spend(outcome.seconds().min(usual) - tokens / plan.rate, plain);
            }
        }
        let count = match (plan.kind, plan.drafters) {
            (Kind::Look(_), _) => &mut self.counts.looks,
            (Kind::Best, 0) => &mut self.counts.plain,
            (Kind::Best, _) => &mut self.counts.drafted,
        };
        *count += 1;
        let other = (plan.drafters == 0) == self.drafting;
        if other {
            self.again = if plan.drafters > 0 { (2 * self.again).min(AGAIN[1]) } else { self.again };
            self.since = 0;
        }
    }

    /// Whether the last review still holds for these streams.
    fn rests(&self, streams: [usize; 3]) -> bool {
        self.rest > 0 && self.reviewed == streams
    }

    fn market<'a>(&'a self, load: Load<'a>) -> Market<'a> {
        let gains = self.classes.each_ref().map(|class| &class.gain);
        Market::new(load, &self.costs, gains, self.options.limits, self.drafting)
    }
}
