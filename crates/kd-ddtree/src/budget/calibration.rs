//! What a score is worth: products of marginals against what the target accepted.
//!
//! A block drafter's rows are marginals: row `d` was drafted as if nothing were known of the tokens before it. So the
//! product along the most probable path, the *spine*, is too low, and a path that left the spine is worth less than its
//! product. The bias depends on depth, rank and whether the parent lies on the spine, and is learnt for each such cell as
//! the quotient of acceptances and promised probability.

use crate::row::DraftRow;
use crate::scorer::{Child, Scorer};
use crate::tree::Tree;

/// Depths with cells of their own; deeper rows share the last ones.
const DEPTHS: usize = 16;
/// Ranks 0, 1, 2, 3–4, 5–8 and all others.
const RANKS: usize = 6;
/// Promised probability that a fresh cell is taken to have kept.
const PRIOR: f64 = 4.0;
/// What remains of an observation after one more in its cell.
const FADE: f64 = 0.998;
/// Best tokens of a row that are learnt from.
const LEARNT: usize = 16;

/// Sums over the observations of a cell.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Probability that the rows promised.
    raw: f64,
    /// Probability after calibration, as it then was.
    promised: f64,
    /// Times that the target chose the token.
    accepted: f64,
}

impl Cell {
    fn factor(&self) -> f64 {
        (self.accepted + PRIOR) / (self.raw + PRIOR)
    }
}

/// How far promised probabilities were off: Σ |promised − accepted| over all cells ÷ tokens accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// Of the rows as drafted.
    pub raw: f64,
    /// After calibration.
    pub calibrated: f64,
    /// Draft tokens accepted so far (old ones fade).
    pub accepted: f64,
}

/// What the target said to one stream's draft.
#[derive(Debug, Clone, Copy)]
pub struct Verdict<'a> {
    /// The draft rows, before calibration.
    pub rows: &'a [DraftRow],
    /// The target's tokens in order: each visited row's successor.
    pub tokens: &'a [u32],
}

/// Factors that turn drafted probabilities into those with which the target accepts.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    cells: [[[Cell; 2]; RANKS]; DEPTHS],
}

impl Calibration {
    /// A calibration that changes nothing yet.
    pub fn new() -> Calibration {
        Calibration::default()
    }

    /// Learns from the tokens that the target chose after the visited rows: each one was, or was not, each of the best
    /// tokens of its draft row.
    pub fn learn(&mut self, verdict: Verdict<'_>) {
        let mut on_spine = true;
        for (depth, (row, &token)) in verdict.rows.iter().zip(verdict.tokens).enumerate() {
            for (rank, child) in row.children().iter().take(LEARNT).enumerate() {
                let raw = f64::from(child.logprob).exp();
                let cell = self.cell_mut(depth, rank, on_spine);
                let promised = (raw * cell.factor()).min(1.0);
                cell.raw = FADE * cell.raw + raw;
                cell.promised = FADE * cell.promised + promised;
                cell.accepted = FADE * cell.accepted + f64::from(u8::from(child.token == token));
            }
            on_spine &= row.child(0).is_some_and(|best| best.token == token);
        }
    }

    /// The rows with calibrated probabilities, on the spine and beside it.
    pub fn calibrate(&self, rows: &[DraftRow]) -> Calibrated {
        let side = |on_spine: bool| -> Vec<DraftRow> {
            rows.iter().enumerate().map(|(depth, row)| self.row(depth, row, on_spine)).collect()
        };
        Calibrated { spine: side(true), beside: side(false) }
    }

    /// How far promises were off so far; `None` while nothing was accepted.
    pub fn errors(&self) -> Option<Errors> {
        let cells = || self.cells.iter().flatten().flatten();
        let accepted: f64 = cells().map(|cell| cell.accepted).sum();
        let off = |promise: fn(&Cell) -> f64| -> f64 {
            cells().map(|cell| (promise(cell) - cell.accepted).abs()).sum::<f64>() / accepted
        };
        (accepted > 0.0).then(|| Errors {
            raw: off(|cell| cell.raw),
            calibrated: off(|cell| cell.promised),
            accepted,
        })
    }

    fn row(&self, depth: usize, row: &DraftRow, on_spine: bool) -> DraftRow {
        let cells = &self.cells[depth.min(DEPTHS - 1)];
        // One logarithm a cell, not one a token: those of 16 streams took longer than growing their trees.
        let shifts = cells.map(|cell| cell[usize::from(on_spine)].factor().ln() as f32);
        // Siblings must stay in order, and no probability may exceed 1.
        let mut last = 0.0f32;
        let children = row.children().iter().enumerate().map(|(rank, child)| {
            last = last.min(child.logprob + shifts[rank_bucket(rank)]);
            Child { token: child.token, logprob: last }
        });
        DraftRow::ordered(children.collect())
    }

    fn cell_mut(&mut self, depth: usize, rank: usize, on_spine: bool) -> &mut Cell {
        &mut self.cells[depth.min(DEPTHS - 1)][rank_bucket(rank)][usize::from(on_spine)]
    }
}

fn rank_bucket(rank: usize) -> usize {
    match rank {
        0..=2 => rank,
        3..=4 => 3,
        5..=8 => 4,
        _ => 5,
    }
}

/// Calibrated rows, a [`Scorer`] that knows the spine.
#[derive(Debug, Clone)]
pub struct Calibrated {
    spine: Vec<DraftRow>,
    beside: Vec<DraftRow>,
}

impl Calibrated {
    /// Whether a row's path holds nothing but best tokens. The root's does.
    fn is_spine(&self, tree: &Tree, row: usize) -> bool {
        let best = self.spine.iter().map(|row| row.child(0).map(|child| child.token));
        tree.path_tokens(row).zip(best).all(|(token, best)| Some(token) == best)
    }
}

impl Scorer for Calibrated {
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child> {
        let rows = if self.is_spine(tree, parent) { &self.spine } else { &self.beside };
        rows.get(tree.depth(parent))?.child(rank)
    }
}
