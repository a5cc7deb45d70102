//! Operand sizes against the declaration.

use super::{Family, KernelError};

/// Checks axes of one launch.
#[derive(Clone, Copy)]
pub(crate) struct Shapes {
    family: &'static str,
}

impl Shapes {
    pub(crate) fn of(family: &Family) -> Self {
        Self { family: family.name }
    }

    /// Axis `axis` of `operand` has `found` elements; the declaration says `formula`, which is `expected` here (`None`: it overflows).
    pub(crate) fn expect(
        self,
        operand: &'static str,
        axis: usize,
        found: i64,
        formula: &'static str,
        expected: impl FnOnce() -> Option<i64>,
    ) -> Result<(), KernelError> {
        let expected = expected();
        if expected == Some(found) {
            return Ok(());
        }
        let expected = expected.map_or_else(|| "without a value".to_owned(), |value| value.to_string());
        Err(KernelError::Shape { family: self.family, operand, axis, formula, expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_axis_names_operand_formula_and_sizes() {
        let shapes = Shapes { family: "rms_norm" };
        assert_eq!(shapes.expect("x", 1, 7168, "H", || Some(7168)), Ok(()));
        let message = shapes.expect("x", 1, 7169, "H", || Some(7168)).expect_err("wrong").to_string();
        assert_eq!(message, "rms_norm: axis 1 of `x` is 7169, but H = 7168");
        assert!(shapes.expect("x", 0, 1, "M * M", || None).is_err());
    }
}
