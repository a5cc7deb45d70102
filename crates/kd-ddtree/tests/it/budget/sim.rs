//! A machine with a known cost curve and streams with a known law, to let budgets compete.

use std::collections::BTreeSet;

use kd_ddtree::budget::{Allocator, Calibrated, Candidate, Load, Options, Outcome, Record, Verdict};
use kd_ddtree::{DraftRow, Forest, Marginals, StreamLimits, Tree, TreeBuilder, walk};

/// Depth of a draft.
pub(crate) const DEPTHS: usize = 7;

/// A small generator of uniform numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Chances of their own for each key.
    pub(crate) fn of(keys: [u64; 3]) -> Random {
        let mix = |state: u64, key: u64| (state ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Random(keys.into_iter().fold(0x5851_f42d_4c95_7f2d, mix))
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / (1u64 << 31) as f64
    }
}

/// What passes take, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) verify: fn(rows: f64) -> f64,
    pub(crate) draft: fn(streams: f64) -> f64,
    /// Reading one token into the drafter's context.
    pub(crate) read: f64,
    /// Largest relative disturbance of a pass.
    pub(crate) noise: f64,
    /// How much slower the machine is in every other stretch of a thousand rounds.
    pub(crate) slow: f64,
}

/// How well drafts are made, and how much better or worse the target likes them than they promise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafts {
    /// Least and largest probability of a row's best token.
    pub(crate) best: (f64, f64),
    /// Exponent that turns the best token's drafted probability into the true one, on the spine and beside it.
    pub(crate) truth: (f64, f64),
}

impl Drafts {
    /// One stream's draft rows: after the best token, each one takes half of what is left.
    fn rows(&self, random: &mut Random) -> Vec<DraftRow> {
        let row = |random: &mut Random| {
            let best = self.best.0 + (self.best.1 - self.best.0) * random.uniform();
            let mut left = 1.0 - best;
            let mut logprobs = vec![best.ln() as f32];
            for _ in 0..20 {
                left /= 2.0;
                logprobs.push(left.min(best).ln() as f32);
            }
            let tokens: Vec<u32> = (0..logprobs.len() as u32).collect();
            DraftRow::from_top_k(&tokens, &logprobs).expect("descending")
        };
        (0..DEPTHS).map(|_| row(random)).collect()
    }

    /// The target's tokens along its own path; id 0 is the best draft of every row.
    fn truth(&self, rows: &[DraftRow], random: &mut Random) -> Vec<u32> {
        let mut on_spine = true;
        let mut tokens = Vec::new();
        for row in rows {
            let best = f64::from(row.children()[0].logprob).exp();
            let best = best.powf(if on_spine { self.truth.0 } else { self.truth.1 });
            let token =
                if random.uniform() < best { 0 } else { 1 + (-random.uniform().log2()).floor() as u32 };
            on_spine &= token == 0;
            tokens.push(token);
        }
        // After the draft's end nothing was drafted.
        tokens.push(1000);
        tokens
    }
}

/// What decides the trees.
pub(crate) enum Policy {
    /// So many nodes for each stream; 0 is plain decoding.
    Fixed(usize),
    /// The allocator.
    Auto(Box<Allocator>),
}

impl Policy {
    pub(crate) fn auto() -> Policy {
        Policy::Auto(Box::new(Allocator::new(Options::default())))
    }
}

/// A running experiment.
pub(crate) struct Sim {
    pub(crate) machine: Machine,
    pub(crate) drafts: Drafts,
    pub(crate) policy: Policy,
    /// Drafts of the first so many tokens of an answer, where they differ.
    pub(crate) opening: Option<(usize, Drafts)>,
    /// Key of what streams say, so that it is the same whatever drafts them; without one chance goes on.
    pub(crate) text: Option<u64>,
    /// Drafts of the first stream, if they differ.
    pub(crate) first: Option<Drafts>,
    /// Whether all streams say the same, as answers of one prompt do when nothing is drawn.
    pub(crate) twins: bool,
    /// Whether rounds in which nothing can have changed are not planned, as an engine does it, and the number of those.
    pub(crate) rests: bool,
    pub(crate) rested: usize,
    /// Streams of the last round, if none drafted.
    resting: Option<usize>,
    random: Random,
    streams: Vec<Stream>,
    rounds: u64,
    pub(crate) rows: usize,
    /// Sizes of trees that occurred.
    pub(crate) sizes: BTreeSet<usize>,
    pub(crate) tokens: f64,
    pub(crate) seconds: f64,
    /// Rounds that were said to draft before the one in front was run: those that did, and those that did not.
    pub(crate) foretold: [u64; 2],
    goes_on: bool,
}

/// A stream as the engine knows it.
struct Stream {
    record: Record,
    unread: usize,
    left: usize,
    said: usize,
}

