//! Kernels against their CPU operation, on the device at hand: what tests, `gpu_check` and the doctor run.
//!
//! A [`Subject`] is one unit with its inputs; [`verify`] runs it. An operation owned by a crate above this one has its
//! subjects there.

mod absorb;
mod best;
mod compare;
mod dense;
mod draft_block;
mod embed;
mod few_gate;
mod few_route;
mod lm_head;
mod lm_head_top_k;
mod memory;
mod norm;
mod norm_dense;
mod random;
mod sample;
mod silu;
mod subject;
mod tap_columns;
mod taps;
mod top_k;
mod walk;

pub use compare::{Bound, first_difference, same_bits};
pub use memory::{Output, Written, gather, upload};
pub use random::Random;
pub use subject::{Subject, same_as_first, verify};

use cudarc::driver::DriverError;

use crate::bundle::Row;
use crate::{Device, KernelError, Kernels};

/// Row counts that exercise one row, partial and whole CTAs, one wave and more.
pub const ROWS: [usize; 5] = [1, 7, 33, 132, 528];

/// One unit at one row count, found right.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Unit.
    pub unit: String,
    /// Rows of the launch.
    pub rows: usize,
    /// Largest error, as a fraction of what rounding allows; 0 where every bit must be right.
    pub error: f64,
    /// Time of one launch in a graph of many, in microseconds.
    pub micros: f64,
    /// Bytes that the operation must read and write.
    pub bytes: usize,
}

/// Why a self-test failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The kernel could not run.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel ran and is wrong.
    #[error("{unit} with {rows} rows: {what}")]
    Wrong {
        /// Unit.
        unit: String,
        /// Rows of the launch.
        rows: usize,
        /// What differs, where.
        what: String,
    },
}

/// A check of every unit of some families in a bundle: device, kernels, row counts, seed of the inputs.
pub type Check = fn(&Device, &Kernels, &[usize], u64) -> Result<Vec<Outcome>, Failure>;

/// The checks of this crate by the name of what they cover.
pub const CHECKS: [(&str, Check); 16] = [
    ("norms", norm::check),
    ("embed", embed::check),
    ("gather_taps", taps::check),
    ("tap_columns", tap_columns::check),
    ("draft_block", draft_block::check),
    ("walk", walk::check),
    ("silu_mul", silu::check),
    ("few_gate", few_gate::check),
    ("few_route", few_route::check),
    ("norm_dense", norm_dense::check),
    ("top_k", top_k::check),
    ("sample", sample::check),
    ("dense", dense::check),
    ("absorb", absorb::check),
    ("lm_head", lm_head::check),
    ("lm_head_top_k", lm_head_top_k::check),
];

/// Runs every check of this crate on the units that `kernels` has.
///
/// # Errors
/// The first difference, or a kernel that cannot run.
pub fn all(device: &Device, kernels: &Kernels, rows: &[usize], seed: u64) -> Result<Vec<Outcome>, Failure> {
    run(&CHECKS, device, kernels, rows, seed)
}

/// Runs `checks` in order and gathers what they found.
///
/// # Errors
/// As [`all`].
pub fn run(
    checks: &[(&str, Check)],
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for (_, check) in checks {
        outcomes.extend(check(device, kernels, rows, seed)?);
    }
    Ok(outcomes)
}

/// The units of `family` in the bundle of `kernels` that can be loaded; where `KD_UNITS` has beginnings of names of its units, such as
/// `dense__K512__n8,dense__K2048__`, those alone.
pub fn units<'a>(kernels: &'a Kernels, family: &'a str) -> impl Iterator<Item = &'a Row> {
    let chosen = std::env::var("KD_UNITS").unwrap_or_default();
    kernels
        .bundle()
        .header()
        .units
        .iter()
        .filter(move |row| row.family == family && kernels.has(row) && admits(&chosen, family, &row.unit))
}

/// Of what a check goes through case by case, the cases whose places (from 0) are in `KD_CASES`, numbers between commas; all where
/// it is not set.
pub fn cases<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let chosen = std::env::var("KD_CASES").ok();
    let named = move |place| chosen.as_ref().is_none_or(|chosen| names_place(chosen, place));
    all.into_iter().enumerate().filter(move |(place, _)| named(*place)).map(|(_, case)| case)
}

/// Whether `place` is one of the numbers of `chosen`.
fn names_place(chosen: &str, place: usize) -> bool {
    chosen.split(',').any(|number| number.trim().parse() == Ok(place))
}

/// Whether launches are timed: not with `KD_TIMING=0`, since a sanitizer takes minutes for as many.
pub fn timed() -> bool {
    std::env::var("KD_TIMING").map_or(true, |value| value != "0")
}

/// Whether `chosen`, beginnings of names of units between commas, has one of `unit` or none of its family.
fn admits(chosen: &str, family: &str, unit: &str) -> bool {
    let of_family = |name: &&str| name.strip_prefix(family).is_some_and(|rest| rest.starts_with("__"));
    let mut names = chosen.split(',').map(str::trim).filter(of_family).peekable();
    names.peek().is_none() || names.any(|name| unit.starts_with(name))
}

/// A failed allocation, copy or event of a self-test.
pub fn driver(error: DriverError) -> KernelError {
    KernelError::driver("self-test memory or timing", error)
}

#[cfg(test)]
mod tests {
    use super::{admits, names_place};

    #[test]
    fn places_choose_cases() {
        let named =
            |chosen: &str| (0..12).filter(|place| names_place(chosen, *place)).collect::<Vec<usize>>();
        assert_eq!(named("0, 2,11"), [0, 2, 11]);
        assert!(named("none").is_empty());
    }

    #[test]
    fn names_choose_among_their_own_family() {
        let chosen = "dense__K512__n8, dense__K2048__,dense_mid__K512";
        for (family, unit, admitted) in [
            ("dense", "dense__K512__n8", true),
            ("dense", "dense__K512__n16", false),
            ("dense", "dense__K2048__r40", true),
            ("dense_mid", "dense_mid__K2048__i144", false),
            ("dense_many", "dense_many__K512__w88", true),
        ] {
            assert_eq!(admits(chosen, family, unit), admitted, "{unit}");
            assert!(admits("", family, unit), "{unit}");
        }
    }
}
