//! What drafting and verifying take on this machine, now.

use super::curve::{Curve, Line};

/// How fast the tempo follows the machine, a share of each surprise.
const TEMPO: f64 = 0.2;

/// Powers of two of streams whose passes are kept apart: rows of one stream share its context, those of several do not.
const CROWDS: usize = 8;

/// The number of streams that stands for this one: the power of two that reaches it.
fn crowd(streams: usize) -> usize {
    (streams.clamp(1, 1 << (CROWDS - 1)).next_power_of_two().ilog2() as usize).min(CROWDS - 1)
}

/// Seconds of one bucket of a stored calibration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredCell {
    /// Streams of the pass.
    pub streams: usize,
    /// Rows of the pass, or streams that drafted.
    pub size: usize,
    /// Committed tokens of a stream, the mean over streams.
    pub context: usize,
    /// Seconds.
    pub seconds: f64,
}

/// What a [`CostModel`] can be seeded from and what it can be written to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stored {
    /// Verify passes: target forward, head, walk and commit.
    pub verify: Vec<StoredCell>,
    /// Drafting passes, with the top-K of their rows.
    pub draft: Vec<StoredCell>,
    /// Reading one committed token into the drafter's context, in a batch.
    pub read_token: Option<f64>,
}

/// A moving estimate of the seconds of verify and draft passes, from passes of this process.
///
/// A machine is not always equally fast: clocks throttle and neighbours come and go. What all passes share is kept apart
/// as the *tempo*, so that a slow minute in which only plain rounds were seen does not make trees look cheap.
#[derive(Debug, Clone, Default)]
pub struct CostModel {
    /// By the streams of a pass.
    verify: [Curve; CROWDS],
    draft: Curve,
    /// Logarithm of the seconds that reading one token takes, at tempo 1.
    read: Option<f64>,
    /// Logarithm of now ÷ the time to which the curves refer.
    tempo: f64,
}

impl CostModel {
    /// Takes the seconds of a verify pass of `rows` rows of `streams` streams.
    pub fn observe_verify(&mut self, streams: usize, rows: usize, context: usize, seconds: f64) {
        let surprise = self.verify[crowd(streams)].observe(rows, context, log(seconds) - self.tempo);
        self.tempo += TEMPO * surprise.unwrap_or(0.0);
    }

    /// Takes the seconds of a pass that drafted for `streams` streams.
    pub fn observe_draft(&mut self, streams: usize, context: usize, seconds: f64) {
        self.draft.observe(streams, context, log(seconds) - self.tempo);
    }

    /// Takes the seconds of reading `tokens` committed tokens into the drafter's context.
    pub fn observe_read(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            let now = log(seconds / tokens as f64) - self.tempo;
            let known = self.read.get_or_insert(now);
            *known += (now - *known) / 8.0;
        }
    }

    /// What things cost a round of `streams` streams at this context, now. Sizes beyond those that so many streams have run are
    /// taken to grow as they do for the nearest number that has.
    pub fn prices(&self, context: usize, streams: usize) -> Prices {
        let line = |crowd: usize| self.verify[crowd].line(context, self.tempo);
        let near = crowd(streams);
        let verify = line(near);
        let larger = |&other: &usize| self.verify[other].largest() > verify.largest();
        let other = (0..CROWDS).filter(larger).min_by_key(|&other| other.abs_diff(near));
        let verify = match other.filter(|&other| other != near) {
            Some(other) => verify.extended(&line(other)),
            None => verify,
        };
        Prices {
            verify,
            draft: self.draft.line(context, self.tempo),
            read: self.read.map_or(0.0, |log| (log + self.tempo).exp()),
        }
    }

    /// Verify passes observed in this bucket.
    pub(crate) fn verified(&self, streams: usize, rows: usize, context: usize) -> u32 {
        self.verify[crowd(streams)].samples(rows, context)
    }

    /// Everything that is known, at the present tempo.
    pub fn store(&self) -> Stored {
        let tempo = self.tempo.exp();
        let cells = |(streams, curve): (usize, &Curve)| -> Vec<StoredCell> {
            let cell = |(size, context, seconds, _): (f64, usize, f64, u32)| StoredCell {
                streams,
                size: size.round() as usize,
                context,
                seconds: seconds * tempo,
            };
            curve.cells().map(cell).collect()
        };
        let verify = self.verify.iter().enumerate().flat_map(|(crowd, curve)| cells((1 << crowd, curve)));
        let mut draft = cells((0, &self.draft));
        draft.iter_mut().for_each(|cell| cell.streams = cell.size);
        Stored { verify: verify.collect(), draft, read_token: self.read.map(|log| (log + self.tempo).exp()) }
    }

    /// A model that starts with what was stored. Cells whose seconds are not positive and finite are left out.
    pub fn seeded(stored: &Stored) -> CostModel {
        let mut model = CostModel::default();
        let is_valid = |cell: &&StoredCell| is_time(cell.seconds) && cell.size > 0;
        for cell in stored.verify.iter().filter(is_valid) {
            model.verify[crowd(cell.streams)].seed(cell.size, cell.context, log(cell.seconds));
        }
        for cell in stored.draft.iter().filter(is_valid) {
            model.draft.seed(cell.size, cell.context, log(cell.seconds));
        }
        model.read = stored.read_token.filter(|&seconds| is_time(seconds)).map(log);
        model
    }
}

/// What passes cost at one context, at one time.
#[derive(Debug, Clone)]
pub struct Prices {
    verify: Line,
    draft: Line,
    read: f64,
}

impl Prices {
    /// Seconds of a verify pass of `rows` rows; `None` before the first one.
    pub fn verify(&self, rows: usize) -> Option<f64> {
        self.verify.at(rows)
    }

    /// Seconds of drafting for `streams` streams, 0 for none; `None` before the first time.
    pub fn draft(&self, streams: usize) -> Option<f64> {
        self.draft.at(streams)
    }

    /// Seconds of reading `tokens` committed tokens into the drafter's context; 0 before the first time.
    pub fn read(&self, tokens: usize) -> f64 {
        self.read * tokens as f64
    }

    /// Least seconds of a verify pass of `rows` rows, as no more rows take less time.
    pub fn verify_floor(&self, rows: usize) -> f64 {
        self.verify.floor(rows)
    }

    /// Least seconds of drafting for `streams` streams, as no more streams take less time.
    pub fn draft_floor(&self, streams: usize) -> f64 {
        self.draft.floor(streams)
    }

    /// Largest verify pass that was observed, in rows.
    pub fn largest_verify(&self) -> f64 {
        self.verify.largest()
    }
}

fn is_time(seconds: f64) -> bool {
    seconds.is_finite() && seconds > 0.0
}

/// A clock may show no difference.
fn log(seconds: f64) -> f64 {
    seconds.max(1e-9).ln()
}
