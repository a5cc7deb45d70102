//! Comparing device results with those of the CPU.

use half::bf16;

use super::Written;

/// How far a bf16 result may be from the f32 one: `expected * RELATIVE + slack`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// The largest error so far, as a fraction of the bound.
    pub worst: f64,
}

impl Bound {
    /// Rounding to bf16 (8 significant bits, so half a unit in the last place is at most 2^-8 of the value) and the f32
    /// arithmetic before it.
    const RELATIVE: f32 = 1.0 / 256.0 + 1.0 / 65_536.0;
    /// Half the smallest subnormal of bf16.
    const ABSOLUTE: f32 = 4.6e-41;

    /// Takes in one value. `slack` is the absolute error that the f32 arithmetic may make before the result is rounded:
    /// 0 unless terms can cancel.
    ///
    /// # Errors
    /// A value over the bound.
    pub fn check(&mut self, found: bf16, expected: f32, slack: f32) -> Result<(), String> {
        let error =
            (found.to_f32() - expected).abs() / (expected.abs() * Self::RELATIVE + Self::ABSOLUTE + slack);
        if error.is_nan() || error > 1.0 {
            return Err(format!("{found}, not {expected}"));
        }
        self.worst = self.worst.max(f64::from(error));
        Ok(())
    }

    /// Takes in a row; `slack` gives that of each element.
    ///
    /// # Errors
    /// The first value over the bound, with its place, or a row of another length.
    pub fn row(
        &mut self,
        row: usize,
        found: &[bf16],
        expected: &[f32],
        slack: impl Fn(usize) -> f32,
    ) -> Result<(), String> {
        if found.len() != expected.len() {
            return Err(format!("row {row} has {} values, not {}", found.len(), expected.len()));
        }
        for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
            self.check(*found, *expected, slack(column))
                .map_err(|what| format!("element {column} of row {row}: {what}"))?;
        }
        Ok(())
    }
}

/// The first index at which the lists differ; the length of the shorter one if it is a part of the other.
pub fn first_difference<T: PartialEq>(left: &[T], right: &[T]) -> Option<usize> {
    let shorter = (left.len() != right.len()).then_some(left.len().min(right.len()));
    left.iter().zip(right).position(|(left, right)| left != right).or(shorter)
}

/// For a kernel that must give the bits of others: the first half of `written` is its own outputs, the second half theirs. No error
/// is allowed.
///
/// # Errors
/// The first difference, or outputs that are not pairs.
pub fn same_bits(written: &[Written]) -> Result<f64, String> {
    let (own, others) = written.split_at(written.len() / 2);
    if own.is_empty() || own.len() != others.len() {
        return Err("outputs are missing".to_owned());
    }
    for (own, other) in own.iter().zip(others) {
        if let Some(byte) = first_difference(&own.bytes, &other.bytes) {
            let (row, at) = (byte / own.row_bytes.max(1), byte % own.row_bytes.max(1));
            return Err(format!("`{}`: byte {at} of row {row} is not that of the launches apart", own.name));
        }
    }
    Ok(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_bit_and_a_missing_output_are_differences() {
        let written = |bytes: &[u8]| Written { name: "y", row_bytes: 2, bytes: bytes.to_vec() };
        assert_eq!(same_bits(&[written(&[1, 2, 3]), written(&[1, 2, 3])]), Ok(0.0));
        let message = same_bits(&[written(&[1, 2, 3]), written(&[1, 2, 4])]).expect_err("another");
        assert!(message.contains("byte 0 of row 1"), "{message}");
        assert!(same_bits(&[written(&[1]), written(&[1, 2])]).is_err());
        assert!(same_bits(&[]).is_err() && same_bits(&[written(&[1])]).is_err());
    }

    #[test]
    fn a_nan_a_rounding_too_many_and_a_short_row_are_over_the_bound() {
        let mut bound = Bound::default();
        let one = bf16::from_f32(1.0);
        assert_eq!(bound.check(one, 1.003, 0.0), Ok(()));
        assert!(bound.check(one, 1.005, 0.0).is_err());
        assert!(bound.check(one, 1.005, 0.002).is_ok());
        assert!(bound.check(bf16::NAN, 1.0, 0.0).is_err());
        assert!(bound.check(bf16::NAN, 1.0, f32::INFINITY).is_err());
        assert!(bound.row(3, &[one], &[1.0, 1.0], |_| 0.0).unwrap_err().contains("1 values, not 2"));
        assert!(bound.row(3, &[one, one], &[1.0, 2.0], |_| 0.0).unwrap_err().contains("element 1 of row 3"));
    }

    #[test]
    fn the_end_of_the_shorter_list_is_a_difference() {
        assert_eq!(first_difference(&[1, 2], &[1, 2]), None);
        assert_eq!(first_difference(&[1, 2], &[1, 3]), Some(1));
        assert_eq!(first_difference(&[1, 2], &[1]), Some(1));
    }
}
