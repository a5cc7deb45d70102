//! Who drafts in a round, and how many nodes are verified.

use super::account::Account;
use super::calibration::Calibration;
use super::cost::{CostModel, Stored};
use super::gain::Gain;
use super::search::{Load, Market, Way};
use crate::forest::StreamLimits;
use crate::tree::MAX_NODES;

/// Rounds without nodes before anything else is thought of.
const WARM: u32 = 4;
/// Drafts seen before drafting can become the rule.
const EVIDENCE: u32 = 2;
/// How much better than plain decoding drafting must look to become the rule.
const BETTER: f64 = 1.03;
/// Rounds between two reviews while plain decoding is the rule.
const REVIEW: u32 = 8;
/// Rounds after which the other way is looked at again: at first, and at most.
const AGAIN: [u32; 2] = [64, 2048];
/// Drafted rounds between two plain ones, so that the comparison stays true.
const COMPARE: u32 = 48;

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
    /// So many streams draft: the first ones of [`Load::unread`].
    pub drafters: usize,
    /// Nodes to take from the heap, for [`Allocator::choose`] to choose among.
    pub reach: usize,
    kind: Kind,
    /// Tokens a second of the best way known; not positive before one is.
    rate: f64,
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

/// Chooses budgets from what rounds of this process took and gained.
///
/// ```
/// use kd_ddtree::budget::{Allocator, Load, Options, Outcome};
///
/// let mut allocator = Allocator::new(Options::default());
/// let load = Load { streams: 1, rows: 1, drafting: 0, context: 40, depths: 7, unread: &[3] };
/// let plan = allocator.plan(&load);
/// assert_eq!(plan.drafters, 0, "what plain decoding takes is not known yet");
/// allocator.observe(&plan, &Outcome { rows: 1, context: 40, verify: 0.01, ..Outcome::default() });
/// ```
#[derive(Debug, Clone)]
pub struct Allocator {
    options: Options,
    costs: CostModel,
    gain: Gain,
    calibration: Calibration,
    account: Account,
    counts: Counts,
    /// Whether drafting is the rule.
    drafting: bool,
    /// Rounds since the other way was last seen, and how many it may be.
    since: u32,
    again: u32,
    /// Rounds until the next review, and the streams for which the last one holds.
    rest: u32,
    reviewed: (usize, usize),
    rounds: u32,
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
            gain: Gain::default(),
            calibration: Calibration::new(),
            account: Account::new(options.exploration),
            counts: Counts::default(),
            drafting: false,
            since: 0,
            again: AGAIN[0],
            rest: 0,
            reviewed: (0, 0),
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

    /// What scores are worth.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// As [`calibration`](Self::calibration), to learn from a round.
    pub fn calibration_mut(&mut self) -> &mut Calibration {
        &mut self.calibration
    }

    /// Rounds so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Seconds that learning has cost so far.
    pub fn spent(&self) -> f64 {
        self.account.spent()
    }

    /// Tokens that `nodes` nodes a stream are expected to gain; `None` before the first draft.
    pub fn expected(&self, nodes: f64) -> Option<f64> {
        self.gain.expected(nodes)
    }

