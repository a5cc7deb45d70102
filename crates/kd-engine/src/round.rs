//! One speculative round: draft, build, verify, walk, commit.

use std::time::Instant;

use kd_ddtree::budget::Verdict;
use kd_ddtree::{Tree, walk};
use kd_sample::Choice;

use crate::backend::{Answers, DeviceError, Kept, Member};
use crate::draft::Drafts;
use crate::engine::{Engine, Step};
use crate::{RequestId, StreamError};

/// What a round did for one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// Whose.
    pub id: RequestId,
    /// Position of the root.
    pub start: usize,
    /// The root: the newest token before the round.
    pub bonus: u32,
    /// The draft tree.
    pub tree: Tree,
    /// Rows of the tree that the target agreed with, the root first.
    pub rows: Vec<usize>,
    /// The target's token after each of these rows.
    pub tokens: Vec<u32>,
}

impl Engine {
    /// One round for every stream that has its first token.
    pub(crate) fn round(&mut self, step: &mut Step) -> Result<(), DeviceError> {
        let members: Vec<(usize, u32)> =
            self.running.iter().enumerate().filter_map(|(at, s)| Some((at, s.bonus?))).collect();
        if members.is_empty() {
            return Ok(());
        }
        let Drafts { trees, rows: draft_rows, ahead, plan, mut outcome } = self.draft(&members)?;
        outcome.overlapped = self.backend.settle()?;
        let begin = Instant::now();
        let answers = self.verify(&members, &trees, &ahead)?;
        let (mut ended, mut kept, mut lessons) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = 0;
        for (member, ((&(at, bonus), tree), draft_rows)) in
            members.iter().zip(trees).zip(draft_rows).enumerate()
        {
            let rows = tree.rows().len();
            let (mut visited, choices, failure) = self.walk(at, &tree, &answers, first);
            if let Some(StreamError::Device(error)) = failure {
                return Err(error);
            }
            let tokens: Vec<u32> = choices.iter().map(|c| c.token).collect();
            let start = self.running[at].sequence.committed;
            let delivered = self.deliver(at, choices, failure, step);
            let stream = &mut self.running[at];
            let accepted = (visited.len() - 1).min(delivered.gained);
            stream.stats.record_round(tree.len(), tree.max_depth(), accepted, delivered.gained);
            // What lies behind a stop is no part of the round.
            let seen = visited[..delivered.gained.min(visited.len())].to_vec();
            let gained = tokens[..delivered.gained].to_vec();
            step.rounds.push(Round { id: stream.id, start, bonus, rows: seen, tokens: gained, tree });
            if !draft_rows.is_empty() {
                outcome.accepted += (visited.len() - 1) as f64;
                lessons.push((at, draft_rows, tokens));
            }
            match delivered.end {
                Some(end) => ended.push((at, end)),
                None => {
                    visited.truncate(delivered.taken);
                    kept.push((member, at, visited));
                }
            }
            first += rows;
        }
        let committed = self.commit(&kept);
        outcome.verify = begin.elapsed().as_secs_f64();
        // A GPU drafts meanwhile. A calibration learns nothing, so with this in their time sizes that are chosen would look as if
        // the machine had become slower, and plain rounds with it.
        for (at, rows, tokens) in &lessons {
            self.budget.learn(&mut self.running[*at].record, Verdict { rows, tokens });
        }
        self.end(ended, step);
        committed?;
        self.budget.observe(&plan, &outcome);
        step.outcome = Some(outcome);
        Ok(())
    }

    /// Runs all rows of all trees through the target in one pass.
    fn verify(
        &mut self,
        members: &[(usize, u32)],
        trees: &[Tree],
        ahead: &[bool],
    ) -> Result<Answers, DeviceError> {
        let member = |((&(at, bonus), tree), &ahead): ((&(usize, u32), _), _)| {
            let stream = &self.running[at];
            Member { sequence: &stream.sequence, bonus, tree, draw: stream.draw(), ahead }
        };
        let members: Vec<Member<'_>> = members.iter().zip(trees).zip(ahead).map(member).collect();
        self.backend.verify(&members)
    }

    /// Follows the target's choices down the tree of the running stream `at`, whose root is row `first` of the pass:
    /// visited rows, the choice after each, and the error that ended the walk, if one did.
    fn walk(
        &mut self,
        at: usize,
        tree: &Tree,
        answers: &Answers,
        first: usize,
    ) -> (Vec<usize>, Vec<Choice>, Option<StreamError>) {
        let known = self.running[at].history.generated().len();
        let mut choices: Vec<Choice> = Vec::new();
        let mut visited = Vec::new();
        let outcome = walk(tree, |row| {
            // The history of a node is the stream's, then the node's own branch.
            let choice = self.choose(at, answers, first + row)?;
            let token = choice.token;
            self.running[at].history.push(token);
            visited.push(row);
            choices.push(choice);
            Ok(token)
        });
        self.running[at].history.truncate(known);
        let failure = outcome.err();
        if visited.is_empty() {
            visited.push(0);
        }
        (visited, choices, failure)
    }

    /// Commits what streams that go on have taken: member of the pass, running stream, rows of its tree.
    fn commit(&mut self, taken: &[(usize, usize, Vec<usize>)]) -> Result<(), DeviceError> {
        let kept: Vec<Kept<'_>> = taken
            .iter()
            .map(|&(member, at, ref rows)| Kept { sequence: &self.running[at].sequence, member, rows })
            .collect();
        self.backend.commit(&kept)?;
        for (_, at, rows) in taken {
            self.running[*at].sequence.committed += rows.len();
        }
        Ok(())
    }
}
