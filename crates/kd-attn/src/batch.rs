//! Which keys each row of a pass may see.

use std::ops::Range;

use crate::PageId;

/// The ancestors of a tree node, itself included: bit `i` is node `i + 1`. The root, row 0, is implied.
pub type Ancestors = [u64; 2];

/// How the rows of a segment see each other.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// Every row sees the rows before it and itself: a prompt chunk, or plain decoding with one row.
    Causal,
    /// Row 0 is the root; row `i + 1` is node `i + 1` and sees the root and these. Parents come before children.
    Tree(&'a [Ancestors]),
}

/// Consecutive rows of a pass that belong to one stream.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The stream's page table, reaching at least `committed` tokens.
    pub pages: &'a [PageId],
    /// Committed tokens. Every row sees all of them.
    pub committed: usize,
    /// Number of rows.
    pub rows: usize,
    /// Which rows of the segment a row sees.
    pub mask: Mask<'a>,
}

impl Segment<'_> {
    /// The rows of the segment that row `row` sees, itself last, in order of position.
    pub fn visible(&self, row: usize) -> Vec<usize> {
        match self.mask {
            Mask::Causal => (0..=row).collect(),
            Mask::Tree(_) if row == 0 => vec![0],
            Mask::Tree(nodes) => {
                let mut rows = vec![0];
                for (word, &bits) in nodes[row - 1].iter().enumerate() {
                    let mut bits = bits;
                    while bits != 0 {
                        rows.push(word * 64 + bits.trailing_zeros() as usize + 1);
                        bits &= bits - 1;
                    }
                }
                rows
            }
        }
    }

    /// The position of row `row`: as many tokens lie before it.
    pub fn position(&self, row: usize) -> usize {
        self.committed
            + match self.mask {
                Mask::Causal => row,
                Mask::Tree(_) if row == 0 => 0,
                Mask::Tree(nodes) => nodes[row - 1].iter().map(|w| w.count_ones() as usize).sum(),
            }
    }
}

/// Positions of all rows of a pass.
pub fn positions<'a>(segments: &'a [Segment<'a>]) -> impl Iterator<Item = usize> + 'a {
    segments.iter().flat_map(|s| (0..s.rows).map(move |row| s.position(row)))
}

/// Number of rows of a pass.
pub fn rows(segments: &[Segment<'_>]) -> usize {
    segments.iter().map(|s| s.rows).sum()
}

/// Some rows of a segment.
#[derive(Debug, Clone)]
pub(crate) struct Span<'a> {
    pub(crate) segment: &'a Segment<'a>,
    /// Where the segment starts among the rows of the pass.
    pub(crate) first: usize,
    /// Counted within the segment.
    pub(crate) rows: Range<usize>,
}

/// Rows `rows` of a pass by the segments that they belong to.
pub(crate) fn spans<'a>(segments: &'a [Segment<'a>], rows: Range<usize>) -> Vec<Span<'a>> {
    let mut end = 0;
    let span = |segment: &'a Segment<'a>| {
        let first = end;
        end += segment.rows;
        let own = rows.start.max(first)..rows.end.min(end);
        (!own.is_empty()).then(|| Span { segment, first, rows: own.start - first..own.end - first })
    };
    segments.iter().filter_map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_pass_are_found_in_their_segments() {
        let segment = |rows| Segment { pages: &[], committed: 0, rows, mask: Mask::Causal };
        let segments = [segment(3), segment(0), segment(4), segment(1)];
        let of = |rows| spans(&segments, rows).into_iter().map(|s| (s.first, s.rows)).collect::<Vec<_>>();
        assert_eq!(of(0..8), [(0, 0..3), (3, 0..4), (7, 0..1)]);
        assert_eq!(of(2..5), [(0, 2..3), (3, 0..2)]);
        assert_eq!(of(5..7), [(3, 2..4)]);
        assert_eq!(of(4..4), []);
    }

    #[test]
    fn a_tree_row_sees_the_root_its_ancestors_and_itself() {
        // 0 → 1 → 2, 0 → 3; node 70 below node 2 crosses the word boundary.
        let mut nodes = vec![[0b1, 0], [0b11, 0], [0b100, 0]];
        nodes.resize(69, [0, 0]);
        nodes.push([0b11, 1 << 5]);
        let segment = Segment { pages: &[], committed: 10, rows: 71, mask: Mask::Tree(&nodes) };
        assert_eq!(segment.visible(0), [0]);
        assert_eq!(segment.visible(2), [0, 1, 2]);
        assert_eq!(segment.visible(3), [0, 3]);
        assert_eq!(segment.visible(70), [0, 1, 2, 70]);
        assert_eq!([0, 1, 2, 3, 70].map(|r| segment.position(r)), [10, 11, 12, 11, 13]);
    }
}
