//! One speculative round: draft, build, verify, walk, commit.

use std::time::Instant;

use kd_attn::{Ancestors, Mask, Segment};
use kd_ddtree::budget::Verdict;
use kd_ddtree::{Tree, walk};
use kd_model::Forward;
use kd_sample::Choice;

use crate::draft::Drafts;
use crate::engine::{Engine, Step};
use crate::{RequestId, StreamError, unread};

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
    pub(crate) fn round(&mut self, step: &mut Step) {
        let members: Vec<(usize, u32)> =
            self.running.iter().enumerate().filter_map(|(at, s)| Some((at, s.bonus?))).collect();
        if members.is_empty() {
            return;
        }
        let Drafts { trees, rows: draft_rows, plan, mut outcome } = self.draft(&members);
        let begin = Instant::now();
        let (pass, logits) = self.verify(&members, &trees);
        let vocab = logits.cols();
        let mut ended = Vec::new();
        let mut first = 0;
        for (((at, bonus), tree), draft_rows) in members.into_iter().zip(trees).zip(draft_rows) {
            let rows = &logits.data()[first * vocab..][..tree.rows().len() * vocab];
            let (visited, choices, failure) = self.walk(at, &tree, rows, vocab);
            let tokens: Vec<u32> = choices.iter().map(|c| c.token).collect();
            if !draft_rows.is_empty() {
                outcome.accepted += (visited.len() - 1) as f64;
                self.budget.calibration_mut().learn(Verdict { rows: &draft_rows, tokens: &tokens });
            }
            let start = self.running[at].committed;
            let delivered = self.deliver(at, choices, failure, step);
            let stream = &mut self.running[at];
            let accepted = (visited.len() - 1).min(delivered.gained);
            stream.stats.record_round(tree.len(), tree.max_depth(), accepted, delivered.gained);
            // What lies behind a stop is no part of the round.
            let seen = visited[..delivered.gained.min(visited.len())].to_vec();
            let tokens = tokens[..delivered.gained].to_vec();
            step.rounds.push(Round { id: stream.id, start, bonus, rows: seen, tokens, tree });
            match delivered.end {
                Some(end) => ended.push((at, end)),
                None => {
                    let kept: Vec<usize> = visited[..delivered.taken].iter().map(|row| first + row).collect();
                    self.commit(at, &pass, &kept);
                }
            }
            first += rows.len() / vocab;
        }
        self.end(ended, step);
        outcome.verify = begin.elapsed().as_secs_f64();
        self.budget.observe(&plan, &outcome);
        step.outcome = Some(outcome);
    }

    /// Runs all rows of all trees through the target in one pass; logits `[rows, vocab]`.
    fn verify(&mut self, members: &[(usize, u32)], trees: &[Tree]) -> (Forward, kd_tensor::Matrix) {
        let mut tokens = Vec::new();
        let masks: Vec<Vec<Ancestors>> =
            trees.iter().map(|tree| (1..=tree.len()).map(|row| tree.mask(row)).collect()).collect();
        let mut segments = Vec::with_capacity(members.len());
        for ((&(at, bonus), tree), masks) in members.iter().zip(trees).zip(&masks) {
            let stream = &self.running[at];
            tokens.push(bonus);
            tokens.extend(tree.nodes().iter().map(|node| node.token));
            let rows = tree.rows().len();
            segments.push(Segment {
                pages: &stream.pages,
                committed: stream.committed,
                rows,
                mask: Mask::Tree(masks),
            });
        }
        let target = &self.models.target;
        let pass = target
            .forward(&self.pool, &tokens, &segments, &self.latents, self.models.taps(), &mut self.ops)
            .expect("draft tokens lie in the target's vocabulary");
        let logits = target.logits(&self.pool, &pass.hidden);
        (pass, logits)
    }

    /// Follows the target's choices down the tree of the running stream `at`: visited rows, the choice after each,
    /// and the error that ended the walk, if one did.
    fn walk(
        &mut self,
        at: usize,
        tree: &Tree,
        logits: &[f32],
        vocab: usize,
    ) -> (Vec<usize>, Vec<Choice>, Option<StreamError>) {
        let known = self.running[at].history.generated().len();
        let mut choices: Vec<Choice> = Vec::new();
        let mut visited = Vec::new();
        let outcome = walk(tree, |row| {
            // The history of a node is the stream's, then the node's own branch.
            let choice = self.choose(at, &logits[row * vocab..][..vocab])?;
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

    /// Writes the named rows' latents of a pass into the pages of the running stream `at`, and keeps their taps for the
    /// drafter if the stream may draft.
    pub(crate) fn commit(&mut self, at: usize, pass: &Forward, rows: &[usize]) {
        let stream = &mut self.running[at];
        let start = stream.committed;
        self.latents.commit(&pass.latents, rows, &stream.pages, start);
        stream.committed += rows.len();
        if let (Some(drafter), Some(context), true) =
            (&self.models.drafter, &mut self.context, stream.drafts())
        {
            stream.unread.push(&pass.taps, rows);
            if stream.unread.is_full() {
                unread::read(&self.pool, drafter, context, &mut self.running, &[at]);
            }
        }
    }
}