impl Sim {
    pub(crate) fn new(machine: Machine, drafts: Drafts, policy: Policy) -> Sim {
        Sim::seeded(machine, drafts, policy, 7)
    }

    /// As [`new`](Sim::new), with other chances.
    pub(crate) fn seeded(machine: Machine, drafts: Drafts, policy: Policy, seed: u64) -> Sim {
        let (random, streams) = (Random(seed), Vec::new());
        Sim {
            machine,
            drafts,
            policy,
            opening: None,
            text: None,
            first: None,
            twins: false,
            rests: false,
            rested: 0,
            resting: None,
            random,
            streams,
            rounds: 0,
            rows: 0,
            sizes: BTreeSet::new(),
            tokens: 0.0,
            seconds: 0.0,
            foretold: [0; 2],
            goes_on: false,
        }
    }

    /// Tokens a second over `rounds` rounds of `streams` streams.
    pub(crate) fn run(&mut self, streams: usize, rounds: usize) -> f64 {
        self.begin(streams, usize::MAX / 64, 0.0);
        let (tokens, seconds) = (self.tokens, self.seconds);
        (0..rounds).for_each(|_| self.round());
        (self.tokens - tokens) / (self.seconds - seconds)
    }

    /// Tokens a second of one answer of `tokens` tokens in each of `streams` streams, which begin together.
    pub(crate) fn answer(&mut self, streams: usize, tokens: usize, temperature: f64) -> f64 {
        self.begin(streams, tokens, temperature);
        let before = self.seconds;
        while !self.streams.is_empty() {
            self.round();
            self.streams.retain(|stream| stream.left > 0);
        }
        (streams * tokens) as f64 / (self.seconds - before)
    }

    /// Times rounds of every size, as an engine does before it serves anything.
    fn calibrate(&mut self, most: usize) {
        let mut chances = std::mem::replace(&mut self.random, Random(most as u64));
        let crowds = (0..).map(|power| 4usize.pow(power)).take_while(|&streams| streams < most);
        for streams in crowds.chain([most]) {
            let next = |policy: &Policy| match policy {
                Policy::Auto(allocator) => allocator.untimed(streams, DEPTHS, 64),
                Policy::Fixed(_) => None,
            };
            while let Some(nodes) = next(&self.policy) {
                let rows = streams * (1 + nodes);
                let drafting = if nodes == 0 { 0 } else { streams };
                let draft = if nodes == 0 { 0.0 } else { (self.machine.draft)(streams as f64) };
                let read = if nodes == 0 { 0.0 } else { self.machine.read * streams as f64 };
                let outcome = Outcome {
                    rows,
                    drafting,
                    context: 30,
                    read_tokens: drafting,
                    read: self.disturbed(read),
                    draft: self.disturbed(draft),
                    verify: self.disturbed((self.machine.verify)(rows as f64)),
                    ..Outcome::default()
                };
                let Policy::Auto(allocator) = &mut self.policy else { unreachable!("the policy is auto") };
                let load = Load { streams, rows, drafting, context: 30, depths: DEPTHS, candidates: &[] };
                let plan = allocator.plan(&load);
                allocator.observe(&plan, &outcome);
            }
        }
        std::mem::swap(&mut self.random, &mut chances);
    }

    fn begin(&mut self, streams: usize, left: usize, temperature: f64) {
        self.calibrate(streams.max(16));
        self.resting = None;
        let new = || Stream { record: Record::new(temperature), unread: 20, left, said: 0 };
        self.streams = std::iter::repeat_with(new).take(streams).collect();
    }

    /// How much slower the machine is in this round.
    fn slow(&self) -> f64 {
        if self.rounds / 1000 % 2 == 1 { self.machine.slow } else { 1.0 }
    }

    fn disturbed(&mut self, seconds: f64) -> f64 {
        let spike = if self.random.uniform() < 0.01 { 3.0 } else { 1.0 };
        seconds * (1.0 + self.machine.noise * self.random.uniform()) * spike * self.slow()
    }

