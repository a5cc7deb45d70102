//! What one stream's drafts were worth, against those of other streams.
//!
//! Streams differ more than the drafts of one stream do, so that what all streams have shown says little of a single one.
//! A stream starts with what is known of others like it, and its own drafts take over as they come.

/// Kinds of streams that are learnt from apart: the best token is taken, or drawn at low, usual or high temperature.
pub(crate) const CLASSES: usize = 4;

/// What remains of a stream's draft after one more round, drafted or not: what an answer was like some rounds ago says little.
const FADE: f64 = 0.85;
/// Drafts that what is known of other streams counts for.
const OTHERS: f64 = 0.5;
/// Tokens that a fresh stream is taken to have accepted as promised.
const PRIOR: f64 = 10.0;
/// What remains of a token after one more.
const FADE_TOKEN: f64 = 0.99;
/// Within these bounds a stream's own probabilities differ from those of its kind.
const FACTOR: std::ops::RangeInclusive<f64> = 0.4..=2.0;

/// What one stream's drafts were worth so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    class: usize,
    drafts: u32,
    /// Round of the last draft.
    seen: u64,
    /// Sum of the drafts' worths, each in units of what drafts of new streams of the kind are worth, and of their weights.
    worth: f64,
    weight: f64,
    /// Probability that best tokens promised along the target's path, and times that they were right.
    promised: f64,
    right: f64,
}

impl Record {
    /// Of a new stream that is sampled at this temperature.
    pub fn new(temperature: f64) -> Record {
        let class = match temperature {
            t if t <= 0.0 => 0,
            t if t <= 0.5 => 1,
            t if t <= 1.0 => 2,
            _ => 3,
        };
        Record { class, drafts: 0, seen: 0, worth: 0.0, weight: 0.0, promised: 0.0, right: 0.0 }
    }

    /// Drafts so far.
    pub fn drafts(&self) -> u32 {
        self.drafts
    }

    pub(crate) fn class(&self) -> usize {
        self.class
    }

    /// What its next draft is expected to be worth, in units of a new stream's.
    pub(crate) fn ratio(&self) -> f64 {
        (OTHERS + self.worth) / (OTHERS + self.weight)
    }

    /// What its drafts may well be worth, where those of streams differ by `spread`.
    pub(crate) fn hope(&self, spread: f64) -> f64 {
        self.ratio() + 2.0 * spread / (1.0 + 4.0 * self.weight).sqrt()
    }

    /// What its tokens' probabilities have to be multiplied with.
    pub(crate) fn factor(&self) -> f64 {
        ((self.right + PRIOR) / (self.promised + PRIOR)).clamp(*FACTOR.start(), *FACTOR.end())
    }

    /// Takes the worth of a draft in round `round`.
    pub(crate) fn drafted(&mut self, worth: f64, round: u64) {
        let rounds = if self.drafts == 0 { 1 } else { round.saturating_sub(self.seen).clamp(1, 64) };
        let fade = FADE.powi(rounds as i32);
        self.seen = round;
        self.drafts = self.drafts.saturating_add(1);
        self.worth = fade * self.worth + worth;
        self.weight = fade * self.weight + 1.0;
    }

    /// A best token that promised this probability was or was not the target's.
    pub(crate) fn settle(&mut self, promised: f64, right: bool) {
        self.promised = FADE_TOKEN * self.promised + promised;
        self.right = FADE_TOKEN * self.right + f64::from(u8::from(right));
    }
}
