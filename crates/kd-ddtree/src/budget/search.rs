//! All ways to spend a round, and what each is expected to bring.

use super::account::ROOM;
use super::buckets::{SIZES, bucket, edge};
use super::cost::{CostModel, Prices};
use super::gain::Gain;
use crate::forest::StreamLimits;

/// Observations of a bucket before it counts as measured: the first one may have met cold memory.
const MEASURED: u32 = 2;
/// Rounds over which reading a backlog into the drafter's context is paid off.
const PAY_OFF: f64 = 64.0;
/// Passes after which a measurement is taken to be this much too high, if that made a difference.
const STALE: (u64, f64) = (96, 1.2);
/// Share of the known rate by which an unmeasured way must promise more to be worth a look.
const PROMISING: f64 = 1.03;

/// What a round has to work with, before anything is drafted.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Streams of the round.
    pub streams: usize,
    /// Rows of the verify pass without the allocator's nodes: one a stream, and the nodes of streams with a budget of
    /// their own.
    pub rows: usize,
    /// Streams that draft whatever is decided here.
    pub drafting: usize,
    /// Committed tokens of a stream, the mean over all.
    pub context: usize,
    /// Tokens that a draft is deep.
    pub depths: usize,
    /// One entry for each stream that may draft, ascending: committed tokens that the drafter has not read yet.
    pub unread: &'a [usize],
}

/// A way to spend a round: so many streams draft, and the pass has so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) drafters: usize,
    pub(crate) rows: usize,
}

/// Everything that ways are judged by.
pub(crate) struct Market<'a> {
    pub(crate) load: Load<'a>,
    pub(crate) prices: Prices,
    pub(crate) costs: &'a CostModel,
    pub(crate) gain: &'a Gain,
    pub(crate) limits: StreamLimits,
}

