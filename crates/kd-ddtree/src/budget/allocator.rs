//! Who drafts in a round, and how many nodes are verified.

use std::cmp::{Ordering, Reverse};

use super::account::Account;
use super::calibration::{Calibrated, Calibration, Errors, Verdict};
use super::cost::{CostModel, Stored};
use super::gain::Gain;
use super::growth::Growth;
use super::habit::Habits;
use super::record::{CLASSES, Record};
use super::search::{Candidate, Load, Market, Way};
use crate::forest::StreamLimits;
use crate::row::DraftRow;
use crate::tree::{MAX_NODES, Tree};

/// Rounds without nodes before anything else is thought of.
const WARM: u64 = 4;
/// Rounds between two reviews while plain decoding is the rule: at first, and at most.
const REVIEW: [u32; 2] = [8, 64];
/// How much better drafts are taken to be where they are looked at.
const NEARLY: f64 = 1.25;
/// Rounds without looks after one for which drafts were not good enough.
const SHY: u64 = 8;
/// Rounds for which a plan holds while drafting is better than plain decoding by more than a share.
const HOLD: (u32, f64) = (2, 1.25);
/// Drafted rounds between two plain ones, so that the comparison stays true: at least and at most, and how many more for an
/// advantage of one.
const COMPARE: [u32; 2] = [8, 48];
const CLOSE: f64 = 200.0;

/// Tokens more than others that a round may gain the stream with most left; if it seems to be more, that stream has ended.
const MOST: f64 = 16.0;
/// Tokens left at which what the last stream gains counts half by itself.
const RAGGED: f64 = 512.0;
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
    /// What a gained token is worth.
    worth: f64,
    /// Seconds of a round without nodes.
    plain: f64,
    streams: usize,
    /// Tokens left of the stream that has most, and the share of such a round that does not shrink when a stream ends.
    left: usize,
    fixed: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// The best way known.
    Best,
    /// To learn; with so many rows, where they are given.
    Look(Option<usize>),
    /// To see what drafts are like now; nodes are verified if that pays.
    Glance,
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

