//! The verify pass of a round, with as much of what follows as the device can do without the host.
//!
//! *Verify → walk → commit → read → draft* is one launch where every stream's tokens are drawn on the device and about as many
//! streams as are verified will draft next. The host waits for the draws alone, and delivers them while the device goes on; it
//! comes back for how far each walk went and for the drafts when it builds the next trees. A stream that ends in the round (a stop, the last token it may have, text that is none) takes its
//! pages with it, so rows that were committed behind its end are seen by nobody.

use kd_attn::PAGE_TOKENS;
use kd_kernels::{Landing, Sent};
use kd_model::cuda::{BestTokens, Bucket, SentTokens};

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

/// What a pass has left of the next round.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    drafts: Drafts,
    /// Slot and committed tokens of each stream of the draft; `None` where it is for nobody.
    of: Vec<Option<(usize, usize)>>,
    /// Rows of each member that the host's walk has visited, where its stream goes on.
    visited: Vec<Option<usize>>,
    /// Whether the draft was at work while a prompt was waited for.
    pub(super) overlapped: bool,
}

#[derive(Debug, Default)]
enum Drafts {
    #[default]
    None,
    /// The device may still be at it: the numbers of rows that its walks have visited, and the drafts.
    Sent(Sent<i32>, SentTokens),
    There(BestTokens),
}

impl Ahead {
    /// Of a pass over these members, none of whose rows the host has seen yet.
    fn of(members: &[Member<'_>], drafts: Drafts) -> Self {
        let of =
            |member: &Member<'_>| member.ahead.then_some((member.sequence.slot, member.sequence.committed));
        let visited = vec![None; members.len()];
        Self { drafts, of: members.iter().map(of).collect(), visited, overlapped: false }
    }

    /// The host has walked: these rows are taken.
    pub(super) fn take(&mut self, kept: &[Kept<'_>]) {
        for Kept { member, rows, .. } in kept {
            self.visited[*member] = Some(rows.len());
            if let Some((_, committed)) = &mut self.of[*member] {
                *committed += rows.len();
            }
        }
    }

    /// Waits until the draft is there.
    ///
    /// # Errors
    /// A failed launch, walks on the device that were not the host's.
    pub(super) fn settle(&mut self, landing: &mut Landing) -> Result<(), DeviceError> {
        if let Drafts::Sent(walked, best) = &self.drafts {
            let arrived = landing.wait()?;
            same(arrived.get(*walked), &self.visited)?;
            self.drafts = Drafts::There(best.arrived(arrived));
        }
        Ok(())
    }

    /// Takes the draft, if one is at work, behind a prompt that was waited for.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(super) fn overlap(&mut self, landing: &mut Landing) -> Result<(), DeviceError> {
        self.overlapped |= matches!(self.drafts, Drafts::Sent(..));
        self.settle(landing)
    }

    /// The draft of this sequence as it is now, and which of its streams that is.
    pub(super) fn find(&self, sequence: &Sequence) -> Option<(&BestTokens, usize)> {
        let (Drafts::There(found), now) = (&self.drafts, Some((sequence.slot, sequence.committed))) else {
            return None;
        };
        Some((found, self.of.iter().position(|of| *of == now)?))
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
        let longest = members.iter().map(|member| member.sequence.committed).max().unwrap_or(0);
        let pages = longest.div_ceil(PAGE_TOKENS);
        let bucket = self.buckets.fit(tokens.len(), members.len(), pages).ok_or_else(missing)?;
        let way = self.way(members, bucket);
        let graphs = match way {
            Way::Alone => &self.verify,
            Way::Plain => &self.plain,
            Way::Rotated => &self.rotated,
        };
        let graph = graphs.get(&bucket).ok_or_else(missing)?;
        self.ahead.settle(&mut self.landing)?;
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

        let drafts = match (&passes.drafting, way) {
            (Some(drafting), Way::Rotated) => {
                let walked = self.landing.send(&drafting.walked(members.len())?)?;
                Drafts::Sent(walked, drafting.send(&mut self.landing, members.len())?)
            }
            _ => Drafts::None,
        };
        // The host delivers these tokens while the device commits and drafts.
        let found = answers(&draws, &passes.sampling.read(tokens.len())?);
        self.ahead = Ahead::of(members, drafts);
        self.committed = way != Way::Alone;
        self.drafted &= way == Way::Alone;
        self.first = rows.first;
        Ok(found)
    }

    fn way(&self, members: &[Member<'_>], bucket: Bucket) -> Way {
        let ahead = members.iter().filter(|member| member.ahead).count();
        if members.iter().any(|member| member.draw.is_none()) {
            Way::Alone
        } else if ahead > 0 && self.buckets.streams_of(ahead) == Some(bucket.streams) {
            // A draft of as many streams is launched either way.
            Way::Rotated
        } else if self.plain.contains_key(&bucket) && members.iter().all(|member| member.tree.is_empty()) {
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

/// Fails unless the device has walked as far as the host, wherever the stream goes on.
fn same(walked: &[i32], visited: &[Option<usize>]) -> Result<(), DeviceError> {
    for (&own, found) in walked.iter().zip(visited) {
        if let Some(found) = *found
            && usize::try_from(own) != Ok(found)
        {
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
        let mut ahead = Ahead::of(&members, Drafts::There(best));
        let rows = [0, 1, 2, 3, 4];
        let kept =
            |member: usize, count: usize| Kept { sequence: &own[member], member, rows: &rows[..count] };
        ahead.take(&[kept(0, 5), kept(1, 1), kept(2, 1)]);
        let index =
            |ahead: &Ahead, slot, committed| ahead.find(&sequence(slot, committed)).map(|(_, index)| index);
        assert_eq!([index(&ahead, 3, 65), index(&ahead, 0, 11)], [Some(0), Some(1)]);
        assert_eq!(index(&ahead, 3, 64), None, "another length");
        assert_eq!(index(&ahead, 1, 8), None, "a stream that was not to draft");
        // Another stream takes the slot, and comes to as many tokens.
        ahead.forget(3);
        assert_eq!([index(&ahead, 3, 65), index(&ahead, 0, 11)], [None, Some(1)]);
        let nothing = Ahead::of(&members, Drafts::None);
        assert_eq!(index(&nothing, 0, 10), None, "nothing was drafted");
    }

    #[test]
    fn a_walk_that_differs_from_the_hosts_is_an_error() {
        assert_eq!(same(&[1, 3], &[Some(1), Some(3)]), Ok(()));
        assert_eq!(same(&[0, 3], &[None, Some(3)]), Ok(()), "a stream that has ended");
        for own in [-1, 0, 2] {
            let error = same(&[1, own], &[None, Some(3)]).expect_err("another length").to_string();
            assert!(error.contains(&format!("{own} rows")) && error.contains("the walk 3"), "{error}");
        }
    }
}
