//! Seconds by size and context, as far as they are known.

use super::buckets::{CONTEXTS, SIZES, bucket, context_bucket, context_edge};

/// Observations of a cell before it counts as settled.
const SETTLED: u32 = 8;
/// A cell that was not seen for so many observations of its curve is measured anew rather than smoothed.
const STALE: u64 = 8;
/// How much of one surprise is believed, as logarithms: what disturbs a measurement makes it slower.
const SURPRISE: [f64; 2] = [-std::f64::consts::LN_2, 0.25];

/// What is known of one bucket of sizes and contexts.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Natural logarithm of the seconds at tempo 1.
    log: f64,
    /// Mean size of what was observed, since a bucket is wider than one size.
    size: f64,
    samples: u32,
    /// How much slower than known the last observation was, as a logarithm.
    surprise: f64,
    /// Number of the curve's observation that was the last one here.
    seen: u64,
}

/// A moving estimate of seconds by size and context.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    cells: Vec<[Cell; CONTEXTS]>,
    observed: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self { cells: vec![Default::default(); SIZES], observed: 0 }
    }
}

impl Curve {
    /// Takes an observation, `log` being the logarithm of its seconds at tempo 1. Returns what the machine's tempo
    /// should learn from it: how much slower it was than a settled cell that is seen all the time had it.
    pub(crate) fn observe(&mut self, size: usize, context: usize, log: f64) -> Option<f64> {
        self.observed += 1;
        let cell = &mut self.cells[bucket(size)][context_bucket(context)];
        let gap = self.observed - cell.seen;
        let surprise = (log - cell.log).clamp(SURPRISE[0], SURPRISE[1]);
        cell.samples += 1;
        cell.seen = self.observed;
        let settled = cell.samples > SETTLED;
        match cell.samples {
            1 => (cell.log, cell.size) = (log, size as f64),
            // The first ones meet cold memory.
            2 | 3 => cell.log = cell.log.min(log),
            // The tempo follows the cells that are seen all the time; they themselves move slowly beside it.
            _ if settled && gap <= STALE => cell.log += surprise / 50.0,
            // A cell that is seen now and then cannot tell a disturbance from a change until it is seen again.
            _ => cell.log += surprise.min(cell.surprise.max(0.0)) / 3.0,
        }
        cell.surprise = surprise;
        cell.size += (size as f64 - cell.size) / 8.0;
        (settled && gap <= STALE).then_some(surprise)
    }

    /// Takes over what another process measured: as a cell of a few observations.
    pub(crate) fn seed(&mut self, size: usize, context: usize, log: f64) {
        self.cells[bucket(size)][context_bucket(context)] =
            Cell { log, size: size as f64, samples: SETTLED, surprise: 0.0, seen: self.observed };
    }

    /// Observations at this size and context.
    pub(crate) fn samples(&self, size: usize, context: usize) -> u32 {
        self.cells[bucket(size)][context_bucket(context)].samples
    }

    /// Largest size that was observed in any context, 0 if none was.
    pub(crate) fn largest(&self) -> f64 {
        let seen = |contexts: &[Cell; CONTEXTS]| contexts.iter().find(|c| c.samples > 0).map(|c| c.size);
        self.cells.iter().rev().find_map(seen).unwrap_or(0.0)
    }

