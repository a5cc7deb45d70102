//! Rotary position embeddings with YaRN frequencies, in interleaved and half-split form.

use std::f64::consts::PI;

/// Rows back to which a row's position is looked for.
const NEAR: usize = 32;
/// Positions that share the angle of the first of them.
const STRIDE: usize = 64;

/// YaRN's frequency interpolation (Peng et al., arXiv 2309.00071, §3.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Context extension factor.
    pub factor: f64,
    /// Positions that the model was first trained on.
    pub original_max_position: f64,
    /// Rotations within the original context above which a frequency stays as it is.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by the factor.
    pub beta_slow: f64,
}

/// Frequencies of one rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    inv_freq: Vec<f64>,
    gain: f64,
    /// (cos, sin) of positions 0 … 63, pair after pair of each.
    near: Vec<(f64, f64)>,
}

impl Rope {
    /// An embedding over `dim` values (even). `gain` multiplies cos and sin.
    pub fn new(dim: usize, theta: f64, yarn: Option<Yarn>, gain: f64) -> Self {
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
        let inv_freq: Vec<f64> = match yarn {
            None => (0..dim / 2).map(plain).collect(),
            Some(yarn) => {
                let (low, high) = yarn.blend_range(dim, theta);
                let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                (0..dim / 2).map(|i| plain(i) * (1.0 - ramp(i) + ramp(i) / yarn.factor)).collect()
            }
        };
        let near = (0..STRIDE).flat_map(|position| turns(&inv_freq, position)).collect();
        Self { inv_freq, gain, near }
    }

    /// Radians a position for each pair, `dim / 2` of them.
    pub fn inv_freq(&self) -> &[f64] {
        &self.inv_freq
    }

    /// What cos and sin are multiplied by.
    pub fn gain(&self) -> f64 {
        self.gain
    }

    /// cos and sin at each of the positions, computed in f64: long contexts leave f32 few digits of the angle.
    ///
    /// A position is a multiple of 64 and the rest, and its angle the sum of two: of the first there are few among
    /// neighbours, and those of the second are known. What a position gets depends on it alone.
    pub fn table(&self, positions: impl IntoIterator<Item = usize>) -> RopeTable {
        let pairs = self.inv_freq.len();
        let (mut cos_sin, mut seen): (Vec<(f32, f32)>, Vec<usize>) = (Vec::new(), Vec::new());
        let (mut far, mut far_from) = (Vec::new(), None);
        for position in positions {
            // Rows of a tree share few positions, and neighbours are likely to share them.
            if let Some(back) = seen.iter().rev().take(NEAR).position(|&other| other == position) {
                let start = (seen.len() - 1 - back) * pairs;
                cos_sin.extend_from_within(start..start + pairs);
            } else {
                let (from, rest) = (position / STRIDE * STRIDE, position % STRIDE);
                if far_from != Some(from) {
                    far.clear();
                    far.extend(turns(&self.inv_freq, from));
                    far_from = Some(from);
                }
                let near = &self.near[rest * pairs..][..pairs];
                cos_sin.extend(far.iter().zip(near).map(|(&(cos, sin), &(c, s)): (&(f64, f64), _)| {
                    (((cos * c - sin * s) * self.gain) as f32, ((sin * c + cos * s) * self.gain) as f32)
                }));
            }
            seen.push(position);
        }
        RopeTable { pairs, cos_sin }
    }
}

/// (cos, sin) of the angles at `position`.
fn turns(inv_freq: &[f64], position: usize) -> impl Iterator<Item = (f64, f64)> {
    inv_freq.iter().map(move |freq| {
        let (sin, cos) = (position as f64 * freq).sin_cos();
        (cos, sin)
    })
}

impl Yarn {
    /// The pair indices between which frequencies are blended.
    fn blend_range(&self, dim: usize, theta: f64) -> (f64, f64) {
        let pair = |rotations: f64| {
            dim as f64 * (self.original_max_position / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(dim as f64 - 1.0);
        // The published code widens an empty range by this much; every index then falls on one side of it.
        (low, if low == high { high + 0.001 } else { high })
    }
}

/// cos and sin for some rows.
#[derive(Debug, Clone)]
pub struct RopeTable {
    pairs: usize,
    cos_sin: Vec<(f32, f32)>,
}

impl RopeTable {
    fn row(&self, row: usize) -> &[(f32, f32)] {
        &self.cos_sin[row * self.pairs..][..self.pairs]
    }

    /// (cos, sin) of each pair, row after row.
    pub fn values(&self) -> &[(f32, f32)] {
        &self.cos_sin
    }

    /// Rotates the pairs `(2i, 2i + 1)` of `x` by row `row`'s angles, as the target does.
    pub fn rotate_interleaved(&self, row: usize, x: &mut [f32]) {
        for (pair, &(cos, sin)) in x.chunks_exact_mut(2).zip(self.row(row)) {
            let (a, b) = (pair[0], pair[1]);
            (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
        }
    }

    /// Rotates the pairs `(i, i + dim / 2)` of `x` by row `row`'s angles, as the drafter does.
    pub fn rotate_half_split(&self, row: usize, x: &mut [f32]) {
        let (first, second) = x.split_at_mut(self.pairs);
        for ((a, b), &(cos, sin)) in first.iter_mut().zip(second).zip(self.row(row)) {
            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_rotate_by_the_same_angle() {
        let rope = Rope::new(8, 10000.0, None, 1.0);
        let table = rope.table([0, 5]);
        let mut x = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        table.rotate_interleaved(0, &mut x);
        assert_eq!(x, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "position 0 turns nothing");
        table.rotate_interleaved(1, &mut x);
        let mut y = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        table.rotate_half_split(1, &mut y);
        for i in 0..4 {
            let angle = 5.0 * 10000f64.powf(-(i as f64) / 4.0);
            assert!((f64::from(x[2 * i]) - angle.cos()).abs() < 1e-6);
            assert_eq!((x[2 * i], x[2 * i + 1]), (y[i], y[i + 4]));
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_slows_slow_ones() {
        let yarn = Yarn { factor: 64.0, original_max_position: 4096.0, beta_fast: 32.0, beta_slow: 1.0 };
        let (plain, scaled) = (Rope::new(64, 50000.0, None, 1.0), Rope::new(64, 50000.0, Some(yarn), 1.0));
        assert_eq!(plain.inv_freq()[0], scaled.inv_freq()[0]);
        let last = |r: &Rope| *r.inv_freq().last().unwrap();
        assert!((last(&plain) / last(&scaled) - 64.0).abs() < 1e-9);
    }
}
