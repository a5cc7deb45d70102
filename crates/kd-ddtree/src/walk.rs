//! The walk: which rows of a verified tree the target agrees with.

use crate::tree::Tree;

/// The outcome of a [`walk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The visited rows in depth order, row 0 first: the rows whose state is to be committed. They ascend strictly.
    pub rows: Vec<usize>,
    /// The tokens of `rows[1..]`: drafted tokens that the target chose too.
    pub accepted: Vec<u32>,
    /// The target's token after the last visited row, the root of the next tree.
    pub next_token: u32,
}

impl Walk {
    /// All tokens gained, in order: the accepted ones, then [`next_token`](Walk::next_token). One for each row.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.accepted.iter().copied().chain([self.next_token])
    }
}

/// Follows the target's tokens from the root for as long as the tree contains them.
///
/// `token_at(row)` gives the target's token after a row; it is asked for visited rows only, once each, in depth
/// order. What it returns must depend on nothing but the row's path (its logits and its history), then the
/// result has the law of plain decoding, and with draws keyed by position its very tokens, whatever the tree.
///
/// # Errors
/// The first error of `token_at`.
pub fn walk<E>(tree: &Tree, mut token_at: impl FnMut(usize) -> Result<u32, E>) -> Result<Walk, E> {
    let mut rows = vec![0];
    let mut accepted = Vec::new();
    let mut row = 0;
    loop {
        let token = token_at(row)?;
        match tree.child(row, token) {
            Some(child) => {
                accepted.push(token);
                rows.push(child);
                row = child;
            }
            None => return Ok(Walk { rows, accepted, next_token: token }),
        }
    }
}
