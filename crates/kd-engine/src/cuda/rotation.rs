//! The verify pass of a round, with as much of what follows as the device can do without the host.
//!
//! *Verify → walk → commit → read → draft* is one launch where every stream's tokens are drawn on the device and about as many
//! streams as are verified will draft next. What the host then learns is which rows were drawn, how far each walk went, and the
//! drafts of the next round. A stream that ends in the round (a stop, the last token it may have, text that is none) takes its
//! pages with it, so rows that were committed behind its end are seen by nobody.

use kd_model::cuda::{BestTokens, Bucket};

use super::backend::{Cuda, answers, count, replay};
use super::sampling::RowDraw;
use crate::backend::{Answers, DeviceError, Kept, Member, Sequence, TreeRows};

/// What is launched with a verify pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Nothing: the host walks.
    Alone,
    /// The commit of the roots, where there is nothing else.
    Plain,
    /// Everything up to the drafts of the next round.
    Rotated,
}

/// Drafts that are there before they are asked for.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    found: Option<BestTokens>,
    /// Slot and committed tokens of each stream of the draft; `None` where it is for nobody.
    of: Vec<Option<(usize, usize)>>,
}

impl Ahead {
    fn new(found: BestTokens, members: &[Member<'_>], counts: &[usize]) -> Self {
        let of = |(member, count): (&Member<'_>, &usize)| {
            let Member { sequence, ahead, .. } = member;
            ahead.then_some((sequence.slot, sequence.committed + count))
        };
        Self { found: Some(found), of: members.iter().zip(counts).map(of).collect() }
    }

    /// Whether nothing was drafted.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_none()
    }

    /// The draft of this sequence as it is now, and which of its streams that is.
    pub(super) fn find(&self, sequence: &Sequence) -> Option<(&BestTokens, usize)> {
        let now = Some((sequence.slot, sequence.committed));
        Some((self.found.as_ref()?, self.of.iter().position(|of| *of == now)?))
    }

    /// Leaves out the stream in this slot.
    pub(super) fn forget(&mut self, slot: usize) {
        for of in &mut self.of {
            of.take_if(|(own, _)| *own == slot);
        }
    }
}

impl Cuda {
    /// Runs a verify pass and what can follow it.
    pub(super) fn pass(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        let rows = TreeRows::of(members);
        let (tokens, segments) = (&rows.tokens, rows.segments(members));
        let draws: Vec<_> = members.iter().flat_map(draws).collect();
        let missing =
            || DeviceError(format!("no graph for {} rows of {} streams", tokens.len(), members.len()));
        let bucket = self.buckets.fit(tokens.len(), members.len()).ok_or_else(missing)?;
        let way = self.way(members, bucket);
        let graphs = match way {
            Way::Alone => &self.verify,
            Way::Plain => &self.plain,
            Way::Rotated => &self.rotated,
        };
        let graph = graphs.get(&bucket).ok_or_else(missing)?;
        let (stream, passes) = (&self.stream, &mut *self.shared.lock());
        passes.state.inputs.write(stream, tokens, &segments)?;
        passes.sampling.write(stream, &draws)?;
        replay(graph, &mut self.marks)?;
        self.graphs += 1;
        count(&mut self.ops, self.layers, tokens.len());
        if way == Way::Plain && !self.draft.is_empty() && members.iter().any(|m| m.sequence.drafts) {
            let moved: Vec<_> = members.iter().map(|m| (m.sequence, m.sequence.committed, 1)).collect();
            passes.keep(stream, &moved)?;
        }

        let drawn = self.landing.send(&passes.sampling.tokens(tokens.len())?)?;
        let behind = match (&passes.drafting, way) {
            (Some(drafting), Way::Rotated) => {
                let walked = self.landing.send(&drafting.walked(members.len())?)?;
                Some((walked, drafting.send(&mut self.landing, members.len())?))
            }
            _ => None,
        };
        let arrived = self.landing.wait()?;
        let found = answers(&draws, arrived.get(drawn));
        (self.committed, self.ahead) = match behind {
            Some((walked, best)) => {
                let counts: Vec<usize> =
                    arrived.get(walked).iter().map(|&count| usize::try_from(count).unwrap_or(0)).collect();
                let ahead = Ahead::new(best.arrived(arrived), members, &counts);
                (Some(counts), ahead)
            }
            None => ((way == Way::Plain).then(|| vec![1; members.len()]), Ahead::default()),
        };
        self.drafted &= way == Way::Alone;
        self.first = rows.first;
        Ok(found)
    }

