//! What folded scales need beside packed weights (docs/formats.md, "Experts on the GPU"): the exponent of each row, and how large
//! what lies between the products can become.
//!
//! This is the specification; the device does the same with the `moe_exponents` kernels, in whole numbers, so that both agree.

use half::{bf16, f16};
use kd_tensor::int4::{CODES_PER_WORD, GROUP};
use kd_tensor::{Int4Matrix, WeightRows};

use super::layout::{LayoutError, check_pair, paired};

/// Least and largest exponent of a row: with these, all factors are normal f32.
const EXPONENTS: std::ops::RangeInclusive<u8> = 15..=245;
/// Digits of a bf16 after the first.
const DIGITS: i32 = 7;
/// The bias of a bf16's exponent.
const BIAS: i32 = 127;
/// Added to a row's exponent to give that which brings its scales to f16: the largest to [2^15, 2^16).
const LIFT: i32 = 142;
/// The bound of an expert whose products are all 0: that of the smallest weights that there are.
pub const LEAST_BOUND: i32 = -2 * (BIAS + DIGITS - 1);

/// The biased exponent of a row's largest scale, 15 to 245.
pub fn row_exponent(scales: &[bf16]) -> u8 {
    let largest = scales.iter().map(|scale| (scale.to_bits() >> DIGITS & 0xff) as u8).max();
    largest.unwrap_or_default().clamp(*EXPONENTS.start(), *EXPONENTS.end())
}

/// The exponents of the rows of down, in order.
pub fn down_exponents(down: &Int4Matrix) -> Vec<u8> {
    (0..down.rows()).map(|row| row_exponent(down.scales(row))).collect()
}

/// Those of gate and up in the order of packed rows.
///
/// # Errors
/// Matrices of different shapes.
pub fn gate_up_exponents(gate: &Int4Matrix, up: &Int4Matrix) -> Result<Vec<u8>, LayoutError> {
    check_pair(gate, up)?;
    let exponent = |row: usize| {
        let (upper, from) = paired(row);
        row_exponent(if upper { up } else { gate }.scales(from))
    };
    Ok((0..2 * gate.rows()).map(exponent).collect())
}

/// At least the logarithm to base 2 of |gate x| · |up x| / |x|² of any row of gate and the row of up that it meets, by the inequality
/// of Cauchy and Schwarz; the largest over the rows.
///
/// # Errors
/// Matrices of different shapes.
pub fn hidden_bound(gate: &Int4Matrix, up: &Int4Matrix) -> Result<i32, LayoutError> {
    check_pair(gate, up)?;
    // Half the sum, rounded up: of the logarithms of squares.
    let of = |row: usize| Some((square(gate, row)? + square(up, row)? + 1) >> 1);
    Ok((0..gate.rows()).filter_map(of).fold(LEAST_BOUND, i32::max))
}

/// At least the logarithm of the sum of the squares of a row's weights; nothing for a row of zeros. In units of 2^(2 (e - 7)), where e
/// is the row's exponent, each group's share is a whole number, rounded up.
fn square(matrix: &Int4Matrix, row: usize) -> Option<i32> {
    let exponent = row_exponent(matrix.scales(row));
    let groups = matrix.words(row).chunks(GROUP / CODES_PER_WORD).zip(matrix.scales(row));
    let share = |(words, scale): (&[i32], &bf16)| {
        let field = (scale.to_bits() >> DIGITS & 0xff) as u8;
        let digits = u64::from(scale.to_bits() & 0x7f | u16::from(field > 0) << DIGITS);
        let codes = words.iter().flat_map(|word| (0..CODES_PER_WORD).map(move |i| word >> (4 * i) & 15));
        let squares: u64 = codes.map(|code| u64::from((code - 8).unsigned_abs().pow(2))).sum();
        let shift = (2 * u32::from(exponent - field.clamp(1, exponent))).min(63);
        let own = squares * digits * digits;
        (own >> shift) + u64::from(own & ((1 << shift) - 1) != 0)
    };
    let sum: u64 = groups.map(share).sum();
    let up = if sum > 1 { u64::BITS - (sum - 1).leading_zeros() } else { 0 };
    (sum > 0).then(|| 2 * (i32::from(exponent) - BIAS - DIGITS) + up.cast_signed())
}