impl Market<'_> {
    /// Seconds of a round without the allocator's nodes. `None` before the first round.
    pub(crate) fn plain_seconds(&self) -> Option<f64> {
        Some(self.prices.verify(self.load.rows)? + self.prices.draft(self.load.drafting).unwrap_or(0.0))
    }

    /// The way that is expected to bring most tokens a second, among those that what was measured can tell.
    pub(crate) fn best(&self) -> Option<(Way, f64)> {
        let known = self.ways().filter(|way| way.rows as f64 <= self.prices.largest_verify());
        best(known.filter_map(|way| Some((way, self.rate(way)?))))
    }

    /// The way that was not measured lately and may bring most beyond `rate` for what a look at it is expected to cost,
    /// and these costs in seconds. The first look of all is the cheapest one.
    pub(crate) fn promising(&self, rate: f64, affords: impl Fn(f64) -> bool) -> Option<(Way, f64)> {
        let round = self.load.streams as f64 / rate;
        let known = self.gain.samples() > 0;
        let looks = self.ways().filter_map(|way| {
            let most = self.most(way) / rate;
            let regret = self.regret(way, rate);
            let worth = if known { (most - 1.0) / regret.max(round / 4.0) } else { -regret };
            (most > PROMISING && regret < ROOM * round).then_some(((way, regret), worth))
        });
        best(looks).map(|(look, _)| look).filter(|&(_, regret)| affords(regret))
    }

    /// The way to see with least effort how drafting fares now: one stream's draft.
    pub(crate) fn refresh(&self, rate: f64) -> Option<(Way, f64)> {
        let known = self.ways().filter(|way| way.drafters == 1 && self.is_size_measured(way.rows));
        let (way, _) = best(known.filter_map(|way| Some((way, self.rate(way)?))))?;
        Some((way, self.regret(way, rate)))
    }

    /// Nodes worth taking from the heap for `drafters` streams: to the largest bucket that could bring more than `rate`
    /// if every draft were accepted in full.
    pub(crate) fn reach(&self, drafters: usize, rate: f64) -> usize {
        let all = (self.load.streams + drafters * self.load.depths) as f64;
        let draft = self.prices.draft_floor(self.load.drafting + drafters);
        let most = self.load.rows + drafters * self.limits.cap;
        let could = |rows: &usize| all > rate * (draft + self.prices.verify_floor(*rows));
        let largest = self.edges(most).filter(could).last().unwrap_or(0);
        // Enough to learn what small trees gain.
        let least = (self.load.rows + 32 * drafters).min(most);
        largest.max(least) - self.load.rows
    }

    /// Edges of row buckets above those of the round without nodes, up to `most` rows.
    pub(crate) fn edges(&self, most: usize) -> impl Iterator<Item = usize> + use<> {
        (bucket(self.load.rows) + 1..SIZES).map(edge).take_while(move |&rows| rows <= most)
    }

    /// Seconds of drafting for `drafters` more streams, in a steady state in which they read what they commit.
    pub(crate) fn draft_seconds(&self, drafters: usize, gained: f64) -> Option<f64> {
        let drafting = self.prices.draft(self.load.drafting + drafters)?;
        Some(drafting + self.prices.read(1) * (drafters as f64 + gained))
    }

    /// Whether passes of this many rows were measured at this context.
    pub(crate) fn is_size_measured(&self, rows: usize) -> bool {
        self.costs.verified(rows, self.load.context).0 >= MEASURED
    }

    /// Seconds that a look at a way is expected to cost beyond what its tokens take at `rate`.
    fn regret(&self, way: Way, rate: f64) -> f64 {
        let gained = self.gained(way).unwrap_or(0.0);
        let draft = self.prices.draft(self.load.drafting + way.drafters);
        // Nothing known of drafting: take it for as long as a round without nodes when all streams draft.
        let share = (way.drafters as f64 / self.load.streams as f64).sqrt();
        let draft = draft.or_else(|| Some(share * self.prices.verify(self.load.rows)?)).unwrap_or(0.0);
        let verify = self.prices.verify(way.rows).unwrap_or(0.0);
        draft + verify + self.backlog(way.drafters) - (self.load.streams as f64 + gained) / rate
    }

    /// Tokens a second that are expected of a way.
    fn rate(&self, way: Way) -> Option<f64> {
        let gained = self.gained(way)?;
        let draft = self.draft_seconds(way.drafters, gained)? + self.backlog(way.drafters) / PAY_OFF;
        Some((self.load.streams as f64 + gained) / (draft + self.prices.verify(way.rows)?))
    }

    /// Tokens a second that a way may bring beyond what is known: 0 for one that was measured lately. No more rows take
    /// less time, and as long as little was drafted, much may be accepted.
    fn most(&self, way: Way) -> f64 {
        let context = self.load.context;
        let (verified, verify_age) = self.costs.verified(way.rows, context);
        let (drafted, draft_age) = self.costs.drafted(self.load.drafting + way.drafters, context);
        if verified.min(drafted) >= MEASURED {
            let stale = verify_age.max(draft_age) > STALE.0;
            return self.rate(way).filter(|_| stale).map_or(0.0, |rate| STALE.1 * rate);
        }
        let nodes = (way.rows - self.load.rows) as f64 / way.drafters as f64;
        let full = nodes.min(self.load.depths as f64);
        let doubt = 1.0 + 1.0 / f64::from(self.gain.samples().max(1)).sqrt();
        let gained = self.gain.expected(nodes).map_or(full, |gain| (gain * doubt).min(full));
        let draft = self.prices.draft_floor(self.load.drafting + way.drafters);
        let seconds = draft + self.prices.verify_floor(way.rows);
        (self.load.streams as f64 + gained * way.drafters as f64) / seconds
    }

    fn gained(&self, way: Way) -> Option<f64> {
        let drafters = way.drafters as f64;
        Some(self.gain.expected((way.rows - self.load.rows) as f64 / drafters)? * drafters)
    }

    fn backlog(&self, drafters: usize) -> f64 {
        self.prices.read(self.load.unread[..drafters].iter().sum())
    }

    /// One, two, four, … and all of the streams that may draft, each at all edges that their caps allow.
    fn ways(&self) -> impl Iterator<Item = Way> + '_ {
        let all = self.load.unread.len();
        let some = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(move |&n| n < all);
        some.chain((all > 0).then_some(all)).flat_map(move |drafters| {
            let [least, most] =
                [self.limits.floor, self.limits.cap].map(|nodes| self.load.rows + drafters * nodes);
            self.edges(most).filter(move |&rows| rows >= least).map(move |rows| Way { drafters, rows })
        })
    }
}

fn best<T>(rated: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    rated.max_by(|a, b| a.1.total_cmp(&b.1))
}
