//! How long drafting lasts once it is the rule, and how soon it is looked at again while it is not.

use super::record::CLASSES;

/// Rounds after which drafting is looked at again: at first, and at most.
const AGAIN: [u32; 2] = [8, 96];
/// Rounds of drafting in a row before any were seen.
const STRETCH: f64 = 32.0;
/// Rounds of drafting in a row that make a round of patience.
const PATIENT: f64 = 6.0;
/// How drafting must compare with plain decoding to become the rule, and rounds lost that make it another one better.
const BETTER: f64 = 1.02;
const LOST: f64 = 8.0;
/// What remains of a loss when new streams come.
const HOPE: f64 = 0.75;
/// What then remains of how far the stream with most left lags.
const CLOSER: f64 = 0.9;
/// Drafted rounds in a row that show that drafting can pay here.
const LONG: u32 = 8;
/// How far the stream with most left is taken to lag before any were seen together, and what all streams are on average.
const GAINED: [f64; 2] = [1.0, 1.0];
/// What remains of a drafted round after one more.
const FADE: f64 = 0.95;
/// Rounds without drafts that looks and drafting together may lose streams that came: a share of their tokens, and a part of one.
/// If they lost more, the next ones of the kind do not draft, so many times: at most one in three answers pays for what the others
/// would like to know.
const ALLOWED: [f64; 2] = [0.015, 0.25];
const PAUSES: u32 = 2;
/// Powers of two of streams that are kept apart: few streams may do well where many do not.
const CROWDS: usize = 8;

/// What was learnt of drafting by one kind of streams, so many at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habit {
    /// Drafted rounds in a row, an average.
    pub(crate) stretch: f64,
    /// Rounds between two looks in vain.
    pub(crate) again: u32,
    /// How far a round let the stream with most left lag, and tokens that it gained all streams on average, both averages over
    /// drafted rounds. Streams that are alike drift apart as a random walk does: what the last one lags behind in `n` rounds is
    /// `√n` times something, which is what is averaged.
    gained: [f64; 2],
    /// Rounds without drafts that drafting spared from when it began until it ended, an average: less than none if it lost.
    spared: f64,
    /// So many times new streams do not draft.
    pauses: u32,
}

impl Habit {
    /// Rounds without drafts that drafting may lose before it ends: the longer it used to last, the less bad luck says.
    pub(crate) fn patience(&self) -> f64 {
        (self.stretch / PATIENT).clamp(1.0, 5.0)
    }
}

impl Habit {
    /// How much better than plain decoding drafting must promise to be to begin: the more it lost where it promised to gain.
    pub(crate) fn needed(&self) -> f64 {
        BETTER + (-self.spared / LOST).clamp(0.0, 0.5)
    }

    /// What the stream with most left gains ÷ what all gain on average, in as many rounds as drafting lasts, of which `rounds` are over.
    pub(crate) fn last(&self, rounds: u32) -> f64 {
        let [lag, mean] = self.gained;
        let lasts = self.stretch.max(4.0 * f64::from(rounds));
        (1.0 - lag / mean.max(0.01) / lasts.sqrt()).clamp(0.0, 1.0)
    }
}

/// Habits by kind and number of streams.
#[derive(Debug, Clone)]
pub(crate) struct Habits([[Habit; CROWDS]; CLASSES]);

impl Default for Habits {
    fn default() -> Self {
        Self(
            [[Habit { stretch: STRETCH, again: AGAIN[0], gained: GAINED, spared: 0.0, pauses: 0 }; CROWDS];
                CLASSES],
        )
    }
}

impl Habits {
    /// That of `streams` streams of this kind.
    pub(crate) fn of(&self, class: usize, streams: usize) -> Habit {
        self.0[class][crowd(streams)]
    }

    /// Drafting was the rule for so many rounds in a row, and then was no more, or all that drafted ended.
    pub(crate) fn drafted(
        &mut self,
        class: usize,
        streams: usize,
        (rounds, spared): (u32, f64),
        ended: bool,
    ) {
        let habit = &mut self.0[class][crowd(streams)];
        // What the end of the answers cut short would have lasted longer.
        let rounds_all = f64::from(rounds) * if ended { 2.0 } else { 1.0 };
        if !ended || rounds_all > habit.stretch {
            habit.stretch += (rounds_all - habit.stretch) / 2.0;
        }
        habit.spared += (spared - habit.spared) / 4.0;
        if rounds >= LONG {
            habit.again = AGAIN[0];
        }
    }

    /// In the round `round` of drafting in a row, the stream with most left and all on average gained so many tokens by drafts.
    pub(crate) fn gained(&mut self, (class, streams): (usize, usize), round: u32, [last, mean]: [f64; 2]) {
        let seen = &mut self.0[class][crowd(streams)].gained;
        let lag = 2.0 * f64::from(round).sqrt() * (mean - last);
        seen.iter_mut().zip([lag, mean]).for_each(|(seen, now)| *seen += (1.0 - FADE) * (now - *seen));
    }

    /// The stream with most left of these came on by `came` tokens, which took `lost` rounds more than without drafts.
    pub(crate) fn answered(&mut self, (class, streams): (usize, usize), lost: f64, came: f64) {
        // One stream alone gains what its drafts bring, and ends drafting by that. Of several the last one may not gain.
        if streams > 1 && lost > ALLOWED[0] * came + ALLOWED[1] {
            self.0[class][crowd(streams)].pauses = PAUSES;
        }
    }

    /// Whether new streams, `streams` with them, are not to draft.
    pub(crate) fn pause(&mut self, class: usize, streams: usize) -> bool {
        let pauses = &mut self.0[class][crowd(streams)].pauses;
        let paused = *pauses > 0;
        *pauses = pauses.saturating_sub(1);
        paused
    }

    /// A look came to nothing.
    pub(crate) fn failed(&mut self, class: usize, streams: usize) {
        let again = &mut self.0[class][crowd(streams)].again;
        *again = (3 * *again).min(AGAIN[1]);
    }

    /// New streams came: they may be better than those before.
    pub(crate) fn hope(&mut self, class: usize, streams: usize) {
        let habit = &mut self.0[class][crowd(streams)];
        habit.again = (habit.again / 4).max(AGAIN[0]);
        habit.spared *= HOPE;
        habit.gained[0] *= CLOSER;
    }
}

fn crowd(streams: usize) -> usize {
    (streams.max(1).ilog2() as usize).min(CROWDS - 1)
}
