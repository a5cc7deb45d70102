//! Drafting: which streams draft, and the tree of each.

use std::time::Instant;

use kd_attn::BlockSegment;
use kd_ddtree::budget::{Calibrated, Load, Outcome, Plan};
use kd_ddtree::{DraftRow, MAX_NODES, Marginals, Tree};
use kd_model::Drafter;

use crate::engine::Engine;
use crate::stream::Stream;
use crate::{Speculation, unread};

/// What was drafted for the members of a round.
pub(crate) struct Drafts {
    /// The tree of each member.
    pub(crate) trees: Vec<Tree>,
    /// The draft rows of each member whose tree was a matter of the budget, for others none.
    pub(crate) rows: Vec<Vec<DraftRow>>,
    pub(crate) plan: Plan,
    /// Sizes and times so far.
    pub(crate) outcome: Outcome,
}

impl Engine {
    /// The tree of each member; drafting streams share one pass of the drafter.
    pub(crate) fn draft(&mut self, members: &[(usize, u32)]) -> Drafts {
        let depths = self.models.drafter.as_ref().map_or(0, |drafter| drafter.config().block_size - 1);
        let stream = |i: usize| -> &Stream { &self.running[members[i].0] };
        // Those with a tree of their own draft in every round; of the others, those first that have least to read.
        let (mut drafting, mut may, mut nodes) = (Vec::new(), Vec::new(), 0);
        for i in (0..members.len()).filter(|_| depths > 0) {
            match stream(i).request.speculation {
                Speculation::Plain | Speculation::Tree { nodes: 0 } => continue,
                Speculation::Auto => may.push(i),
                Speculation::Chain => (nodes += depths, drafting.push(i)).1,
                Speculation::Tree { nodes: own } => (nodes += own, drafting.push(i)).1,
            }
        }
        may.sort_by_key(|&i| stream(i).unread.tokens());
        let unread: Vec<usize> = may.iter().map(|&i| stream(i).unread.tokens()).collect();
        let committed: usize = (0..members.len()).map(|i| stream(i).committed).sum();
        let load = Load {
            streams: members.len(),
            rows: members.len() + nodes,
            drafting: drafting.len(),
            context: committed / members.len(),
            depths,
            unread: &unread,
        };
        let plan = self.budget.plan(&load);
        let own = drafting.len();
        drafting.extend(&may[..plan.drafters]);

        let mut drafts = Drafts {
            trees: vec![Tree::empty(); members.len()],
            rows: vec![Vec::new(); members.len()],
            plan,
            outcome: Outcome { drafting: drafting.len(), context: load.context, ..Outcome::default() },
        };
        if !drafting.is_empty() {
            let begin = Instant::now();
            drafts.outcome.read_tokens = self.read(members, &drafting);
            drafts.outcome.read = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let mut rows = self.draft_rows(members, &drafting);
            let chosen = rows.split_off(own);
            for (&i, rows) in drafting.iter().zip(&rows) {
                drafts.trees[i] = self.own_tree(members[i].0, rows);
            }
            self.share_budget(&load, &mut drafts, &drafting[own..], chosen);
            drafts.outcome.draft = begin.elapsed().as_secs_f64();
        }
        drafts.outcome.rows = drafts.trees.iter().map(|tree| tree.rows().len()).sum();
        drafts
    }

    /// Lets the drafter catch up with what the drafting members have committed; returns the number of tokens.
    fn read(&mut self, members: &[(usize, u32)], drafting: &[usize]) -> usize {
        let (Some(drafter), Some(context)) = (&self.models.drafter, &mut self.context) else { return 0 };
        let named: Vec<usize> = drafting.iter().map(|&i| members[i].0).collect();
        unread::read(&self.pool, drafter, context, &mut self.running, &named)
    }

    /// The draft rows of the drafting members, each as deep as it has finite rows: a shorter tree is still a tree.
    fn draft_rows(&self, members: &[(usize, u32)], drafting: &[usize]) -> Vec<Vec<DraftRow>> {
        let (Some(drafter), Some(context)) = (&self.models.drafter, &self.context) else {
            return vec![Vec::new(); drafting.len()];
        };
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
        let best = |i: usize| match self.running[members[i].0].request.speculation {
            Speculation::Tree { nodes } => nodes,
            Speculation::Auto => self.budget.options().limits.cap,
            Speculation::Plain | Speculation::Chain => 1,
        };
        let mut rows = vec![None; drafting.len() * depths];
        let kept = drafting.iter().flat_map(|&i| std::iter::repeat_n(best(i), depths));
        let tasks = rows.iter_mut().zip(draft.logits.data().chunks_exact(vocab)).zip(kept).collect();
        self.pool.for_each(tasks, |((row, logits), k): ((&mut Option<DraftRow>, &[f32]), usize)| {
            *row = DraftRow::from_logits(logits, k);
        });
        let rows = rows.chunks_exact_mut(depths);
        rows.map(|rows| rows.iter_mut().map_while(|row| in_target_ids(drafter, row.take()?)).collect())
            .collect()
    }

    /// The tree of the running stream `at`, whose budget is its own.
    fn own_tree(&mut self, at: usize, rows: &[DraftRow]) -> Tree {
        let Speculation::Tree { nodes } = self.running[at].request.speculation else {
            let best = rows.iter().map_while(|row| row.child(0)).take(MAX_NODES);
            return Tree::chain(best).expect("a chain of at most MAX_NODES");
        };
        let mut tree = Tree::empty();
        let built = self.builder.build(&mut Marginals(rows), nodes, &mut tree);
        built.expect("budgets were checked when the request was taken");
        tree
    }

    /// Grows the trees of the members `sharing` under one budget.
    fn share_budget(
        &mut self,
        load: &Load<'_>,
        drafts: &mut Drafts,
        sharing: &[usize],
        rows: Vec<Vec<DraftRow>>,
    ) {
        if sharing.is_empty() {
            return;
        }
        let calibration = self.budget.calibration();
        let mut scorers: Vec<Calibrated> = rows.iter().map(|rows| calibration.calibrate(rows)).collect();
        let limits = vec![self.budget.options().limits; sharing.len()];
        self.builder
            .build_forest(&mut scorers, &limits, drafts.plan.reach, &mut self.forest)
            .expect("limits of the budget, one for each scorer");
        let phi: Vec<f64> = self.forest.phi().collect();
        let nodes = self.budget.choose(&mut drafts.plan, load, &phi);
        self.forest.truncate(nodes);
        drafts.outcome.promised = phi[nodes];
        for ((&i, tree), rows) in sharing.iter().zip(self.forest.trees()).zip(rows) {
            drafts.trees[i].clone_from(tree);
            drafts.rows[i] = rows;
        }
    }
}

/// A row of draft ids as one of target ids.
fn in_target_ids(drafter: &Drafter, row: DraftRow) -> Option<DraftRow> {
    let (tokens, logprobs): (Vec<u32>, Vec<f32>) =
        row.children().iter().map(|child| (drafter.target_id(child.token), child.logprob)).unzip();
    DraftRow::from_top_k(&tokens, &logprobs).ok()
}
