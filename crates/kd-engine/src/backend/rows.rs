//! Rows of a pass in the order that every backend runs them in: those of the first stream, then those of the next.

use kd_attn::{Ancestors, Mask, Segment};

use super::{Chunk, Kept, Member, Sequence};

/// The rows of the trees of a verify pass, each root first.
#[derive(Debug, Default)]
pub(crate) struct TreeRows {
    pub(crate) tokens: Vec<u32>,
    /// The first row of each member.
    pub(crate) first: Vec<usize>,
    masks: Vec<Vec<Ancestors>>,
}

impl TreeRows {
    pub(crate) fn of(members: &[Member<'_>]) -> Self {
        let mut rows = Self::default();
        for Member { bonus, tree, .. } in members {
            rows.first.push(rows.tokens.len());
            rows.tokens.push(*bonus);
            rows.tokens.extend(tree.nodes().iter().map(|node| node.token));
            rows.masks.push((1..=tree.len()).map(|row| tree.mask(row)).collect());
        }
        rows
    }

    /// What the rows of `members`, those that these are of, see.
    pub(crate) fn segments<'a>(&'a self, members: &'a [Member<'_>]) -> Vec<Segment<'a>> {
        let segment = |(member, mask): (&'a Member<'_>, &'a Vec<_>)| {
            member.sequence.segment(1 + mask.len(), Mask::Tree(mask))
        };
        members.iter().zip(&self.masks).map(segment).collect()
    }
}

/// The rows of prompt chunks.
#[derive(Debug, Default)]
pub(crate) struct PromptRows<'a> {
    pub(crate) tokens: Vec<u32>,
    pub(crate) segments: Vec<Segment<'a>>,
    /// The last row of each complete chunk.
    pub(crate) ends: Vec<usize>,
}

impl<'a> PromptRows<'a> {
    pub(crate) fn of(chunks: &'a [Chunk<'_>]) -> Self {
        let mut rows = Self::default();
        for Chunk { sequence, tokens, complete, .. } in chunks {
            rows.tokens.extend_from_slice(tokens);
            rows.segments.push(sequence.segment(tokens.len(), Mask::Causal));
            rows.ends.extend(complete.then_some(rows.tokens.len() - 1));
        }
        rows
    }
}

impl Sequence {
    fn segment<'a>(&'a self, rows: usize, mask: Mask<'a>) -> Segment<'a> {
        Segment { pages: &self.pages, committed: self.committed, rows, mask }
    }
}

impl Kept<'_> {
    /// Its rows among all of the pass, whose members begin at `first`.
    pub(crate) fn of_pass(&self, first: &[usize]) -> Vec<usize> {
        self.rows.iter().map(|row| first[self.member] + row).collect()
    }
}

#[cfg(test)]
mod tests {
    use kd_ddtree::Tree;

    use super::*;

    #[test]
    fn rows_of_streams_follow_each_other() {
        let sequence = Sequence { committed: 9, ..Sequence::default() };
        let trees = [
            Tree::chain([(4, 0.0), (5, 0.0)].map(|(token, logprob)| kd_ddtree::Child { token, logprob })),
            Ok(Tree::empty()),
        ];
        let trees = trees.map(|tree| tree.expect("a tree"));
        let member = |(tree, bonus)| Member { sequence: &sequence, bonus, tree, draw: None, ahead: false };
        let members: Vec<Member<'_>> = trees.iter().zip([3, 7]).map(member).collect();
        let rows = TreeRows::of(&members);
        assert_eq!((&rows.tokens[..], &rows.first[..]), (&[3, 4, 5, 7][..], &[0, 3][..]));
        let segments = rows.segments(&members);
        assert_eq!(segments.iter().map(|s| (s.committed, s.rows)).collect::<Vec<_>>(), [(9, 3), (9, 1)]);
        assert_eq!(Kept { sequence: &sequence, member: 1, rows: &[0] }.of_pass(&rows.first), [3]);
    }

    #[test]
    fn only_complete_chunks_have_an_end() {
        let sequence = Sequence::default();
        let chunk = |tokens, complete| Chunk { sequence: &sequence, tokens, complete, draw: None };
        let chunks = [chunk(&[1, 2][..], true), chunk(&[3], false), chunk(&[4, 5], true)];
        let rows = PromptRows::of(&chunks);
        assert_eq!((rows.tokens.len(), &rows.ends[..]), (5, &[1, 4][..]));
    }
}
