//! Committed tokens that the drafter has not read yet.

use kd_tensor::Matrix;

/// Most bytes of taps that wait for one stream. Beyond them the drafter reads, whether it is about to draft or not.
const MOST_BYTES: usize = 8 << 20;

/// Taps of a stream's newest committed tokens, oldest first.
///
/// A round without drafts costs the drafter nothing: it reads when it drafts, all streams' tokens in one batch. Since a
/// context row depends on its own taps and position alone, it does not matter when it is read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    taps: Vec<f32>,
    tokens: usize,
    /// Position of the oldest.
    start: usize,
}

impl Unread {
    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Position of the first of them.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Whether there are so many that the drafter must read them.
    pub(super) fn is_full(&self) -> bool {
        size_of_val(self.taps.as_slice()) > MOST_BYTES
    }

    /// Forgets all of them and keeps the memory: pages touched for the first time would cost plain rounds more than copying.
    pub(super) fn clear(&mut self) {
        self.taps.clear();
        self.tokens = 0;
    }

    /// Appends the named rows of a pass's taps, which take positions `position ..`.
    pub(super) fn push(&mut self, taps: &Matrix, rows: &[usize], position: usize) {
        if self.tokens == 0 {
            self.start = position;
        }
        debug_assert_eq!(self.start + self.tokens, position, "taps without a gap");
        rows.iter().for_each(|&row| self.taps.extend_from_slice(taps.row(row)));
        self.tokens += rows.len();
    }
}

/// Taps `[tokens, taps · hidden]` and positions of all of them in one batch.
pub(super) fn together<'a>(all: impl Iterator<Item = &'a Unread> + Clone) -> (Matrix, Vec<usize>) {
    let positions: Vec<usize> =
        all.clone().flat_map(|unread| unread.start..unread.start + unread.tokens).collect();
    let mut taps = Vec::with_capacity(all.clone().map(|unread| unread.taps.len()).sum());
    all.for_each(|unread| taps.extend_from_slice(&unread.taps));
    let width = taps.len().checked_div(positions.len()).unwrap_or(0);
    let taps = Matrix::from_vec(positions.len(), width, taps).expect("a row of taps for each token");
    (taps, positions)
}
