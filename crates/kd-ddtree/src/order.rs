//! Floats as integers of the same order, so that one integer comparison decides score and tie-breaks.

const SIGN: u32 = 1 << 31;

/// Maps a number that is not NaN to an integer that compares alike; both zeros map to the same integer.
pub(crate) fn to_ordered(x: f32) -> u32 {
    // Adding +0 turns -0 into +0 and changes nothing else.
    let bits = (x + 0.0).to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

/// The inverse of [`to_ordered`].
pub(crate) fn from_ordered(ordered: u32) -> f32 {
    f32::from_bits(if ordered & SIGN == 0 { !ordered } else { ordered & !SIGN })
}

#[cfg(test)]
mod tests {
    use super::{from_ordered, to_ordered};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_order_as_the_floats_do(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(a.partial_cmp(&b), Some(to_ordered(a).cmp(&to_ordered(b))));
            prop_assert_eq!(from_ordered(to_ordered(a)), a);
        }
    }

    #[test]
    fn the_two_zeros_are_one() {
        assert_eq!(to_ordered(-0.0), to_ordered(0.0));
    }
}