    /// Decides who drafts.
    pub fn plan(&mut self, load: &Load<'_>) -> Plan {
        let (streams, may) = (load.streams, load.unread.len());
        let idle = Plan { drafters: 0, reach: 0, kind: Kind::Best, rate: 0.0, plain: 0.0, streams };
        if self.rounds < WARM || may == 0 {
            return idle;
        }
        if self.rest > 0 && self.reviewed == (streams, may) {
            self.rest -= 1;
            return idle;
        }
        let market = self.market(*load);
        // Nothing is compared with a guess: rounds of a new size or context are plain until they are measured.
        let Some(plain) = market.plain_seconds().filter(|_| market.is_size_measured(load.rows)) else {
            return idle;
        };
        let plain_rate = streams as f64 / plain;
        let needed = plain_rate * if self.drafting { 1.0 } else { BETTER };
        let best = market.best().filter(|&(_, rate)| rate > needed && self.gain.samples() >= EVIDENCE);
        let rate = best.map_or(plain_rate, |(_, rate)| rate);
        let look = |way: Way| Plan {
            drafters: way.drafters,
            reach: market.reach(way.drafters, rate).max(way.rows - load.rows),
            kind: Kind::Look(Some(way.rows)),
            rate,
            plain,
            streams,
        };
        let compare = Plan { kind: Kind::Look(None), rate, plain, ..idle };
        let affords = |regret| self.account.affords(regret);
        let plan = match best {
            Some(_) if self.since >= COMPARE && affords(plain - streams as f64 / rate) => compare,
            Some((way, _)) => market
                .promising(rate, affords)
                .map_or_else(|| Plan { kind: Kind::Best, ..look(way) }, |(way, _)| look(way)),
            None => market
                .promising(rate, affords)
                .or_else(|| market.refresh(rate).filter(|&(_, r)| self.since >= self.again && affords(r)))
                .map_or(Plan { rate, plain, ..idle }, |(way, _)| look(way)),
        };
        let drafts = best.is_some();
        if drafts != self.drafting {
            (self.drafting, self.since, self.again) = (drafts, 0, AGAIN[0]);
        }
        self.rest = if plan == (Plan { rate, plain, ..idle }) { REVIEW } else { 0 };
        self.reviewed = (streams, may);
        plan
    }

    /// Chooses how many nodes are verified. `phi[n]` is Φ(n) of the forest, from `phi[0]` = 0 on.
    pub fn choose(&mut self, plan: &mut Plan, load: &Load<'_>, phi: &[f64]) -> usize {
        if plan.drafters == 0 {
            return 0;
        }
        self.gain.observe(phi, plan.drafters);
        let most = phi.len().saturating_sub(1);
        if let Kind::Look(Some(rows)) = plan.kind {
            return (rows - load.rows).min(most);
        }
        let market = self.market(*load);
        let honesty = self.gain.honesty();
        let tokens = |rows: usize| load.streams as f64 + honesty * phi[rows - load.rows];
        let draft = |rows: usize| {
            market.draft_seconds(plan.drafters, tokens(rows) - load.streams as f64).unwrap_or(0.0)
        };
        let seconds = |rows: usize| Some(draft(rows) + market.prices.verify(rows)?);
        let least = load.rows + plan.drafters * self.options.limits.floor;
        let edges = market.edges(load.rows + most).filter(|&rows| rows >= least);
        let edges = std::iter::once(load.rows).chain(edges);
        let known = edges.filter(|&rows| rows as f64 <= market.prices.largest_verify());
        let rated = known.filter_map(|rows| Some((rows, tokens(rows) / seconds(rows)?)));
        let (chosen, rate) = rated.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((load.rows, plan.rate));
        plan.rate = rate;
        chosen - load.rows
    }

    /// Learns from a round of this plan.
    pub fn observe(&mut self, plan: &Plan, outcome: &Outcome) {
        self.rounds = self.rounds.saturating_add(1);
        self.since = self.since.saturating_add(1);
        self.costs.observe_read(outcome.read_tokens, outcome.read);
        if outcome.drafting > 0 {
            self.costs.observe_draft(outcome.drafting, outcome.context, outcome.draft);
        }
        self.costs.observe_verify(outcome.rows, outcome.context, outcome.verify);
        if plan.drafters > 0 {
            self.gain.settle(outcome.promised, outcome.accepted);
        }
        let plain = if plan.plain > 0.0 { plan.plain } else { outcome.seconds() };
        match plan.kind {
            Kind::Best => self.account.earn(outcome.seconds(), plain),
            Kind::Look(_) => {
                let tokens = plan.streams as f64 + outcome.accepted;
                self.account.spend(outcome.seconds() - tokens / plan.rate, plain);
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

    fn market<'a>(&'a self, load: Load<'a>) -> Market<'a> {
        Market {
            load,
            prices: self.costs.prices(load.context),
            costs: &self.costs,
            gain: &self.gain,
            limits: self.options.limits,
        }
    }
}
