//! The attention kernels against the operations of this crate, on the device at hand.

mod block;
mod chunk;
mod commit;
mod context;
mod expanded;
mod fp8_entries;
mod head_queries;
mod head_values;
mod heads;
mod mla_inputs;
mod prefill;
mod query_rope;
pub(crate) mod tree_mla;

use kd_kernels::selftest::{Check, Failure, Outcome, Random, run, same_bits};
use kd_kernels::{Device, Kernels};

use crate::{Rope, RopeTable, Yarn};

/// The checks of this crate by the name of what they cover.
pub const CHECKS: [(&str, Check); 13] = [
    ("mla_inputs", mla_inputs::check),
    ("query_rope", query_rope::check),
    ("head_queries", head_queries::check),
    ("head_values", head_values::check),
    ("drafter_heads", heads::check),
    ("drafter_context", context::check),
    ("commit", commit::check),
    ("prefill_attention", prefill::check),
    ("prefill", chunk::check),
    ("drafter_attention", block::check),
    ("tree_mla", tree_mla::check),
    ("fp8_entries", fp8_entries::check),
    ("tree_mla_fp8", tree_mla::check_fp8),
];

/// Runs every check of this crate on the units that `kernels` has.
///
/// # Errors
/// The first difference, or a kernel that cannot run.
pub fn all(device: &Device, kernels: &Kernels, rows: &[usize], seed: u64) -> Result<Vec<Outcome>, Failure> {
    run(&CHECKS, device, kernels, rows, seed)
}

const EPS: f32 = 1e-6;
/// Rows of the test's table of angles.
const POSITIONS: usize = 300;

/// Positions and angles of one self-test, as the host uploads them and as the CPU operation takes them.
struct Angles {
    rope: Rope,
    /// Position of each input row; the first few are the edges of the table.
    positions: Vec<usize>,
}

impl Angles {
    fn new(dim: usize, rows: usize, random: &mut Random) -> Self {
        let yarn = Yarn { factor: 64.0, original_max_position: 4096.0, beta_fast: 32.0, beta_slow: 1.0 };
        let position = |i| if i < 2 { i * (POSITIONS - 1) } else { random.below(POSITIONS) };
        Self { rope: Rope::new(dim, 50_000.0, Some(yarn), 1.0), positions: (0..rows).map(position).collect() }
    }

    /// `[POSITIONS, dim]`: cosine and sine of each pair.
    fn table(&self) -> Vec<f32> {
        self.rope.table(0..POSITIONS).values().iter().flat_map(|(cos, sin)| [*cos, *sin]).collect()
    }

    /// The angles of the input rows `order`.
    fn of(&self, order: &[usize]) -> RopeTable {
        self.rope.table(order.iter().map(|row| self.positions[*row]))
    }

    fn positions(&self, order: &[usize]) -> Vec<i32> {
        order.iter().map(|row| self.positions[*row] as i32).collect()
    }
}

/// What cancellation in a rotation may cost beyond rounding the result: the two products are rounded to f32 first.
fn rotation_slack(a: f32, b: f32) -> f32 {
    (a.abs() + b.abs()) * f32::EPSILON * 2.0
}
