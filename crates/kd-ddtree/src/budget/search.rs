//! All ways to spend a round, and what each is expected to bring.

use super::buckets::{SIZES, bucket, edge};
use super::cost::{CostModel, Prices};
use super::gain::Gain;
use super::ragged::Worth;
use super::record::{CLASSES, Record};
use crate::forest::StreamLimits;

/// Observations of a bucket before it counts as measured: the first one may have met cold memory.
const MEASURED: u32 = 2;
/// Rounds over which reading a backlog into the drafter's context is paid off.
const PAY_OFF: f64 = 64.0;
/// A glance is at all streams if that takes no more than so many times as long as at one.
const ALL: f64 = 1.4;
/// A stream that may draft.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The caller's own number for it.
    pub id: usize,
    /// What its drafts were worth.
    pub record: Record,
    /// Committed tokens that the drafter has not read yet.
    pub unread: usize,
    /// Tokens that it may still generate.
    pub left: usize,
}

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
    /// The streams that may draft, those first that [`Allocator::rank`](super::Allocator::rank) puts first.
    pub candidates: &'a [Candidate],
}

/// A way to spend a round: so many streams draft, and the pass has so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) drafters: usize,
    pub(crate) rows: usize,
}

/// The first so many candidates.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    size: usize,
    /// What their drafts are expected to be worth, by kind.
    ratios: [f64; CLASSES],
    unread: usize,
}

/// Everything that ways are judged by.
pub(crate) struct Market<'a> {
    pub(crate) load: Load<'a>,
    pub(crate) prices: Prices,
    costs: &'a CostModel,
    gains: [&'a Gain; CLASSES],
    limits: StreamLimits,
    pub(crate) worth: Worth,
    /// Of one, two, four, … and all candidates.
    crowds: Vec<Crowd>,
}