/// A code and its scale as the f16 that the tensor core multiplies: `(code − 8) · scale · 2^(118 − exponent)`, exactly where the scale
/// is at least 2⁻⁸ of the row's largest, else rounded to 2⁻²⁴. One multiply-add, in which the code is the subnormal `code · 2⁻²⁴`.
pub fn folded(code: u8, scale: bf16, exponent: u8) -> f16 {
    let lifted = f16::from_f64(scale.to_f64() * 2f64.powi(LIFT - i32::from(exponent)));
    let offset = f16::from_f64(lifted.to_f64() * -(2f64.powi(-21)));
    f16::from_f64(f64::from(code) * 2f64.powi(-24) * lifted.to_f64() + offset.to_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(words: Vec<i32>, scales: Vec<bf16>) -> Int4Matrix {
        Int4Matrix::new(1, 8 * words.len(), words, scales).expect("whole groups")
    }

    /// What a weight is without any rounding.
    fn weight(code: u8, scale: bf16) -> f64 {
        (f64::from(code) - 8.0) * scale.to_f64()
    }

    /// Finite scales of all sizes: zero, negative, subnormal, tiny, huge.
    fn scale() -> impl Strategy<Value = bf16> {
        any::<u16>().prop_map(bf16::from_bits).prop_filter("finite", |scale| scale.is_finite())
    }

    proptest! {
        /// The packed exponent and the kernel's arithmetic give back each weight, exactly in the window of the row's largest scale.
        #[test]
        fn a_folded_weight_is_the_weight(scales in prop::collection::vec(scale(), 1..6), code in 0u8..16) {
            let exponent = row_exponent(&scales);
            for scale in &scales {
                let field = (scale.to_bits() >> 7 & 0xff) as i32;
                if field > i32::from(*EXPONENTS.end()) {
                    continue; // larger than 2^118: no f16 holds it
                }
                let lowered = folded(code, *scale, exponent).to_f64() * 2f64.powi(i32::from(exponent) - 118);
                let error = (lowered - weight(code, *scale)).abs();
                if field + 8 >= i32::from(exponent) && field >= 15 {
                    prop_assert_eq!(lowered, weight(code, *scale), "{} of {}", scale, exponent);
                }
                prop_assert!(error <= 2f64.powi(-24 + i32::from(exponent) - 118), "{error:e}");
            }
        }

        /// The bound holds for any row of values, and rounding up costs no more than one and a half binades.
        #[test]
        fn products_stay_under_the_bound(
            codes in prop::collection::vec(any::<i32>(), 8),
            scales in prop::collection::vec((-20i32..20, 128u16..256), 4),
            x in prop::collection::vec(-1.0f64..1.0, 32),
        ) {
            let scales: Vec<bf16> = scales.iter().map(|(e, digits)| bf16::from_f64(f64::from(*digits) * 2f64.powi(*e))).collect();
            let (gate, up) = (row(codes[..4].to_vec(), scales[..1].to_vec()), row(codes[4..].to_vec(), scales[1..2].to_vec()));
            let bound = hidden_bound(&gate, &up).expect("a pair");
            let weights = |matrix: &Int4Matrix| -> Vec<f64> {
                (0..32).map(|k| weight((matrix.words(0)[k / 8] >> (4 * (k % 8)) & 15) as u8, matrix.scales(0)[0])).collect()
            };
            let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (gate, up) = (weights(&gate), weights(&up));
            let limit = 2f64.powi(bound);
            prop_assert!((dot(&gate, &x) * dot(&up, &x)).abs() <= limit * norm(&x));
            let exact = (norm(&gate) * norm(&up)).sqrt();
            prop_assert!(exact <= limit && limit <= 2f64.powf(1.5) * exact * 1.0001 || exact == 0.0, "{exact:e} {limit:e}");
        }
    }

    #[test]
    fn rows_of_zeros_and_ends_of_the_range_have_exponents_and_bounds() {
        let zeros = row(vec![0; 4], vec![bf16::ZERO]);
        assert_eq!(row_exponent(zeros.scales(0)), 15);
        assert_eq!(hidden_bound(&zeros, &zeros), Ok(LEAST_BOUND));
        // Codes of 8 are weights of 0, whatever the scale.
        let eights = row(vec![0x8888_8888u32.cast_signed(); 4], vec![bf16::ONE]);
        assert_eq!(hidden_bound(&eights, &eights), Ok(LEAST_BOUND));
        assert_eq!(row_exponent(&[bf16::MAX]), 245);
        assert_eq!(row_exponent(&[bf16::MIN_POSITIVE_SUBNORMAL, -bf16::ONE]), 127);
        // 32 weights of -8: a norm of 8 sqrt(32), whose square is 2^11.
        let ones = row(vec![0; 4], vec![bf16::ONE]);
        assert_eq!(hidden_bound(&ones, &ones), Ok(11));
    }

    /// docs/formats.md: a row of gate and the row of up lie eight apart.
    #[test]
    fn exponents_lie_in_the_order_of_packed_rows() {
        let matrix = |of: fn(usize) -> f32| {
            let scales = (0..16 * 2).map(|i| bf16::from_f32(if i % 2 == 0 { 0.0 } else { of(i / 2) }));
            Int4Matrix::new(16, 64, vec![0; 16 * 8], scales.collect::<Vec<_>>()).expect("whole groups")
        };
        let (gate, up) = (matrix(|row| 2f32.powi(row as i32)), matrix(|row| 2f32.powi(-(row as i32))));
        let exponents = gate_up_exponents(&gate, &up).expect("a pair");
        assert_eq!((exponents[3], exponents[8 + 3]), (127 + 3, 127 - 3));
        assert_eq!((exponents[16 + 3], exponents[24 + 3]), (127 + 11, 127 - 11));
        assert_eq!(down_exponents(&gate)[11], 127 + 11);
        assert!(gate_up_exponents(&gate, &row(vec![0; 4], vec![bf16::ONE])).is_err());
    }
}
