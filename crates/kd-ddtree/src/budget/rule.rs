//! Whether drafting is the rule, and what it has brought since it became so.

use super::habit::{Habit, Habits};
use super::round::{Outcome, Plan};

/// Tokens more than others that a round may gain the stream with most left; if it seems to be more, that stream has ended.
const MOST: f64 = 16.0;
/// Rounds spared by drafting that make a further round of patience.
const EARNED: f64 = 16.0;

/// Rounds that a pause of drafting lasts at most.
const PAUSED: u32 = 256;

/// Kind of streams, and their number when drafting became the rule.
pub(super) type Crowd = (usize, usize);

/// A drafted round whose gains are not known yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    crowd: Crowd,
    plan: Plan,
    /// Draft tokens accepted, mean over all streams.
    mean: f64,
    /// Seconds ÷ those of a round without drafts.
    lasted: f64,
}

/// What streams took since they came.
#[derive(Debug, Clone, Copy, Default)]
struct Answer {
    whose: Option<Crowd>,
    /// Tokens that the stream with most left had left then.
    left: usize,
    /// Streams, and seconds of a round without drafts then; not positive before that is known.
    streams: usize,
    plain: f64,
    /// What all rounds took, in rounds without drafts, and what the last one took of that.
    took: f64,
    newest: f64,
    rounds: u32,
    /// Whether nothing is drafted for them, since what was drafted for others of the kind has lost.
    paused: bool,
}

/// What is the rule now.
#[derive(Debug, Clone, Default)]
pub(super) struct Rule {
    habits: Habits,
    /// For whom drafting is the rule, if it is; its rounds so far, and the rounds without drafts that they spared.
    drafting: Option<Crowd>,
    rounds: u32,
    spared: f64,
    /// Rounds without drafts that drafting may still lose before it is the rule no more: it fills up by what it gains.
    patience: f64,
    /// Rounds since the other way was last seen.
    since: u32,
    open: Option<Open>,
    /// Tokens left of the stream that has most.
    left: usize,
    answer: Answer,
}

impl Rule {
    /// What was learnt of `streams` streams of a kind.
    pub(super) fn habit(&self, class: usize, streams: usize) -> Habit {
        self.habits.of(class, streams)
    }

    /// What the last of `streams` streams gains ÷ what all gain on average.
    pub(super) fn last(&self, class: usize, streams: usize) -> f64 {
        let streams = self.drafting.map_or(streams, |(_, began)| began.max(streams));
        self.habit(class, streams).last(self.drafting.map_or(0, |_| self.rounds))
    }

    /// For whom drafting is the rule.
    pub(super) fn drafting(&self) -> Option<Crowd> {
        self.drafting
    }

    /// Rounds since the other way was last seen.
    pub(super) fn since(&self) -> u32 {
        self.since
    }

    /// How drafting must compare with plain decoding to be the rule. What is the rule already is judged by what it brings, and
    /// not by every single draft.
    pub(super) fn needed(&self, habit: &Habit) -> f64 {
        match self.drafting {
            None if self.is_paused() => f64::INFINITY,
            None => habit.needed(),
            Some(_) if self.patience > 0.0 => 0.85,
            Some(_) => f64::INFINITY,
        }
    }

    /// Takes note of `streams` streams before a round, of which one has `left` tokens left and none has more; says whether new
    /// ones are among them.
    pub(super) fn begin(&mut self, streams: usize, left: usize) -> bool {
        if let Some(open) =
            self.open.take().filter(|open| streams <= open.plan.streams && left <= open.plan.left)
        {
            self.settle(&open, open.plan.left - left);
        }
        let before = std::mem::replace(&mut self.left, left);
        if left > before {
            self.end(before);
        }
        left > before
    }

    /// Takes note of what streams took that are followed by others, `left` tokens before the end of the one with most left.
    fn end(&mut self, left: usize) {
        let Answer { whose, left: all, plain, took, newest, .. } = std::mem::take(&mut self.answer);
        if let Some(whose) = whose.filter(|_| plain > 0.0) {
            // What the last round gained is not seen: so near its end the stream has ended, else that round is left out.
            let ended = left as f64 <= MOST;
            let (came, newest) = if ended { (all, 0.0) } else { (all.saturating_sub(left), newest) };
            self.habits.answered(whose, took - newest - came as f64, came as f64);
        }
    }

