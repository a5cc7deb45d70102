//! One speculative round: draft, build, verify, walk, commit.

use kd_attn::{Ancestors, BlockSegment, Mask, Segment};
use kd_ddtree::{DraftRow, MAX_NODES, Marginals, Tree, walk};
use kd_model::{Drafter, Forward};
use kd_sample::Choice;

use crate::engine::{Engine, Step};
use crate::{RequestId, Speculation, StreamError};

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
        let trees = self.draft(&members);
        let (pass, logits) = self.verify(&members, &trees);
        let vocab = logits.cols();
        let mut ended = Vec::new();
        let mut first = 0;
        for ((at, bonus), tree) in members.into_iter().zip(trees) {
            let rows = &logits.data()[first * vocab..][..tree.rows().len() * vocab];
            let (visited, choices, failure) = self.walk(at, &tree, rows, vocab);
            let tokens: Vec<u32> = choices.iter().map(|c| c.token).collect();
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
    }

    /// The tree of each member; drafting streams share one pass of the drafter.
    fn draft(&mut self, members: &[(usize, u32)]) -> Vec<Tree> {
        let mut trees = vec![Tree::empty(); members.len()];
        let (Some(drafter), Some(context)) = (&self.models.drafter, &self.context) else { return trees };
        let drafting: Vec<usize> =
            (0..members.len()).filter(|&i| self.running[members[i].0].drafts()).collect();
        if drafting.is_empty() {
            return trees;
        }
        let bonus: Vec<u32> = drafting.iter().map(|&i| members[i].1).collect();
        let segments: Vec<BlockSegment<'_>> = drafting
            .iter()
            .map(|&i| &self.running[members[i].0])
            .map(|stream| BlockSegment { pages: &stream.pages, start: stream.committed })
            .collect();
        let draft = drafter
            .draft(&self.pool, self.models.target.as_ref().into(), &bonus, &segments, context)
            .expect("bonus tokens come from the target's own vocabulary");
        let depths = drafter.config().block_size - 1;
        let vocab = draft.logits.cols();
        for (i, logits) in drafting.into_iter().zip(draft.logits.data().chunks_exact(depths * vocab)) {
            let speculation = self.running[members[i].0].request.speculation;
            let k = if let Speculation::Tree { nodes } = speculation { nodes } else { 1 };
            // A row without finite maximum ends the draft there: a shorter tree is still a tree.
            let mut rows = vec![None; depths];
            let tasks = rows.iter_mut().zip(logits.chunks_exact(vocab)).collect();
            self.pool.for_each(tasks, |(row, logits): (&mut Option<DraftRow>, &[f32])| {
                *row = DraftRow::from_logits(logits, k);
            });
            let rows: Vec<DraftRow> =
                rows.into_iter().map_while(|row| in_target_ids(drafter, row?)).collect();
            if let Speculation::Tree { nodes } = speculation {
                let built = self.builder.build(&mut Marginals(&rows), nodes, &mut trees[i]);
                built.expect("budgets were checked when the request was taken");
            } else {
                let best = rows.iter().map_while(|row| row.child(0)).take(MAX_NODES);
                trees[i] = Tree::chain(best).expect("a chain of at most MAX_NODES");
            }
        }
        trees
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

    /// Writes the named rows of a pass into the pages of the running stream `at`: latents, and for a stream that drafts
    /// the drafter's context from the taps.
    pub(crate) fn commit(&mut self, at: usize, pass: &Forward, rows: &[usize]) {
        let stream = &mut self.running[at];
        let start = stream.committed;
        self.latents.commit(&pass.latents, rows, &stream.pages, start);
        if let (Some(drafter), Some(context), true) =
            (&self.models.drafter, &mut self.context, stream.drafts())
        {
            let taps = pass.taps.gather(rows.iter().copied());
            let layers = drafter.context(&self.pool, &taps, start..start + rows.len());
            let all: Vec<usize> = (0..rows.len()).collect();
            context.commit(&layers, &all, &stream.pages, start);
        }
        stream.committed += rows.len();
    }
}

/// A row of draft ids as one of target ids.
fn in_target_ids(drafter: &Drafter, row: DraftRow) -> Option<DraftRow> {
    let (tokens, logprobs): (Vec<u32>, Vec<f32>) =
        row.children().iter().map(|child| (drafter.target_id(child.token), child.logprob)).unzip();
    DraftRow::from_top_k(&tokens, &logprobs).ok()
}
