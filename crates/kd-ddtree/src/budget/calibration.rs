//! What a score is worth: products of marginals against what the target accepted.
//!
//! A block drafter's rows are marginals: row `d` was drafted as if nothing were known of the tokens before it. So the
//! product along the most probable path, the *spine*, is too low, and a path that left the spine is worth less than its
//! product. The bias depends on depth, rank and whether the parent lies on the spine, and is learnt for each such cell as
//! the quotient of acceptances and promised probability.

use super::record::Record;
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
const FADE: f64 = 0.995;
/// Best tokens of a row that are learnt from.
const LEARNT: usize = 8;

/// Sums over the observations of a cell.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Probability that the rows promised.
    raw: f64,
    /// Probability after calibration, as it then was.
    promised: f64,
    /// Times that the target chose the token.
    accepted: f64,
    /// Logarithm of the factor.
    shift: f32,
}

impl Cell {
    fn factor(&self) -> f64 {
        (self.accepted + PRIOR) / (self.raw + PRIOR)
    }
}

impl Errors {
    /// Of several calibrations together; `None` while nothing was accepted.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Calibration> + Clone) -> Option<Errors> {
        let cells = || all.clone().flat_map(|calibration| calibration.cells.iter().flatten().flatten());
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
    pub fn learn(&mut self, record: &mut Record, verdict: Verdict<'_>) {
        self.settle(record, verdict);
        let mut on_spine = true;
        for (depth, (row, &token)) in verdict.rows.iter().zip(verdict.tokens).enumerate() {
            let is_best = row.child(0).is_some_and(|best| best.token == token);
            for (rank, child) in row.children().iter().take(LEARNT).enumerate() {
                let raw = f64::from(child.logprob.exp());
                let cell = self.cell_mut(depth, rank, on_spine);
                let promised = (raw * cell.factor()).min(1.0);
                cell.raw = FADE * cell.raw + raw;
                cell.promised = FADE * cell.promised + promised;
                cell.accepted = FADE * cell.accepted + f64::from(u8::from(child.token == token));
            }
            for ranks in &mut self.cells[depth.min(DEPTHS - 1)] {
                let cell = &mut ranks[usize::from(on_spine)];
                cell.shift = cell.factor().ln() as f32;
            }
            on_spine &= is_best;
        }
    }

    /// As [`learn`](Self::learn), of this stream alone.
    pub(crate) fn settle(&self, record: &mut Record, verdict: Verdict<'_>) {
        let mut on_spine = true;
        for (depth, (row, &token)) in verdict.rows.iter().zip(verdict.tokens).enumerate() {
            let Some(best) = row.child(0) else { return };
            let cell = &self.cells[depth.min(DEPTHS - 1)][0][usize::from(on_spine)];
            let is_best = best.token == token;
            record.settle((f64::from(best.logprob.exp()) * cell.factor()).min(1.0), is_best);
            on_spine &= is_best;
        }
    }

    /// The rows of the stream of this record with calibrated probabilities, on the spine and beside it.
    pub fn calibrate<'a>(&self, rows: &'a [DraftRow], record: &Record) -> Calibrated<'a> {
        let own = record.factor().ln() as f32;
        let mut shifts = [[[0.0; RANKS]; 2]; DEPTHS];
        for (shifts, cells) in shifts.iter_mut().zip(&self.cells).take(rows.len()) {
            for (side, shifts) in shifts.iter_mut().enumerate() {
                *shifts = cells.map(|cell| cell[side].shift + own);
            }
        }
        Calibrated { rows, shifts, spine: [0; DEPTHS] }
    }

    /// How far promises were off so far; `None` while nothing was accepted.
    pub fn errors(&self) -> Option<Errors> {
        Errors::of(std::iter::once(self))
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

/// First ranks of the buckets after the first.
const FIRST_RANKS: [usize; RANKS - 1] = [1, 2, 3, 5, 9];

/// Calibrated rows, a [`Scorer`] that knows the spine. Nothing is computed for tokens that nobody asks for.
#[derive(Debug, Clone)]
pub struct Calibrated<'a> {
    rows: &'a [DraftRow],
    /// Logarithms of factors by depth, beside the spine and on it, and rank.
    shifts: [[[f32; RANKS]; 2]; DEPTHS],
    /// The tree's row of the spine at each depth, as far as it was asked for.
    spine: [u8; DEPTHS],
}

impl Calibrated<'_> {
    /// Whether a row's path holds nothing but best tokens. The root's does.
    fn is_spine(&mut self, tree: &Tree, row: usize) -> bool {
        let Some(node) = row.checked_sub(1).map(|at| &tree.nodes()[at]) else { return true };
        let depth = node.depth as usize;
        // A row is first asked for its best child as soon as it is there, after its parent was.
        let above = if depth == 1 { 0 } else { self.spine.get(depth - 2).map_or(0, |&row| usize::from(row)) };
        let is_best = || self.rows[depth - 1].child(0).is_some_and(|best| best.token == node.token);
        if depth > DEPTHS || node.parent as usize != above || (depth > 1 && above == 0) || !is_best() {
            return false;
        }
        self.spine[depth - 1] = row as u8;
        true
    }
}

impl Scorer for Calibrated<'_> {
    fn child(&mut self, tree: &Tree, parent: usize, rank: usize) -> Option<Child> {
        let depth = tree.depth(parent);
        let children = self.rows.get(depth)?.children();
        let child = children.get(rank)?;
        let on_spine = self.is_spine(tree, parent);
        let shifts = &self.shifts[depth.min(DEPTHS - 1)][usize::from(on_spine)];
        // Siblings must stay in order, and no probability may exceed 1: the last of each bucket bounds all after it.
        let bucket = rank_bucket(rank);
        let ends = FIRST_RANKS[..bucket].iter().map(|first| first - 1);
        let bound = ends.zip(shifts).map(|(last, shift)| children[last].logprob + shift).fold(0.0, f32::min);
        Some(Child { token: child.token, logprob: bound.min(child.logprob + shifts[bucket]) })
    }
}
