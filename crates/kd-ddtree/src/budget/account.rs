//! What learning may cost.

/// Rounds' worth of time that can be saved up.
const ROOM: f64 = 6.0;
/// Rounds' worth of time to begin with: enough to look at a drafter once, where that is dear.
const START: f64 = 1.5;

/// Time that may be spent on rounds that are not the best ones known.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    rate: f64,
    /// Seconds; `None` until it is known how long a round takes.
    credit: Option<f64>,
    spent: f64,
}

impl Account {
    /// An account that earns `rate` of all time spent on the best rounds known.
    pub(crate) fn new(rate: f64) -> Self {
        Self { rate, credit: None, spent: 0.0 }
    }

    /// A round of the best kind known took `seconds`.
    pub(crate) fn earn(&mut self, seconds: f64, round: f64) {
        let credit = self.credit.get_or_insert(START * round);
        *credit = (*credit + self.rate * seconds).min(ROOM * round);
    }

    /// A round of another kind took `regret` seconds more than the best kind takes for as many tokens; less than none
    /// if it was better.
    pub(crate) fn spend(&mut self, regret: f64, round: f64) {
        self.spent += regret;
        let credit = self.credit.get_or_insert(START * round);
        // A look that went well pays for few further ones: most of that is luck.
        *credit = (*credit - regret).min(credit.max(START * round));
    }

    /// Whether a round that is expected to cost `regret` seconds can be afforded where one of the best kind takes `round`.
    pub(crate) fn affords(&self, regret: f64, round: f64) -> bool {
        self.credit.unwrap_or(START * round) >= regret.max(0.0)
    }

    /// Seconds spent so far.
    pub(crate) fn spent(&self) -> f64 {
        self.spent
    }
}
