//! Checked arithmetic of the declaration language, as generated launchers call it: `None` where a size has no value.

macro_rules! checked {
    ($($name:ident: $method:ident, $what:literal;)*) => {
        $(
            #[doc = $what]
            pub fn $name(a: i64, b: i64) -> Option<i64> {
                a.$method(b)
            }
        )*
    };
}

checked! {
    add: checked_add, "`a + b`.";
    sub: checked_sub, "`a - b`.";
    mul: checked_mul, "`a * b`.";
    div: checked_div, "`a / b`, truncated.";
    rem: checked_rem, "`a % b`, with the sign of `a`.";
}

/// The smaller.
pub fn min(a: i64, b: i64) -> Option<i64> {
    Some(a.min(b))
}

/// The larger.
pub fn max(a: i64, b: i64) -> Option<i64> {
    Some(a.max(b))
}

/// `a / b` rounded up, for `a >= 0` and `b > 0`.
pub fn ceil_div(a: i64, b: i64) -> Option<i64> {
    if a < 0 || b <= 0 {
        return None;
    }
    Some(a.checked_add(b - 1)? / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_wraps_and_nothing_panics() {
        assert_eq!((ceil_div(7, 4), ceil_div(8, 4), ceil_div(0, 4)), (Some(2), Some(2), Some(0)));
        assert_eq!((ceil_div(-1, 4), ceil_div(1, 0), ceil_div(i64::MAX, 2)), (None, None, None));
        assert_eq!((add(i64::MAX, 1), sub(i64::MIN, 1), mul(i64::MAX, 2)), (None, None, None));
        assert_eq!((div(1, 0), rem(1, 0), div(i64::MIN, -1)), (None, None, None));
        assert_eq!((min(1, 2), max(1, 2)), (Some(1), Some(2)));
    }
}
