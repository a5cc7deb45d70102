//! Who drafts in a round, and how many nodes are verified.

use std::cmp::Reverse;

use super::account::Account;
use super::buckets::{SIZES, edge};
use super::calibration::{Calibrated, Calibration, Errors, Verdict};
use super::cost::{CostModel, Stored};
use super::gain::Gain;
use super::growth::Growth;
use super::order::{Worth, apart, streams_of};
use super::record::{CLASSES, Record};
use super::round::{Counts, Kind, Outcome, Plan};
use super::rule::Rule;
use super::search::{Candidate, Load, Market, Way};
use crate::forest::StreamLimits;
use crate::row::DraftRow;
use crate::tree::{MAX_NODES, Tree};

/// Rounds without nodes before anything else is thought of.
const WARM: u64 = 4;
/// Rounds between two reviews while plain decoding is the rule: at first, and at most.
const REVIEW: [u32; 2] = [8, 64];
/// What drafts may be worth at the very best, in units of a new stream's.
const HOPE: f64 = 2.5;
/// How much better drafts are taken to be where they are looked at.
const NEARLY: f64 = 1.5;
/// Rounds after which drafts are glanced at whatever they were like.
const SELDOM: u32 = 256;
/// Times that a calibration takes each size.
const TIMED: u32 = 3;
/// Rounds for which a plan holds while drafting is better than plain decoding by more than a share.
const HOLD: (u32, f64) = (2, 1.25);
/// Drafted rounds between two plain ones, so that the comparison stays true: at least and at most, and how many more for an
/// advantage of one.
const COMPARE: [u32; 2] = [8, 48];
const CLOSE: f64 = 200.0;

/// Nodes of each stream that are grown in any case, to learn what drafts are worth: a GPU waits for this, too.
const GROWN: usize = 3;
/// What a round may have taken ÷ what it usually takes.
const MOST: f64 = 1.1;

/// Tokens of context at which a calibration is taken.
const CALIBRATED: usize = 0;