impl<'a> Market<'a> {
    pub(crate) fn new(
        load: Load<'a>,
        costs: &'a CostModel,
        gains: [&'a Gain; CLASSES],
        limits: StreamLimits,
        last: f64,
    ) -> Self {
        let all = load.candidates.len();
        let (mut crowd, mut crowds) = (Crowd::default(), Vec::new());
        for candidate in load.candidates {
            let class = candidate.record.class();
            crowd.size += 1;
            crowd.ratios[class] += candidate.record.ratio();
            crowd.unread += candidate.unread;
            if crowd.size.is_power_of_two() || crowd.size == all {
                crowds.push(crowd);
            }
        }
        let prices = costs.prices(load.context, load.streams);
        let left = load.candidates.iter().map(|candidate| candidate.left).max().unwrap_or(0);
        let worth = Worth::new(&prices, load.streams, left as f64, last);
        Self { load, prices, costs, gains, limits, worth, crowds }
    }

    /// Seconds of a round without the allocator's nodes. `None` before the first round.
    pub(crate) fn plain_seconds(&self) -> Option<f64> {
        Some(self.prices.verify(self.load.rows)? + self.prices.draft(self.load.drafting).unwrap_or(0.0))
    }

    /// Whether drafts of all kinds of streams that may draft here were seen.
    pub(crate) fn is_gain_known(&self) -> bool {
        let ratios = self.crowds.last().map_or([0.0; CLASSES], |crowd| crowd.ratios);
        self.gains.iter().zip(ratios).all(|(gain, ratio)| ratio == 0.0 || gain.samples() > 0)
    }

    /// Largest verify pass whose costs are known, in rows.
    pub(crate) fn largest_known(&self) -> f64 {
        self.prices.largest_verify()
    }

    /// The way that is expected to bring most tokens a second, among those that what was measured can tell.
    pub(crate) fn best(&self) -> Option<(Way, f64)> {
        best(self.known_ways().filter_map(|(crowd, way)| Some((way, self.rate(crowd, way)?))))
    }

    /// How many streams draft to see how drafts fare now, none of whose nodes need be verified, and what that costs in seconds:
    /// one stream, or as few as can draft, or all if that takes little more. `None` before drafts were timed.
    pub(crate) fn glance(&self) -> Option<(usize, f64)> {
        let fewest = self.ways().next().map(|(_, way)| way.drafters)?;
        let one = self.drafting(self.crowds.iter().find(|crowd| crowd.size == fewest)?)?;
        let all = self.all()?;
        Some(if all.1 <= ALL * one.1 { all } else { one })
    }

    /// Seconds of drafting for all.
    pub(crate) fn all(&self) -> Option<(usize, f64)> {
        self.drafting(self.crowds.last()?)
    }

    /// How many these are, and the seconds of drafting for them and of what they have to read.
    fn drafting(&self, crowd: &Crowd) -> Option<(usize, f64)> {
        let seconds = self.prices.draft(self.load.drafting + crowd.size)?;
        Some((crowd.size, seconds - self.prices.draft(self.load.drafting)? + self.backlog(crowd)))
    }

    /// Tokens a second of the best known way for all streams if each draft were worth `worth` of a new stream's.
    pub(crate) fn rate_if(&self, worth: f64) -> f64 {
        let Some(crowd) = self.crowds.last() else { return 0.0 };
        let sum: f64 = crowd.ratios.iter().sum();
        let like =
            Crowd { ratios: crowd.ratios.map(|ratio| ratio * worth * crowd.size as f64 / sum), ..*crowd };
        let ways = self.known_ways().filter(|(other, _)| other.size == crowd.size);
        ways.filter_map(|(_, way)| self.rate(&like, way)).fold(0.0, f64::max)
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
        let least = (self.load.rows + self.load.depths * drafters).min(most);
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
        self.costs.verified(self.load.streams, rows, self.load.context) >= MEASURED
    }

    /// Tokens a second that are expected of a way.
    fn rate(&self, crowd: &Crowd, way: Way) -> Option<f64> {
        let gained = self.gained(crowd, way)?;
        let draft = self.draft_seconds(way.drafters, gained)? + self.backlog(crowd) / PAY_OFF;
        let seconds = draft + self.prices.verify(way.rows)?;
        Some((self.load.streams as f64 + gained * self.worth.of(way.drafters)) / seconds)
    }

    /// Tokens that the drafts of a way are expected to gain; `None` before a draft of such streams was seen. A kind of which none
    /// was seen is taken to be like those that it runs with.
    fn gained(&self, crowd: &Crowd, way: Way) -> Option<f64> {
        let (nodes, full) = self.shape(way);
        let (mut sum, mut known) = (0.0, 0.0);
        for (gain, ratio) in self.gains.iter().zip(crowd.ratios).filter(|(_, ratio)| *ratio > 0.0) {
            if let Some(expected) = gain.expected(nodes) {
                sum += ratio * expected;
                known += ratio;
            }
        }
        let all: f64 = crowd.ratios.iter().sum();
        (known > 0.0).then(|| (sum * all / known).min(full))
    }

    /// Nodes of each drafting stream, and the tokens that all of them gain if everything is accepted.
    fn shape(&self, way: Way) -> (f64, f64) {
        let nodes = (way.rows - self.load.rows) as f64 / way.drafters as f64;
        (nodes, way.drafters as f64 * nodes.min(self.load.depths as f64))
    }

    fn backlog(&self, crowd: &Crowd) -> f64 {
        self.prices.read(crowd.unread)
    }

    /// All numbers of drafting streams, each at all edges that their caps allow.
    fn ways(&self) -> impl Iterator<Item = (&Crowd, Way)> + '_ {
        self.crowds.iter().flat_map(move |crowd| {
            let drafters = crowd.size;
            let [least, most] =
                [self.limits.floor, self.limits.cap].map(|nodes| self.load.rows + drafters * nodes);
            let edges = self.edges(most).filter(move |&rows| rows >= least);
            edges.map(move |rows| (crowd, Way { drafters, rows }))
        })
    }

    /// Those of them whose passes are no larger than the largest one that was measured.
    fn known_ways(&self) -> impl Iterator<Item = (&Crowd, Way)> + '_ {
        self.ways().filter(|(_, way)| way.rows as f64 <= self.largest_known())
    }
}

fn best<T>(rated: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    rated.max_by(|a, b| a.1.total_cmp(&b.1))
}
