//! Several measurements of one thing.

use serde::{Deserialize, Serialize};

/// Measurements in the order in which they were made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

/// How often repetitions are drawn anew for an interval, with which key, and the shares of these draws beyond either end.
const RESAMPLES: usize = 1000;
const SEED: u64 = 7;
const TAILS: [f64; 2] = [0.025, 0.975];

/// Repetitions below which an interval says nothing of chance: of four, the draws are too few.
pub(crate) const FEWEST: usize = 5;

/// A quotient of two medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// Not a number where a measurement was none.
    pub(crate) value: f64,
    /// Repetitions of both.
    pub(crate) count: usize,
    /// Where it lies with a probability of 95 %: percentiles of the quotients of repetitions drawn anew (Efron's bootstrap).
    pub(crate) interval: [f64; 2],
}

impl Ratio {
    /// Whether it is under `limit` beyond what chance explains. `None` if that cannot be said: it is no number, or there are
    /// fewer than [`FEWEST`] repetitions.
    pub(crate) fn misses(&self, limit: f64) -> Option<bool> {
        let known = self.count >= FEWEST && !self.value.is_nan() && !self.interval[1].is_nan();
        known.then_some(self.interval[1] < limit)
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, high] = self.interval;
        match self.count {
            few @ ..FEWEST => f.pad(&format!("{:.3} (of {few})", self.value)),
            _ => f.pad(&format!("{:.3} ({low:.2}–{high:.2})", self.value)),
        }
    }
}

/// Four significant digits: a clock knows no more, whatever the unit.
pub(crate) fn significant(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

impl Samples {
    /// The middle one; NaN if there are none.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Distance of the quartiles ÷ the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median()
    }

    /// Median ÷ the median of `other`, measured in turns with these: what one repetition disturbs, it disturbs in both. `None`
    /// unless both were measured.
    pub(crate) fn ratio(&self, other: &Samples) -> Option<Ratio> {
        let count = self.0.len().min(other.0.len());
        let of = |picked: &[usize]| {
            let [ours, theirs] =
                [self, other].map(|samples| Samples(picked.iter().map(|&i| samples.0[i]).collect()).median());
            ours / theirs
        };
        let all: Vec<usize> = (0..count).collect();
        let mut state = SEED;
        let mut pick = |_| -> usize {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as usize) % count
        };
        let drawn = (0..RESAMPLES).map(|_| of(&(0..count).map(&mut pick).collect::<Vec<_>>()));
        (count > 0).then(|| {
            let drawn = Samples(drawn.collect());
            Ratio { value: of(&all), count, interval: TAILS.map(|share| drawn.quantile(share)) }
        })
    }

    /// Between the two nearest measurements on the line through them.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let at = share * last as f64;
        let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }
}

#[cfg(test)]
mod tests {
    use super::{FEWEST, Samples, significant};

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(Samples(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(Samples(vec![5.0, 1.0, 2.0, 3.0, 4.0]).spread(), 2.0 / 3.0);
        assert!(Samples::default().median().is_nan());
    }

    #[test]
    fn a_ratio_knows_what_chance_explains() {
        let plain = Samples(vec![100.0, 110.0, 90.0, 105.0, 95.0, 102.0, 98.0]);
        let times = |share: f64| Samples(plain.0.iter().map(|rate| share * rate).collect());
        // What disturbs both alike is no doubt, where the same repetitions are compared.
        let ratio = times(0.9).ratio(&plain).expect("seven pairs");
        assert!((ratio.value - 0.9).abs() < 1e-12 && ratio.misses(0.97) == Some(true), "{ratio:?}");
        assert_eq!(ratio.misses(0.89), Some(false), "{ratio:?}");
        // A median that only one of seven disturbed repetitions makes is no miss.
        let noisy = Samples(vec![80.0, 130.0, 75.0, 104.0, 96.0, 125.0, 70.0]);
        let ratio = noisy.ratio(&plain).expect("seven pairs");
        assert!(ratio.value < 0.97 && ratio.misses(0.97) == Some(false), "{ratio:?}");
        assert_eq!(Samples::default().ratio(&plain), None);
    }

    #[test]
    fn a_few_repetitions_say_nothing_of_chance() {
        for count in 1..8 {
            let ratio = Samples(vec![80.0; count]).ratio(&Samples(vec![100.0; count])).expect("pairs");
            assert_eq!(ratio.misses(0.97), (count >= FEWEST).then_some(true), "{ratio:?}");
            assert_eq!(ratio.to_string().contains(&format!("(of {count})")), count < FEWEST, "{ratio}");
        }
    }

    #[test]
    fn a_ratio_that_is_no_number_is_not_met() {
        for rates in [[0.0; 7], [f64::NAN; 7], [-f64::NAN; 7], [f64::INFINITY; 7]] {
            let ratio = Samples(rates.to_vec()).ratio(&Samples(rates.to_vec())).expect("seven pairs");
            assert_eq!(ratio.misses(0.97), None, "{ratio:?}");
        }
    }

    #[test]
    fn slow_machines_keep_their_digits() {
        assert_eq!([123_456.0, 98.764, 0.123_45, 0.0].map(significant), [123_500.0, 98.76, 0.1235, 0.0]);
        assert!(significant(f64::NAN).is_nan());
    }
}