    /// Whether the streams that there are do not draft, nor are looked at.
    pub(super) fn is_paused(&self) -> bool {
        self.answer.paused && self.answer.rounds < PAUSED
    }

    /// As [`begin`](Self::begin), before a round of the same streams after one in which each has gained a token: how many tokens are
    /// left. `None` after a round that drafted, whose gains are still to be seen.
    pub(super) fn advance(&mut self) -> Option<usize> {
        if self.open.is_some() {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        Some(self.left)
    }

    /// Takes note of what a drafted round gained, now that it is known how much the stream with most left came on.
    fn settle(&mut self, open: &Open, last: usize) {
        let (plan, (class, streams)) = (&open.plan, open.crowd);
        let all = 1.0 + open.mean;
        // It may have been told to stop.
        let last = (last as f64).min(all + MOST).max(1.0);
        self.habits.gained((class, streams), self.rounds, [last - 1.0, open.mean]);
        let spared = 1.0 + plan.worth * open.mean - open.lasted;
        self.spared += spared;
        let patience = self.habits.of(class, streams).patience();
        let most = patience + (self.spared / EARNED).clamp(0.0, patience);
        self.patience = (self.patience + spared).min(most);
    }

    /// New streams of this kind came, `streams` with them: what is the rule for others is none for them, unless as many of the
    /// kind have just gained by it.
    pub(super) fn renew(&mut self, class: usize, streams: usize) {
        self.habits.hope(class, streams);
        let paused = self.habits.pause(class, streams);
        self.answer = Answer { whose: Some((class, streams)), left: self.left, paused, ..Answer::default() };
        let kept = self.drafting.filter(|&crowd| crowd == (class, streams) && self.spared > 0.0);
        self.follow(None, true);
        self.follow(kept, false);
    }

    /// A look at drafts came to nothing.
    pub(super) fn failed(&mut self, class: usize, streams: usize) {
        self.habits.failed(class, streams);
    }

    /// Takes note of what is the rule from here on; `ended` if streams have ended, and not drafting for them.
    pub(super) fn follow(&mut self, drafting: Option<Crowd>, ended: bool) {
        match (self.drafting, drafting) {
            (Some((class, streams)), None) => {
                self.habits.drafted(class, streams, (self.rounds, self.spared), ended);
                self.since = 0;
            }
            (None, Some((class, streams))) => {
                (self.rounds, self.spared, self.since) = (0, 0.0, 0);
                self.patience = self.habits.of(class, streams).patience();
            }
            _ => {}
        }
        // Of streams that began together, those that are left count as all.
        let same = |now: Crowd, old: Crowd| if old.0 == now.0 && old.1 >= now.1 { old } else { now };
        self.drafting = drafting.map(|now| self.drafting.map_or(now, |old| same(now, old)));
    }

    /// Takes note of a round of this plan that usually takes `usual` seconds.
    pub(super) fn observe(&mut self, plan: &Plan, outcome: &Outcome, usual: f64) {
        self.open = self.drafting.filter(|_| plan.drafters > 0).map(|crowd| Open {
            crowd,
            plan: *plan,
            mean: outcome.accepted / plan.streams as f64,
            lasted: usual / plan.plain,
        });
        let answer = &mut self.answer;
        if answer.rounds == 0 {
            (answer.streams, answer.plain) = (plan.streams, plan.plain);
        }
        // Fewer streams may take less. Else the machine has become faster or slower, whatever is drafted.
        let share = if plan.streams < answer.streams { (plan.plain / answer.plain).min(1.0) } else { 1.0 };
        answer.newest = share * if plan.drafters > 0 { usual / plan.plain } else { 1.0 };
        answer.took += answer.newest;
        answer.rounds = answer.rounds.saturating_add(1);
        self.rounds += u32::from(self.open.is_some());
        self.since = self.since.saturating_add(1);
        if (plan.drafters == 0) == self.drafting.is_some() {
            self.since = 0;
        }
    }
}
