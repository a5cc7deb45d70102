//! Where the inputs of a pass lie in the memory that is written at once, and how trees are written there.

use kd_attn::{Ancestors, Mask, PAGE_TOKENS, Segment};

use super::limits::Limits;

/// The first word of each input, from a multiple of four on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Of rows that are trees.
    pub(super) trees: Option<TreePlaces>,
    pub(super) tokens: usize,
    pub(super) positions: usize,
    pub(super) slots: usize,
    /// First row of each stream, and the number of rows.
    pub(super) starts: usize,
    pub(super) committed: usize,
    /// Words of all of them.
    pub(super) end: usize,
}

/// As [`Places`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreePlaces {
    /// Four words a row.
    pub(super) ancestors: usize,
    pub(super) parents: usize,
    /// Row of the pages of each stream's root.
    pub(super) roots: usize,
}

impl Places {
    pub(super) fn new(limits: Limits, trees: bool) -> Self {
        let mut end = 0;
        let mut next = |len: usize| {
            let start = end;
            end += padded(len);
            start
        };
        let trees = trees.then(|| TreePlaces {
            ancestors: next(4 * limits.rows),
            parents: next(limits.rows),
            roots: next(limits.streams),
        });
        let [tokens, positions, slots] = [(); 3].map(|()| next(limits.rows));
        let (starts, committed) = (next(limits.streams + 1), next(limits.streams));
        Self { trees, tokens, positions, slots, starts, committed, end }
    }
}

/// The ancestors of a row, itself included, as the kernels take them; those of a root are not read.
pub(super) fn words(segment: &Segment<'_>, row: usize) -> Ancestors {
    match segment.mask {
        Mask::Tree(_) if row == 0 => [0; 2],
        Mask::Tree(nodes) => nodes[row - 1],
        Mask::Causal => [0, 64].map(|first| {
            let bits = row.saturating_sub(first).min(64);
            if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
        }),
    }
}

/// Operands begin at multiples of 16 bytes.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The row of the pages that the first row of a segment goes to; `None` if the segment is empty or has no page for it.
pub(super) fn place(segment: &Segment<'_>) -> Option<usize> {
    let page = segment.pages.get(segment.committed / PAGE_TOKENS).filter(|_| segment.rows > 0)?;
    Some(page.0 as usize * PAGE_TOKENS + segment.committed % PAGE_TOKENS)
}

/// The parent of row `row`, whose ancestors, itself included, are `own`: the newest of the others, 0 (the root) if there is none.
pub(super) fn parent(own: Ancestors, row: usize) -> usize {
    let all = u128::from(own[1]) << 64 | u128::from(own[0]);
    // Node `n` is row `n + 1`, so those before this row's own are below bit `row - 1`.
    let others = all & ((1 << row.saturating_sub(1)) - 1);
    (u128::BITS - others.leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use kd_ddtree::{Marginals, Tree, TreeBuilder};

    use super::*;

    #[test]
    fn a_chain_is_a_tree_without_branches() {
        let chain: Vec<Ancestors> = (1..129).map(|row| words(&segment(Mask::Causal), row)).collect();
        assert_eq!([chain[0], chain[1], chain[63]], [[1, 0], [3, 0], [u64::MAX, 0]]);
        assert_eq!([chain[64], chain[127]], [[u64::MAX, 1], [u64::MAX; 2]]);
        for row in 0..129 {
            assert_eq!(words(&segment(Mask::Tree(&chain)), row), words(&segment(Mask::Causal), row));
            assert_eq!(segment(Mask::Tree(&chain)).visible(row), segment(Mask::Causal).visible(row));
        }
    }

    fn segment(mask: Mask<'_>) -> Segment<'_> {
        Segment { pages: &[], committed: 0, rows: 129, mask }
    }

    #[test]
    fn ancestors_say_who_the_parent_is() {
        let rows = kd_ddtree::draft_rows(&[0.4, 0.3, 0.2, 0.1].repeat(7), 4, 4);
        let mut tree = Tree::empty();
        TreeBuilder::new().build(&mut Marginals(&rows), 128, &mut tree).expect("a tree");
        assert_eq!(tree.len(), 128);
        let masks: Vec<Ancestors> = (1..=tree.len()).map(|row| tree.mask(row)).collect();
        let segment = Segment { pages: &[], committed: 0, rows: 129, mask: Mask::Tree(&masks) };
        let parents = (0..129).map(|row| parent(words(&segment, row), row));
        let expected = std::iter::once(0).chain(tree.nodes().iter().map(|node| node.parent as usize));
        assert!(parents.eq(expected), "{tree:?}");
        let chain = (0..129).map(|row| parent(words(&self::segment(Mask::Causal), row), row));
        assert!(chain.eq(std::iter::once(0).chain(0..128)));
    }

    #[test]
    fn a_root_goes_behind_what_is_committed() {
        let pages = [7, 3].map(kd_attn::PageId);
        let at = |committed, rows| place(&Segment { pages: &pages, committed, rows, mask: Mask::Causal });
        assert_eq!([at(0, 1), at(63, 2), at(64, 1), at(128, 1)], [Some(448), Some(511), Some(192), None]);
        assert_eq!(at(64, 0), None, "a stream that is not there");
    }

    #[test]
    fn inputs_lie_one_behind_the_other() {
        let limits = Limits { rows: 33, nodes: 17, streams: 5, pages: 9, stream_pages: 4 };
        let places = Places::new(limits, true);
        let trees = places.trees.expect("trees");
        let all = [
            trees.ancestors,
            trees.parents,
            trees.roots,
            places.tokens,
            places.positions,
            places.slots,
            places.starts,
            places.committed,
            places.end,
        ];
        assert!(all.iter().all(|start| start.is_multiple_of(4)));
        let room: Vec<usize> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(room, [132, 36, 8, 36, 36, 36, 8, 8]);
        assert_eq!(Places::new(limits, false).end, 36 * 3 + 16);
    }
}