/// A drafted round whose gains are not known yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Kind and number of the streams when drafting began, and their number now.
    class: usize,
    crowd: usize,
    streams: usize,
    /// Tokens left of the stream that has most.
    left: usize,
    /// Draft tokens accepted, mean over all streams.
    mean: f64,
    /// Seconds ÷ those of a round without drafts.
    lasted: f64,
    /// What a gained token is worth, and the share of a round without drafts that does not shrink when a stream ends.
    worth: f64,
    fixed: f64,
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
    habits: Habits,
    /// A drafted round whose gains are not known yet.
    open: Option<Open>,
    /// Kind of streams and their number, if drafting is the rule for them; rounds of it so far, and those that it spared.
    drafting: Option<(usize, usize)>,
    stretch: (u32, f64),
    /// Rounds without drafts that drafting may still lose before it is the rule no more: it fills up by what it gains.
    patience: f64,
    /// Rounds since the other way was last seen.
    since: u32,
    /// What a draft was worth at which was just glanced.
    glanced: Option<f64>,
    /// Round before which no size is looked at: drafts have just not been worth one.
    shy: u64,
    /// What the last review decided, for how many rounds it holds if streams remain as they were, as [`streams_of`] counts them,
    /// and for how long the next one holds that finds nothing new.
    held: Option<Plan>,
    rest: u32,
    calm: u32,
    reviewed: [usize; 3],
    /// Tokens left of the stream that has most.
    left: usize,
    rounds: u64,
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
            habits: Habits::default(),
            open: None,
            drafting: None,
            stretch: (0, 0.0),
            patience: 0.0,
            since: 0,
            glanced: None,
            shy: 0,
            held: None,
            rest: 0,
            calm: REVIEW[0],
            reviewed: [0; 3],
            left: 0,
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
        let left = load.candidates.iter().map(|candidate| candidate.left).max().unwrap_or(0);
        self.settle(streams, left);
        let begins = left > std::mem::replace(&mut self.left, left);
        let (kind, rate, worth, plain, fixed) = (Kind::Best, 0.0, 1.0, 0.0, 0.0);
        let idle = Plan { drafters: 0, reach: 0, kind, rate, worth, plain, streams, left, fixed };
        if self.rounds < WARM || load.candidates.is_empty() {
            return idle;
        }
        let reviewed = streams_of(streams, load.candidates);
        if let Some(held) = self.held.filter(|_| self.rests(reviewed) && !begins) {
            self.rest -= 1;
            return Plan { left, ..held };
        }
        let class = load.candidates[0].record.class();
        if begins {
            self.habits.hope(class, streams);
            if let Some((class, streams)) = self.drafting.take() {
                self.habits.drafted(class, streams, std::mem::take(&mut self.stretch), true);
            }
        }
        let (habit, glanced) = (self.habits.of(class, streams), self.glanced.take());
        let market = self.market(*load);
        // Nothing is compared with a guess: rounds of a new size or context are plain until they are measured.
        let Some(plain) = market.plain_seconds().filter(|_| market.is_size_measured(load.rows)) else {
            return idle;
        };
        let plain_rate = streams as f64 / plain;
        // What is the rule is judged by what it brings, and not by every single draft.
        let needed = match self.drafting {
            None => plain_rate * habit.needed(),
            Some(_) if self.patience > 0.0 => 0.0,
            Some(_) => f64::INFINITY,
        };
        let best = market.best().filter(|&(_, rate)| rate > needed);
        let rate = best.map_or(plain_rate, |(_, rate)| rate);
        let draft = |way: Way, kind: Kind| {
            let (reach, worth) = (market.reach(way.drafters, rate), market.worth.of(way.drafters));
            Plan {
                drafters: way.drafters,
                reach,
                kind,
                rate,
                worth,
                plain,
                fixed: market.worth.fixed(),
                ..idle
            }
        };
        let look = |way: Way| {
            let plan = draft(way, Kind::Look(Some(way.rows)));
            Plan { reach: plan.reach.max(way.rows - load.rows), ..plan }
        };
        let glance =
            |drafters: usize| draft(Way { drafters, rows: load.rows + drafters * load.depths }, Kind::Glance);
        let compare = Plan { kind: Kind::Look(None), rate, plain, ..idle };
        let affords = |regret: f64| self.account.affords(regret);
        let affordable = |&(_, regret): &(usize, f64)| affords(regret);
        let plan = match best {
            Some((_, rate))
                if self.since >= distance(rate / plain_rate) && affords(plain - streams as f64 / rate) =>
            {
                compare
            }
            Some((way, _)) => {
                let promising = (self.rounds >= self.shy).then(|| market.promising(rate, affords)).flatten();
                promising.map_or_else(|| draft(way, Kind::Best), |(other, _)| look(other))
            }
            None => {
                // One stream's draft was so good that it would pay if all were like it.
                let alike = glanced
                    .filter(|&worth| market.rate_if(worth) > habit.needed() * plain_rate)
                    .and_then(|_| market.all());
                let due = self.since >= habit.again;
                let glances = alike.or_else(|| market.glance().filter(|_| due)).filter(affordable);
                // One more glance must remain possible.
                let kept = market.glance().map_or(0.0, |(_, regret)| regret);
                let looks = || market.promising(rate, |r| affords(r + kept)).map(|(way, _)| look(way));
                let plan = glances.map(|(drafters, _)| glance(drafters)).or_else(looks);
                plan.unwrap_or(Plan { rate, plain, ..idle })
            }
        };
        let drafts = best.is_some();
        let advantage = rate / plain_rate;
        if glanced.is_some() && !drafts && plan.kind != Kind::Glance {
            self.habits.failed(class, streams);
        }
        self.follow(drafts.then_some((class, streams)), habit.patience());
        let is_idle = plan == (Plan { rate, plain, ..idle });
        self.calm = if is_idle { (2 * self.calm).min(REVIEW[1]) } else { REVIEW[0] };
        let until = habit.again.saturating_sub(self.since).max(1);
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

    /// Takes note of what the last drafted round gained, now that it is known how much the stream with most left still has.
    fn settle(&mut self, streams: usize, left: usize) {
        let Some(open) = self.open.take().filter(|open| streams <= open.streams && left <= open.left) else {
            return;
        };
        let all = 1.0 + open.mean;
        // The one with most left may have been told to stop.
        let last = ((open.left - left) as f64).min(all + MOST).max(1.0);
        self.habits.gained(open.class, open.crowd, [last - 1.0, open.mean]);
        let most = 2.0 * self.habits.of(open.class, open.crowd).patience();
        // How far the last stream lags behind counts the more the less there is left in which it may catch up.
        let near = RAGGED / (RAGGED + open.left as f64);
        let exact = all + open.fixed * (last - all);
        let spared = near * exact + (1.0 - near) * (1.0 + open.worth * open.mean) - open.lasted;
        self.stretch.1 += spared;
        self.patience = (self.patience + spared).min(most);
    }

    /// Takes note of what is the rule from here on.
    fn follow(&mut self, drafting: Option<(usize, usize)>, patience: f64) {
        if let Some((class, streams)) = self.drafting.filter(|_| drafting.is_none()) {
            self.habits.drafted(class, streams, self.stretch, false);
        }
        if drafting.is_some() != self.drafting.is_some() {
            (self.stretch, self.since, self.patience) = ((0, 0.0), 0, patience);
        }
        // Of streams that began together, those that are left count as all.
        self.drafting = drafting.map(|now| {
            self.drafting.map_or(now, |old| if old.0 == now.0 && old.1 >= now.1 { old } else { now })
        });
    }

    /// Draft rows of the stream of this record with the probabilities that they are worth.
    pub fn scorer<'a>(&self, record: &Record, rows: &'a [DraftRow]) -> Calibrated<'a> {
        self.classes[record.class()].calibration.calibrate(rows, record)
    }

    /// Decides how far the trees of this plan's streams grow, and how many nodes are verified.
    pub fn growth(&self, plan: &Plan, load: &Load<'_>) -> Growth {
        let market = self.market(*load);
        let drafters = plan.drafters;
        let look = match plan.kind {
            Kind::Look(Some(rows)) => Some(rows - load.rows),
            _ => None,
        };
        let least = drafters * load.depths;
        let floor = drafters * self.options.limits.floor;
        let least = least.max(floor).max(look.unwrap_or(0)).min(plan.reach);
        // Drafts that nearly pay are verified, or what they are worth would never be known.
        let worth = plan.worth * if plan.kind == Kind::Glance { NEARLY } else { 1.0 };
        Growth::new(&market, (drafters, worth), floor, [least, plan.reach], look)
    }

    /// Learns from the tree that was grown of the draft of a stream of this plan, before it is cut to what is verified.
    pub fn drafted(&mut self, plan: &Plan, record: &mut Record, tree: &Tree) {
        let worth =
            self.classes[record.class()].gain.observe(record, tree, plan.drafters.max(1), self.rounds);
        if plan.kind == Kind::Glance {
            self.glanced = Some(self.glanced.unwrap_or(0.0) + worth / plan.drafters as f64);
        }
    }

    /// Learns from the tokens that the target chose where a stream had drafted.
    pub fn learn(&mut self, record: &mut Record, verdict: Verdict<'_>) {
        self.classes[record.class()].calibration.learn(record, verdict);
    }

    /// Learns from a round of this plan.
    pub fn observe(&mut self, plan: &Plan, outcome: &Outcome) {
        self.rounds = self.rounds.saturating_add(1);
        if let Kind::Look(Some(rows)) = plan.kind
            && outcome.rows < rows
        {
            self.shy = self.rounds + SHY;
        }
        self.since = self.since.saturating_add(1);
        self.costs.observe_read(outcome.read_tokens, outcome.read);
        if outcome.drafting > 0 {
            self.costs.observe_draft(outcome.drafting, outcome.context, outcome.draft);
        }
        self.costs.observe_verify(outcome.rows, outcome.context, outcome.verify);
        let plain = if plan.plain > 0.0 { plan.plain } else { outcome.seconds() };
        match plan.kind {
            Kind::Best => self.account.earn(outcome.seconds(), plain),
            Kind::Look(_) | Kind::Glance => {
                let tokens = plan.streams as f64 + plan.worth * outcome.accepted;
                self.account.spend(self.usual(outcome) - tokens / plan.rate, plain);
            }
        }
        let count = match (plan.kind, plan.drafters) {
            (Kind::Look(_) | Kind::Glance, _) => &mut self.counts.looks,
            (Kind::Best, 0) => &mut self.counts.plain,
            (Kind::Best, _) => &mut self.counts.drafted,
        };
        *count += 1;
        self.open = self.drafting.filter(|_| plan.drafters > 0).map(|(class, crowd)| Open {
            class,
            crowd,
            streams: plan.streams,
            left: plan.left,
            mean: outcome.accepted / plan.streams as f64,
            lasted: self.usual(outcome) / plan.plain,
            worth: plan.worth,
            fixed: plan.fixed,
        });
        self.stretch.0 += u32::from(self.open.is_some());
        if (plan.drafters == 0) == self.drafting.is_some() {
            self.since = 0;
        }
    }

    /// Seconds that such a round takes: a disturbance would have come anyway.
    fn usual(&self, outcome: &Outcome) -> f64 {
        let prices = self.costs.prices(outcome.context);
        let verify = prices.verify(outcome.rows).unwrap_or(outcome.verify);
        let draft = prices.draft(outcome.drafting).unwrap_or(outcome.draft);
        outcome.seconds().min(prices.read(outcome.read_tokens) + draft + verify)
    }

    /// Whether the last review still holds for these streams.
    fn rests(&self, streams: [usize; 3]) -> bool {
        self.rest > 0 && self.reviewed == streams
    }

    fn market<'a>(&'a self, load: Load<'a>) -> Market<'a> {
        let gains = self.classes.each_ref().map(|class| &class.gain);
        let class = load.candidates.first().map_or(0, |candidate| candidate.record.class());
        let streams = self.drafting.map_or(load.streams, |(_, streams)| streams.max(load.streams));
        let last = self.habits.of(class, streams).last();
        Market::new(load, &self.costs, gains, self.options.limits, last)
    }
}
