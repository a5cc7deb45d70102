//! Checked arithmetic of the declaration language: `None` where a size has no value.

macro_rules! checked {
    ($($name:ident => $method:ident),*) => {
        $(pub(crate) fn $name(a: i64, b: i64) -> Option<i64> {
            a.$method(b)
        })*
    };
}

// Every family uses some of these; together they are the language.
checked!(add => checked_add, sub => checked_sub, mul => checked_mul, div => checked_div, rem => checked_rem);

pub(crate) fn min(a: i64, b: i64) -> Option<i64> {
    Some(a.min(b))
}

pub(crate) fn max(a: i64, b: i64) -> Option<i64> {
    Some(a.max(b))
}

/// For `a >= 0` and `b > 0`.
pub(crate) fn ceil_div(a: i64, b: i64) -> Option<i64> {
    if a < 0 || b <= 0 {
        return None;
    }
    Some(a.checked_add(b - 1)? / b)
}
