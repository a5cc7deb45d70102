//! Several measurements of one thing.

use serde::{Deserialize, Serialize};

/// Measurements in the order in which they were made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
    /// The middle one; NaN if there are none.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Distance of the quartiles ÷ the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median()
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
    use super::Samples;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(Samples(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(Samples(vec![5.0, 1.0, 2.0, 3.0, 4.0]).spread(), 2.0 / 3.0);
        assert!(Samples::default().median().is_nan());
    }
}