    /// All that was observed: mean size, longest context of the bucket in tokens, seconds at tempo 1, observations.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (f64, usize, f64, u32)> + '_ {
        let all = self.cells.iter().flat_map(|contexts| contexts.iter().enumerate());
        all.filter(|(_, cell)| cell.samples > 0)
            .map(|(context, cell)| (cell.size, context_edge(context), cell.log.exp(), cell.samples))
    }

    /// The curve over sizes at this context, in seconds at `tempo` (a logarithm): every size observed in any context,
    /// carried over to this one.
    pub(crate) fn line(&self, context: usize, tempo: f64) -> Line {
        let context = context_bucket(context);
        let mut points: Vec<(f64, f64)> = Vec::new();
        for cell in self.cells.iter().filter_map(|contexts| self.carried(contexts, context)) {
            let mut seconds = (cell.log + tempo).exp();
            let Some(&(size, smaller)) = points.last() else {
                points.push((cell.size, seconds));
                continue;
            };
            // No row takes longer in a larger pass: a single measurement that says so met something else.
            if cell.samples == 1 {
                seconds = seconds.min(smaller * cell.size / size);
            }
            if cell.size > size {
                points.push((cell.size, seconds));
            }
        }
        Line(points)
    }

    /// A bucket in this context, or from the nearest one, as much slower as other sizes are here than there.
    fn carried(&self, contexts: &[Cell; CONTEXTS], context: usize) -> Option<Cell> {
        let nearest = (0..CONTEXTS)
            .filter(|&other| contexts[other].samples > 0)
            .min_by_key(|&other| other.abs_diff(context))?;
        let cell = contexts[nearest];
        let growth = if nearest == context { 0.0 } else { self.growth(nearest, context) };
        Some(Cell { log: cell.log + growth, ..cell })
    }

    /// Logarithm of how much longer a pass takes in context `to` than in `from`: the mean over sizes seen in both.
    fn growth(&self, from: usize, to: usize) -> f64 {
        let both = self.cells.iter().filter(|c| c[from].samples > 0 && c[to].samples > 0);
        let (sum, count) = both.fold((0.0, 0), |(sum, n), c| (sum + c[to].log - c[from].log, n + 1));
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    }
}

/// Seconds over sizes in one context: points, sizes ascending.
#[derive(Debug, Clone)]
pub(crate) struct Line(Vec<(f64, f64)>);

impl Line {
    /// Seconds of a size: between sizes that were observed on the line through them, beyond them a guess. `None` as
    /// long as nothing was observed; 0 for size 0.
    pub(crate) fn at(&self, size: usize) -> Option<f64> {
        let at = size as f64;
        let above = self.0.partition_point(|&(size, _)| size < at);
        let through = |(x0, y0): (f64, f64), (x1, y1): (f64, f64)| y0 + (y1 - y0) * (at - x0) / (x1 - x0);
        match *self.0 {
            _ if size == 0 => Some(0.0),
            [] => None,
            // One point says nothing of the slope; between constant and proportional lies the square root.
            [(x, y)] => Some(y * (at / x).sqrt()),
            [first, second, ..] if above == 0 => {
                Some(through(first, second).clamp(first.1 * (at / first.0).min(1.0), first.1))
            }
            // A flat stretch does not go on for ever.
            [.., before, last] if above == self.0.len() => {
                Some(through(before, last).max(last.1 * (at / last.0).sqrt().sqrt()))
            }
            _ => Some(through(self.0[above - 1], self.0[above])),
        }
    }

    /// This line, and beyond its end the other one as far as it goes, as much higher or lower as it is there.
    pub(crate) fn extended(mut self, other: &Line) -> Line {
        let end = self.largest();
        let scale = self
            .0
            .last()
            .map_or(1.0, |&(_, seconds)| seconds / other.at(end.ceil() as usize).unwrap_or(seconds));
        self.0.extend(
            other.0.iter().filter(|&&(size, _)| size > end).map(|&(size, seconds)| (size, scale * seconds)),
        );
        self
    }

    /// Seconds that this size takes at least, since no more rows take less: what smaller sizes took, 0 if none was
    /// observed.
    pub(crate) fn floor(&self, size: usize) -> f64 {
        let smaller = self.0.iter().take_while(|&&(other, _)| other <= size as f64);
        smaller.map(|&(_, seconds)| seconds).fold(0.0, f64::max)
    }

    /// Largest size that was observed.
    pub(crate) fn largest(&self) -> f64 {
        self.0.last().map_or(0.0, |&(size, _)| size)
    }
}
