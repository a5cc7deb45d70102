//! The mixture-of-experts kernels against the operations of this crate, on the device at hand.

mod experts;
mod router;

use kd_kernels::selftest::{Check, Failure, Outcome, run};
use kd_kernels::{Device, Kernels};

/// The checks of this crate by the name of what they cover.
pub const CHECKS: [(&str, Check); 6] = [
    ("router", router::check),
    ("experts", experts::check),
    ("expert_routings", experts::check_routings),
    ("expert_replays", experts::check_replays),
    ("expert_forms", experts::check_forms),
    ("expert_extremes", experts::check_extremes),
];

/// Runs every check of this crate on the units that `kernels` has.
///
/// # Errors
/// The first difference, or a kernel that cannot run.
pub fn all(device: &Device, kernels: &Kernels, rows: &[usize], seed: u64) -> Result<Vec<Outcome>, Failure> {
    run(&CHECKS, device, kernels, rows, seed)
}