    fn way(&self, members: &[Member<'_>], bucket: Bucket) -> Way {
        let ahead = members.iter().filter(|member| member.ahead).count();
        if members.iter().any(|member| member.draw.is_none()) {
            Way::Alone
        } else if ahead > 0 && self.buckets.fit(1, ahead).is_some_and(|own| own.streams == bucket.streams) {
            // A draft of as many streams is launched either way.
            Way::Rotated
        } else if members.iter().all(|member| member.tree.is_empty()) {
            Way::Plain
        } else {
            Way::Alone
        }
    }
}

/// How each row of a member's tree is drawn.
fn draws<'a>(member: &'a Member<'_>) -> impl Iterator<Item = Option<RowDraw>> + 'a {
    let next = |row: usize| member.sequence.committed + member.tree.depth(row) + 1;
    let draw = move |row| member.draw.map(|draw| RowDraw { draw, position: next(row) });
    member.tree.rows().map(draw)
}

/// Fails unless what streams that go on have taken is what the device has committed, so many rows of each member.
pub(super) fn same(committed: &[usize], kept: &[Kept<'_>]) -> Result<(), DeviceError> {
    for Kept { member, rows, .. } in kept {
        let own = committed.get(*member).copied().unwrap_or(0);
        if own != rows.len() {
            let found = rows.len();
            return Err(DeviceError(format!(
                "it has committed {own} rows of a stream, but the walk {found}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kd_ddtree::Tree;

    use super::*;

    fn sequence(slot: usize, committed: usize) -> Sequence {
        Sequence { slot, committed, ..Sequence::default() }
    }

    #[test]
    fn a_draft_is_for_the_stream_that_it_was_made_for_and_no_other() {
        let tree = Tree::empty();
        let own = [sequence(3, 60), sequence(0, 10), sequence(1, 7)];
        let members: Vec<Member<'_>> = own
            .iter()
            .zip([true, true, false])
            .map(|(sequence, ahead)| Member { sequence, bonus: 1, tree: &tree, draw: None, ahead })
            .collect();
        let best = BestTokens { tokens: vec![], logits: vec![], stats: vec![], finite: vec![] };
        let mut ahead = Ahead::new(best, &members, &[5, 1, 1]);
        let index =
            |ahead: &Ahead, slot, committed| ahead.find(&sequence(slot, committed)).map(|(_, index)| index);
        assert_eq!([index(&ahead, 3, 65), index(&ahead, 0, 11)], [Some(0), Some(1)]);
        assert_eq!(index(&ahead, 3, 64), None, "a walk that the host has not followed");
        assert_eq!(index(&ahead, 1, 8), None, "a stream that the drafter has not read");
        // Another stream takes the slot, and comes to as many tokens.
        ahead.forget(3);
        assert_eq!([index(&ahead, 3, 65), index(&ahead, 0, 11)], [None, Some(1)]);
        assert!(Ahead::default().is_empty() && !ahead.is_empty());
    }

    #[test]
    fn a_walk_that_differs_from_the_hosts_is_an_error() {
        let own = sequence(0, 9);
        let kept = |member, rows| Kept { sequence: &own, member, rows };
        assert_eq!(same(&[1, 3], &[kept(1, &[0, 2, 4])]), Ok(()));
        assert_eq!(same(&[1, 0], &[]), Ok(()), "a stream that has ended");
        let error = same(&[1, 2], &[kept(1, &[0, 2, 4])]).expect_err("one row less").to_string();
        assert!(error.contains("2 rows") && error.contains("the walk 3"), "{error}");
    }
}
