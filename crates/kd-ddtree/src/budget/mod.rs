//! How many nodes a round is worth, over all streams together.
//!
//! A round of `S` streams that verifies `n` draft nodes is expected to gain `S + Φ(n)` tokens, where
//! [`Φ`](crate::Forest::phi) sums the scores of the first `n` nodes of one best-first order over all streams, and costs
//! `C_draft + C_verify(S + n)` seconds. The best budget is the argmax of the quotient (CaDDTree, arXiv 2606.01813). The
//! verify cost of a mixture of experts is a staircase and concave in places, so the quotient has several maxima: it is
//! evaluated at every edge of a row bucket, and the search never ends at a first decrease.
//!
//! * [`CostModel`]: a moving estimate of both costs from this process's own rounds, by size and context.
//! * [`Calibration`]: what a score is worth, from what the target accepted.
//! * [`Allocator`]: decides before a round who drafts, and after drafting how many nodes are verified. What it does to
//!   learn is paid from an account of at most [`Options::exploration`] of the time, so that it never costs more than
//!   that against plain decoding.
//!
//! Tokens never depend on any of this: a walk gives the tokens of plain decoding whatever the trees hold.

mod account;
mod allocator;
mod buckets;
mod calibration;
mod cost;
mod curve;
mod gain;
mod growth;
mod habit;
mod order;
mod ragged;
mod record;
mod round;
mod rule;
mod search;

pub use allocator::{Allocator, Options};
pub use buckets::{CONTEXTS, SIZES, context_edge, edge};
pub use calibration::{Calibrated, Calibration, Errors, Verdict};
pub use cost::{CostModel, Prices, Stored, StoredCell};
pub use growth::Growth;
pub use record::Record;
pub use round::{Counts, Outcome, Plan};
pub use search::{Candidate, Load};
