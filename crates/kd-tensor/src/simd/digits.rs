//! Activations as whole numbers of 23 bits, for products with INT4 codes in whole numbers.
//!
//! A row is measured in a unit of its own, a power of two: 2^−21 of the power of two below its largest value. So an
//! activation is off by at most 2^−22 of the largest, and one of at least 2^−13 of it that was bf16 is exact. Three
//! digits of base 256 between −128 and 127 make up a number, and 32 products of a code and a number fit in 32 bits.

use super::lanes::{Digits, Lanes};
use super::{Kernel, Level};
use crate::buffer::Buffer;
use crate::int4::GROUP;

/// The digits of some rows.
#[derive(Debug)]
pub struct DigitRows {
    groups: usize,
    /// `[rows][groups]`.
    digits: Buffer,
    units: Vec<f32>,
}

/// Some rows, to be written.
#[derive(Debug)]
pub(super) struct DigitPart<'a> {
    digits: &'a mut [Digits],
    units: &'a mut [f32],
}

/// The digits of a row.
#[derive(Debug, Clone, Copy)]
pub struct DigitRow<'a> {
    pub(super) digits: &'a [Digits],
    /// What the numbers count; NaN if the row has a value that is not finite.
    pub(super) unit: f32,
}

/// Elements of a buffer that [`Digits`] take.
const WORDS: usize = size_of::<Digits>() / size_of::<f32>();

impl DigitRows {
    /// Rows of no meaning, to be written before they are read.
    pub(super) fn unwritten(rows: usize, groups: usize) -> Self {
        Self { groups, digits: Buffer::unwritten(rows * groups * WORDS), units: vec![f32::NAN; rows] }
    }

    /// The rows in parts of so many each.
    pub(super) fn parts(&mut self, rows: impl Iterator<Item = usize>) -> Vec<DigitPart<'_>> {
        let (mut digits, mut units) = (bytemuck::cast_slice_mut(&mut self.digits), self.units.as_mut_slice());
        let part = |rows: usize| DigitPart {
            digits: digits.split_off_mut(..rows * self.groups).expect("no more rows than there are"),
            units: units.split_off_mut(..rows).expect("no more rows than there are"),
        };
        rows.map(part).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    pub(super) fn row(&self, row: usize) -> DigitRow<'_> {
        let groups = row * self.groups..(row + 1) * self.groups;
        DigitRow { digits: &bytemuck::cast_slice(&self.digits)[groups], unit: self.units[row] }
    }
}

impl DigitPart<'_> {
    /// Writes the digits of rows `x` of one length, a multiple of 32.
    ///
    /// # Panics
    /// If they are not as many as the part has.
    pub(super) fn write(self, level: Level, x: &[&[f32]]) {
        assert_eq!(x.len(), self.units.len(), "rows of the part");
        level.run(Digitize { x, to: self });
    }
}

struct Digitize<'a, 'x> {
    x: &'a [&'x [f32]],
    to: DigitPart<'a>,
}

impl Kernel for Digitize<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _lanes: L) {
        let mut out = self.to.digits.iter_mut();
        for (x, to) in self.x.iter().zip(self.to.units) {
            let (inverse, unit) = units_of(x);
            *to = unit;
            for (x, digits) in x.as_chunks::<GROUP>().0.iter().zip(&mut out) {
                digits.start = write_digits(x, inverse, &mut digits.bytes).wrapping_mul(-8);
            }
        }
    }
}

/// One over the unit of a row, and the unit.
#[inline(always)]
fn units_of(x: &[f32]) -> (f32, f32) {
    const INFINITE: u32 = 0xff;
    // The bits of magnitudes are in the order of the magnitudes, NaN last.
    let largest = x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
    // Both powers of two must be normal numbers.
    let exponent = (largest >> 23).max(22);
    if exponent == INFINITE {
        return (0.0, f32::NAN);
    }
    (f32::from_bits((2 * 127 + 21 - exponent) << 23), f32::from_bits((exponent - 21) << 23))
}

/// Writes the digits of a group and returns the sum of its numbers.
#[inline(always)]
fn write_digits(x: &[f32; GROUP], inverse: f32, digits: &mut [[u8; GROUP]; 3]) -> i32 {
    // 1.5 · 2^23: added to a number below 2^22, it leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // 128 in every digit: what then remains of a digit is its byte with the top bit turned over.
    const OFFSET: i32 = 0x80_8080;
    // Only a row that is not finite, whose results are NaN whatever its digits, can wrap around.
    let mut sum = 0i32;
    for (i, x) in x.iter().enumerate() {
        let number = ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        sum = sum.wrapping_add(number);
        let bytes = number.wrapping_add(OFFSET) ^ OFFSET;
        digits[0][i] = bytes as u8;
        digits[1][i] = (bytes >> 8) as u8;
        digits[2][i] = (bytes >> 16) as u8;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digits(x: &[f32]) -> DigitRows {
        let mut rows = DigitRows::unwritten(1, x.len() / GROUP);
        rows.parts([1].into_iter()).remove(0).write(Level::best(), &[x]);
        rows
    }

    fn numbers(x: &[f32]) -> Vec<f64> {
        let rows = digits(x);
        let row = rows.row(0);
        let value = |i: usize| {
            let [low, middle, high] =
                row.digits[i / GROUP].bytes.map(|digits| f64::from(digits[i % GROUP] as i8));
            f64::from(row.unit) * (low + 256.0 * (middle + 256.0 * high))
        };
        for (group, &Digits { start, .. }) in row.digits.iter().enumerate() {
            let sum: f64 = (group * GROUP..(group + 1) * GROUP).map(value).sum();
            assert_eq!(f64::from(start) * f64::from(row.unit), -8.0 * sum, "group {group}");
        }
        (0..x.len()).map(value).collect()
    }

    proptest! {
        #[test]
        fn numbers_are_off_by_less_than_their_last_place(
            values in prop::collection::vec(-1f32..=1.0, 64),
            power in -100i32..=100,
        ) {
            let x: Vec<f32> = values.iter().map(|v| v * 2f32.powi(power)).collect();
            let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (x, number) in x.iter().zip(numbers(&x)) {
                prop_assert!((f64::from(*x) - number).abs() <= f64::from(largest) * 2f64.powi(-22));
            }
        }
    }

    #[test]
    fn the_largest_value_is_a_number_on_either_side() {
        for largest in [1.0, 2.0 - f32::EPSILON, f32::MAX, f32::MIN_POSITIVE] {
            for sign in [-1.0, 1.0] {
                let mut x = [0.0; GROUP];
                x[3] = sign * largest;
                let error = (numbers(&x)[3] - f64::from(x[3])).abs();
                assert!(error <= f64::from(largest) * 2f64.powi(-22), "{largest}: off by {error}");
            }
        }
    }

    /// A damaged row must not look like a plausible one.
    #[test]
    fn a_value_that_is_not_finite_makes_the_row_nan() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; GROUP];
            x[31] = value;
            assert!(digits(&x).row(0).unit.is_nan(), "{value}");
        }
    }
}
