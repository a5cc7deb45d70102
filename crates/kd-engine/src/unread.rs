//! Committed tokens that the drafter has not read yet.

use kd_attn::PagedCache;
use kd_model::Drafter;
use kd_tensor::{Matrix, Pool};

use crate::stream::Stream;

/// Most bytes of taps that wait for one stream. Beyond them the drafter reads, whether it is about to draft or not.
const MOST_BYTES: usize = 8 << 20;

/// Taps of a stream's newest committed tokens, oldest first.
///
/// A round without drafts costs the drafter nothing: it reads when it drafts, all streams' tokens in one batch. Since a
/// context row depends on its own taps and position alone, it does not matter when it is read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    taps: Vec<f32>,
    tokens: usize,
}

impl Unread {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether there are so many that the drafter must read them.
    pub(crate) fn is_full(&self) -> bool {
        size_of_val(self.taps.as_slice()) > MOST_BYTES
    }

    /// Appends the named rows of a pass's taps.
    pub(crate) fn push(&mut self, taps: &Matrix, rows: &[usize]) {
        rows.iter().for_each(|&row| self.taps.extend_from_slice(taps.row(row)));
        self.tokens += rows.len();
    }
}

/// Lets the drafter read what the named streams have committed since it last did, in one batch; returns the number of
/// tokens.
pub(crate) fn read(
    pool: &Pool,
    drafter: &Drafter,
    context: &mut PagedCache,
    streams: &mut [Stream],
    named: &[usize],
) -> usize {
    let mut taps = Vec::new();
    let mut positions = Vec::new();
    let mut parts = Vec::with_capacity(named.len());
    for &at in named {
        let stream = &mut streams[at];
        let unread = std::mem::take(&mut stream.unread);
        let start = stream.committed - unread.tokens;
        parts.push((at, start, positions.len(), unread.tokens));
        positions.extend(start..stream.committed);
        taps.extend(unread.taps);
    }
    let tokens = positions.len();
    if tokens == 0 {
        return 0;
    }
    let width = taps.len() / tokens;
    let taps = Matrix::from_vec(tokens, width, taps).expect("a row for each token");
    let layers = drafter.context(pool, &taps, positions);
    for (at, start, first, tokens) in parts {
        let rows: Vec<usize> = (first..first + tokens).collect();
        context.commit(&layers, &rows, &streams[at].pages, start);
    }
    tokens
}
