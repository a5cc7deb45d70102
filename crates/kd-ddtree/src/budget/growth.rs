//! How far trees grow, and how many of their nodes are verified.

use super::buckets::SIZES;
use super::search::Market;
use crate::forest::Forest;

/// Nodes after which it is asked whether growing on can pay: a node takes a tenth of a microsecond, and a GPU waits for it.
const CHECKED: usize = 8;

/// How much better a larger pass must promise to be: of several promises the best one is on average too good.
const SURE: f64 = 1.02;

/// A size of the verify pass that was measured.
#[derive(Debug, Clone, Copy, Default)]
struct Stop {
    nodes: usize,
    /// Seconds of the round, drafting included.
    seconds: f64,
}

/// Decides node by node whether trees go on growing: until no larger pass can win, since no later node is worth more
/// than the present one.
#[derive(Debug, Clone)]
pub struct Growth {
    stops: [Stop; SIZES + 1],
    count: usize,
    /// The next stop that the trees come to.
    next: usize,
    /// Nodes that are taken in any case, and at most.
    least: usize,
    most: usize,
    streams: f64,
    /// What a gained token is worth.
    worth: f64,
    /// Seconds by which a gained token lengthens a round: the drafter has to read it.
    read: f64,
    phi: Vec<f64>,
    best: (usize, f64),
}

impl Growth {
    /// `least` and `most` nodes for `drafters` streams, of which at least `floor` nodes must be verified if any are.
    pub(crate) fn new(
        market: &Market<'_>,
        (drafters, worth): (usize, f64),
        floor: usize,
        [least, most]: [usize; 2],
    ) -> Growth {
        let rows = market.load.rows;
        let draft = market.draft_seconds(drafters, 0.0).unwrap_or(0.0);
        let mut growth = Growth {
            stops: Default::default(),
            count: 0,
            next: 0,
            least,
            most,
            streams: market.load.streams as f64,
            worth,
            read: market.prices.read(1),
            phi: Vec::with_capacity(most + 1),
            best: (0, 0.0),
        };
        growth.phi.push(0.0);
        let edges = market.edges(rows + most).filter(|&edge| edge >= rows + floor);
        let known = std::iter::once(rows).chain(edges).filter(|&edge| edge as f64 <= market.largest_known());
        for (stop, edge) in growth.stops.iter_mut().zip(known) {
            let verify = market.prices.verify(edge).unwrap_or(f64::INFINITY);
            *stop = Stop { nodes: edge - rows, seconds: draft + verify };
            growth.count += 1;
        }
        growth
    }

    /// As this one, of trees that are only looked at: they grow as far, and none of their nodes is verified.
    pub(crate) fn unverified(self) -> Growth {
        Growth { count: self.count.min(1), ..self }
    }

    /// Whether a node of this score is taken after `nodes` others, all of which were worth at least as much.
    pub fn wants(&mut self, nodes: usize, score: f32) -> bool {
        self.phi.truncate(nodes + 1);
        let worth = f64::from(score.exp());
        let stopped = self.pass_stops(nodes) || nodes.is_multiple_of(CHECKED);
        if nodes >= self.most || (stopped && nodes >= self.least && !self.can_win(nodes, worth)) {
            return false;
        }
        self.phi.push(self.phi[nodes] + worth);
        true
    }

    /// Nodes to verify of those that the forest holds, and what they promise.
    pub fn chosen(&mut self, forest: &Forest) -> (usize, f64) {
        self.phi.truncate(forest.nodes() + 1);
        let last = self.phi.len() - 1;
        self.pass_stops(last);
        let nodes = self.best.0;
        (nodes, self.phi[nodes])
    }

    fn rate(&self, stop: Stop, gained: f64) -> f64 {
        (self.streams + self.worth * gained) / (stop.seconds + self.read * gained)
    }

    /// Judges the stops up to `nodes` nodes; whether the last of them was there.
    fn pass_stops(&mut self, nodes: usize) -> bool {
        while let Some(&stop) = self.stops[..self.count].get(self.next).filter(|stop| stop.nodes <= nodes) {
            let rate = self.rate(stop, self.phi[stop.nodes]);
            if rate > SURE * self.best.1 {
                self.best = (stop.nodes, rate);
            }
            self.next += 1;
        }
        self.next > 0 && self.stops[self.next - 1].nodes == nodes
    }

    /// Whether a later stop may be better than the best so far if no later node is worth more than `worth`.
    fn can_win(&self, nodes: usize, worth: f64) -> bool {
        self.stops[self.next..self.count].iter().any(|&stop| {
            let gained = self.phi[nodes] + worth * (stop.nodes - nodes) as f64;
            self.rate(stop, gained) > SURE * self.best.1
        })
    }
}
