//! How long one layer of experts takes, beside what reading and multiplying alone would take.
//!
//! Everything is measured in one process by replaying graphs of [`ROUTINGS`] differently routed layers, so that neither caches
//! nor launches flatter: first, after a pause, and at steady state, where power limits the clock. The layer's weights are
//! copies of a few random experts.

mod measure;
mod plot;
mod report;
mod routing;
mod targets;

pub use measure::{expert, run, shape};
pub use plot::svg;
pub use report::{Bound, Peer, Regime, Report, Row, knee, peers};
pub use routing::RoutingKind;

/// Layers of a graph, each with a routing of its own.
pub const ROUTINGS: usize = 8;
/// Row counts unless others are asked for.
pub const ROWS: [usize; 13] = [1, 2, 4, 8, 16, 33, 64, 128, 264, 330, 512, 1024, 2048];

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of each measurement.
    pub rows: Vec<usize>,
    /// How rows choose.
    pub routing: RoutingKind,
    /// Experts that the layer has; fewer than the profile's take a slice that fits beside a service.
    pub experts: Option<usize>,
    /// Replays of each graph at steady state.
    pub replays: usize,
    /// Seed of weights, rows and routings.
    pub seed: u64,
}
