//! What an observer may see of a forward pass.

use kd_moe::Routing;
use kd_tensor::Matrix;

/// Watches a forward pass of the target. Every method does nothing by default.
///
/// Goldens are written through it, and tests count through it what a pass really did. Of several ranks it sees the first.
pub trait Trace: Send {
    /// Whether it looks at values. If not, it only hears of attention, and threads may take rows of a pass apart.
    fn looks(&self) -> bool {
        true
    }

    /// The residual stream `[rows, hidden]`: depth 0 is the embedding, depth `i + 1` the output of layer `i`.
    fn hidden(&mut self, depth: usize, hidden: &Matrix) {
        let _ = (depth, hidden);
    }

    /// The attention of `layer` has run once, over all rows of the pass.
    fn attention(&mut self, layer: usize, rows: usize) {
        let _ = (layer, rows);
    }

    /// The experts that the rows of MoE layer `layer` (an index among all layers) chose.
    fn routing(&mut self, layer: usize, routing: &Routing) {
        let _ = (layer, routing);
    }
}

impl Trace for () {
    fn looks(&self) -> bool {
        false
    }
}

/// Counts the work of forward passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCounter {
    /// Attention calls, each over all rows of its pass.
    pub attention_calls: u64,
    /// Rows over all attention calls.
    pub attention_rows: u64,
}

impl Trace for OpCounter {
    fn looks(&self) -> bool {
        false
    }

    fn attention(&mut self, _layer: usize, rows: usize) {
        self.attention_calls += 1;
        self.attention_rows += rows as u64;
    }
}