/// Nodes at which streams are compared.
const USUAL: f64 = 8.0;

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
    rule: Rule,
    /// What a draft was worth at which was just glanced, and whether that was the first glance at these streams.
    glanced: Option<f64>,
    first: bool,
    /// What the last review decided, for how many rounds it holds if streams remain as they were, as [`streams_of`] counts them,
    /// and for how long the next one holds that finds nothing new.
    held: Option<Plan>,
    rest: u32,
    calm: u32,
    reviewed: [usize; 3],
    rounds: u64,
    /// Of the streams that draft in this round one in so many is learnt from in full, those in turn that it falls to: drafts and
    /// verdicts so far.
    apart: usize,
    turns: [usize; 2],
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
            rule: Rule::default(),
            glanced: None,
            first: false,
            held: None,
            rest: 0,
            calm: REVIEW[0],
            reviewed: [0; 3],
            rounds: 0,
            apart: 1,
            turns: [0; 2],
        }
    }

    /// Nodes of each of `streams` streams with trees of their own, `depths` deep and of at most `nodes` nodes, in the next round of a
    /// calibration: of the sizes that may ever pay the least that was not timed. `None` once all were.
    pub fn untimed(&self, streams: usize, depths: usize, nodes: usize) -> Option<usize> {
        let prices = self.costs.prices(CALIBRATED, streams);
        let plain = prices.verify(streams);
        let sizes = (0..SIZES).map(edge).filter(|&rows| rows >= streams).map(|rows| rows / streams - 1);
        for size in sizes.take_while(|&size| size <= nodes) {
            let rows = streams * (1 + size);
            if self.costs.verified(streams, rows, CALIBRATED) < TIMED {
                return Some(size);
            }
            // A first draft meets cold memory: what it took is no reason to draft no more.
            let draft = if size == 0 { 0.0 } else { prices.draft(streams).unwrap_or(0.0) };
            let seconds = prices.verify(rows)? + draft;
            if seconds > plain? * (1 + depths) as f64 {
                return None;
            }
        }
        None
    }

    /// Whether rounds with drafts were timed, here or by another process.
    pub fn is_calibrated(&self) -> bool {
        self.costs.prices(CALIBRATED, 1).draft(1).is_some()
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

    /// The plan of a round of just the streams of the last one, of which none drafted, where a review has decided that none drafts
    /// now either: their loads need not be put together for that. `None` where [`plan`](Self::plan) has to be asked.
    pub fn rested(&mut self) -> Option<Plan> {
        let held = self.held.filter(|held| self.rest > 0 && held.drafters == 0)?;
        let left = self.rule.advance()?;
        self.rest -= 1;
        Some(Plan { left, ..held })
    }

    /// Decides who drafts.
    pub fn plan(&mut self, load: &Load<'_>) -> Plan {
        let plan = self.decide(load);
        self.apart = apart(plan.drafters);
        plan
    }

    fn decide(&mut self, load: &Load<'_>) -> Plan {
        let streams = load.streams;
        let left = load.candidates.iter().map(|candidate| candidate.left).max().unwrap_or(0);
        let new = self.rule.begin(streams, left);
        let (kind, rate, worth, plain) = (Kind::Best, 0.0, 1.0, 0.0);
        let idle = Plan { drafters: 0, reach: 0, kind, rate, worth, plain, streams, left };
        let rest = std::mem::take(&mut self.rest);
        if self.rounds < WARM || load.candidates.is_empty() {
            return idle;
        }
        let reviewed = streams_of(streams, load.candidates);
        if let Some(held) = self.held.filter(|_| rest > 0 && self.reviewed == reviewed && !new) {
            self.rest = rest - 1;
            return Plan { left, ..held };
        }
        let class = load.candidates[0].record.class();
        if new {
            self.rule.renew(class, streams);
        }
        let (habit, glanced) = (self.rule.habit(class, streams), self.glanced.take());
        let market = self.market(*load);
        // Nothing is compared with a guess: rounds of a new size or context are plain until they are measured.
        let Some(plain) = market.plain_seconds().filter(|_| market.is_size_measured(load.rows)) else {
            return idle;
        };
        let plain_rate = streams as f64 / plain;
        let needed = plain_rate * self.rule.needed(&habit);
        let best = market.best().filter(|&(_, rate)| rate > needed);
        let rate = best.map_or(plain_rate, |(_, rate)| rate);
        let draft = |way: Way, kind: Kind| {
            let (reach, worth) = (market.reach(way.drafters, rate), market.worth.of(way.drafters));
            Plan { drafters: way.drafters, reach, kind, rate, worth, plain, ..idle }
        };
        let glance =
            |drafters: usize| draft(Way { drafters, rows: load.rows + drafters * load.depths }, Kind::Glance);
        let compare = Plan { kind: Kind::Compare, rate, plain, ..idle };
        let affords = |regret: f64| self.account.affords(regret, plain);
        let plan = match best {
            Some((_, rate))
                if self.rule.since() >= distance(rate / plain_rate)
                    && affords(plain - streams as f64 / rate) =>
            {
                compare
            }
            Some((way, _)) => draft(way, Kind::Best),
            None => {
                // One stream's draft was so good that it would pay if all were like it.
                let pays = |worth: f64| market.rate_if(worth) > habit.needed() * plain_rate;
                let alike = glanced.filter(|&worth| pays(worth)).and_then(|_| market.all());
                let hopeful = self.rule.since() >= SELDOM || !market.is_gain_known() || pays(HOPE);
                let due = !self.rule.is_paused() && (new || self.rule.since() >= habit.again);
                let glances = alike.or_else(|| market.glance().filter(|_| due && hopeful));
                let (drafters, _) = glances.filter(|&(_, regret)| affords(regret)).unwrap_or_default();
                if drafters > 0 { glance(drafters) } else { Plan { rate, plain, ..idle } }
            }
        };
        let drafts = best.is_some();
        let advantage = rate / plain_rate;
        // An answer's beginning says little of how it goes on.
        if glanced.is_some() && !self.first && !drafts && plan.kind != Kind::Glance {
            self.rule.failed(class, streams);
        }
        self.first = new;
        self.rule.follow(drafts.then_some((class, streams)), false);
        let is_idle = plan == (Plan { rate, plain, ..idle });
        self.calm = if is_idle { (2 * self.calm).min(REVIEW[1]) } else { REVIEW[0] };
        let until = habit.again.saturating_sub(self.rule.since()).max(1);
        let all = plan.kind == Kind::Best && plan.drafters == load.candidates.len() && advantage > HOLD.1;
        self.rest = if is_idle {
            (self.calm / 2).min(until)
        } else if all {
            HOLD.0
        } else {
            0
        };
        self.held = (self.rest > 0).then_some(plan);
        self.reviewed = reviewed;
        plan
    }

    /// Whether the streams of this plan will draft in the next round as well, as far as that can be said before this one is run.
    /// Whoever drafts ahead of a decision drafts for nothing where it turns out differently.
    pub fn goes_on(&self, plan: &Plan) -> bool {
        let advantage = plan.rate * plan.plain / plan.streams as f64;
        plan.drafters > 0 && self.rule.drafting().is_some() && self.rule.since() + 1 < distance(advantage)
    }

    /// Draft rows of the stream of this record with the probabilities that they are worth.
    pub fn scorer<'a>(&self, record: &Record, rows: &'a [DraftRow]) -> Calibrated<'a> {
        self.classes[record.class()].calibration.calibrate(rows, record)
    }

    /// Decides how far the trees of this plan's streams grow, and how many nodes are verified.
    pub fn growth(&self, plan: &Plan, load: &Load<'_>) -> Growth {
        let market = self.market(*load);
        let drafters = plan.drafters;
        let least = drafters * load.depths.min(GROWN);
        let floor = drafters * self.options.limits.floor;
        let least = least.max(floor).min(plan.reach);
        // Drafts that nearly pay are verified, or what they are worth would never be known.
        let worth = plan.worth * if plan.kind == Kind::Glance { NEARLY } else { 1.0 };
        let growth = Growth::new(&market, (drafters, worth), floor, [least, plan.reach]);
        // One that comes on alone falls out of step with others that say the same, and all of them read more experts from there on.
        if plan.kind == Kind::Glance && drafters < load.streams { growth.unverified() } else { growth }
    }

    /// Learns from the tree that was grown of the draft of a stream of this plan, before it is cut to what is verified.
    pub fn drafted(&mut self, plan: &Plan, record: &mut Record, tree: &Tree) {
        let counts = if self.teaches(0) { self.apart } else { 0 };
        let gain = &mut self.classes[record.class()].gain;
        let worth = gain.observe(record, tree, [plan.drafters.max(1), counts], self.rounds);
        if plan.kind == Kind::Glance {
            self.glanced = Some(self.glanced.unwrap_or(0.0) + worth / plan.drafters as f64);
        }
    }

    /// Learns from the tokens that the target chose where a stream had drafted.
    pub fn learn(&mut self, record: &mut Record, verdict: Verdict<'_>) {
        let teaches = self.teaches(1);
        let calibration = &mut self.classes[record.class()].calibration;
        if teaches { calibration.learn(record, verdict) } else { calibration.settle(record, verdict) }
    }

    /// Whether the next draft (0) or verdict (1) is learnt from in full.
    fn teaches(&mut self, what: usize) -> bool {
        self.turns[what] = (self.turns[what] + 1) % self.apart;
        self.turns[what] == 0
    }

    /// Learns from a round of this plan.
    pub fn observe(&mut self, plan: &Plan, outcome: &Outcome) {
        self.rounds = self.rounds.saturating_add(1);
        self.costs.observe_read(outcome.read_tokens, outcome.read);
        if outcome.drafting > 0 && !outcome.overlapped {
            self.costs.observe_draft(outcome.drafting, outcome.context, outcome.draft);
        }
        self.costs.observe_verify(plan.streams, outcome.rows, outcome.context, outcome.verify);
        let usual = if plan.drafters > 0 { self.usual(plan.streams, outcome) } else { outcome.seconds() };
        match plan.kind {
            // Rounds that nothing was decided for save nothing up.
            Kind::Best if plan.plain > 0.0 => self.account.earn(outcome.seconds(), plan.plain),
            Kind::Best => {}
            Kind::Compare | Kind::Glance => {
                let tokens = plan.streams as f64 + plan.worth * outcome.accepted;
                self.account.spend(usual - tokens / plan.rate, plan.plain);
            }
        }
        let count = match (plan.kind, plan.drafters) {
            (Kind::Compare | Kind::Glance, _) => &mut self.counts.looks,
            (Kind::Best, 0) => &mut self.counts.plain,
            (Kind::Best, _) => &mut self.counts.drafted,
        };
        *count += 1;
        self.rule.observe(plan, outcome, usual);
    }

    /// Seconds that such a round takes: a disturbance would have come anyway.
    fn usual(&self, streams: usize, outcome: &Outcome) -> f64 {
        let prices = self.costs.prices(outcome.context, streams);
        let verify = prices.verify(outcome.rows).unwrap_or(outcome.verify);
        let draft = prices.draft(outcome.drafting).unwrap_or(outcome.draft);
        outcome.seconds().min(MOST * (prices.read(outcome.read_tokens) + draft + verify))
    }

    /// Whether the last review still holds for these streams.
    fn rests(&self, streams: [usize; 3]) -> bool {
        self.rest > 0 && self.reviewed == streams
    }

    fn market<'a>(&'a self, load: Load<'a>) -> Market<'a> {
        let gains = self.classes.each_ref().map(|class| &class.gain);
        let class = load.candidates.first().map_or(0, |candidate| candidate.record.class());
        let last = self.rule.last(class, load.streams);
        Market::new(load, &self.costs, gains, self.options.limits, last)
    }
}