    fn round(&mut self) {
        self.rounds += 1;
        let streams = self.streams.len();
        let (mut all, mut truths): (Vec<Vec<DraftRow>>, Vec<Vec<u32>>) = Default::default();
        for (at, stream) in self.streams.iter().enumerate() {
            let mut text = match self.text {
                Some(text) => {
                    let who = if self.twins { 0 } else { at as u64 };
                    Random::of([text, who, stream.said as u64])
                }
                None => self.random.clone(),
            };
            let opening = self.opening.filter(|&(tokens, _)| stream.said < tokens);
            let drafts = opening.map_or(self.drafts, |(_, drafts)| drafts);
            let drafts = self.first.filter(|_| at == 0 && streams > 1).unwrap_or(drafts);
            let rows = drafts.rows(&mut text);
            truths.push(drafts.truth(&rows, &mut text));
            all.push(rows);
            if self.text.is_none() {
                self.random = text;
            }
        }
        let candidate = |(id, stream): (usize, &Stream)| Candidate {
            id,
            record: stream.record,
            unread: stream.unread,
            left: stream.left,
        };
        let mut candidates: Vec<Candidate> = self.streams.iter().enumerate().map(candidate).collect();
        let (mut plan, mut forest, mut promised) = (None, Forest::new(), 0.0);
        let drafters: Vec<usize> = match &mut self.policy {
            Policy::Fixed(0) => Vec::new(),
            Policy::Fixed(nodes) => {
                let limits = vec![StreamLimits { floor: *nodes, cap: *nodes }; streams];
                let mut scorers: Vec<_> = all.iter().map(|rows| Marginals(rows)).collect();
                TreeBuilder::new()
                    .build_forest(&mut scorers, &limits, streams * *nodes, &mut forest)
                    .expect("within limits");
                (0..streams).collect()
            }
            Policy::Auto(allocator) => {
                let held =
                    (self.rests && self.resting == Some(streams)).then(|| allocator.rested()).flatten();
                self.rested += usize::from(held.is_some());
                if held.is_none() {
                    allocator.rank(streams, &mut candidates);
                }
                let load = Load {
                    streams,
                    rows: streams,
                    drafting: 0,
                    context: 100,
                    depths: DEPTHS,
                    candidates: &candidates,
                };
                let decided = held.unwrap_or_else(|| allocator.plan(&load));
                self.resting = (decided.drafters == 0).then_some(streams);
                if std::mem::replace(&mut self.goes_on, allocator.goes_on(&decided)) {
                    self.foretold[usize::from(decided.drafters == 0)] += 1;
                }
                let drafters: Vec<usize> = candidates[..decided.drafters].iter().map(|c| c.id).collect();
                let mut scorers: Vec<Calibrated<'_>> =
                    drafters.iter().map(|&s| allocator.scorer(&self.streams[s].record, &all[s])).collect();
                let limits = vec![allocator.options().limits; drafters.len()];
                if !drafters.is_empty() {
                    let mut growth = allocator.growth(&decided, &load);
                    TreeBuilder::new()
                        .build_forest_while(&mut scorers, &limits, &mut forest, |nodes, score| {
                            growth.wants(nodes, score)
                        })
                        .expect("within limits");
                    for (&s, tree) in drafters.iter().zip(forest.trees()) {
                        allocator.drafted(&decided, &mut self.streams[s].record, tree);
                    }
                    let nodes;
                    (nodes, promised) = growth.chosen(&forest);
                    forest.truncate(nodes);
                }
                plan = Some(decided);
                drafters
            }
        };
        let mut accepted = 0;
        let mut read_tokens = 0;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let truth = &truths[at];
            let empty = Tree::empty();
            let tree = drafters.iter().position(|&s| s == at).map_or(&empty, |at| &forest.trees()[at]);
            let outcome = walk(tree, |row| Ok::<u32, ()>(truth[tree.depth(row)])).expect("no error");
            if drafters.contains(&at) {
                read_tokens += std::mem::take(&mut stream.unread);
                if let Policy::Auto(allocator) = &mut self.policy {
                    let tokens: Vec<u32> = outcome.tokens().collect();
                    allocator.learn(&mut stream.record, Verdict { rows: &all[at], tokens: &tokens });
                }
            }
            accepted += outcome.accepted.len();
            stream.unread += outcome.rows.len();
            stream.left = stream.left.saturating_sub(outcome.rows.len());
            stream.said += outcome.rows.len();
        }
        let rows = streams + forest.nodes();
        self.rows += rows;
        self.sizes.extend(forest.trees().iter().map(Tree::len));
        let verify = (self.machine.verify)(rows as f64);
        let drafting = drafters.len();
        let draft = if drafting == 0 { 0.0 } else { (self.machine.draft)(drafting as f64) };
        let read = self.machine.read * read_tokens as f64;
        let outcome = Outcome {
            rows,
            drafting,
            context: 100,
            read_tokens,
            read: self.disturbed(read),
            draft: self.disturbed(draft),
            overlapped: false,
            verify: self.disturbed(verify),
            promised,
            accepted: accepted as f64,
        };
        if let (Policy::Auto(allocator), Some(plan)) = (&mut self.policy, plan) {
            allocator.observe(&plan, &outcome);
        }
        self.tokens += (streams + accepted) as f64;
        // What is measured is disturbed, what counts is not.
        let slow = self.slow();
        self.seconds += slow * (read + draft + verify);
    }
}
