//! Drafting: which streams draft, and the tree of each.

use std::time::Instant;

use kd_ddtree::budget::{Calibrated, Candidate, Load, Outcome, Plan};
use kd_ddtree::{DraftRow, Marginals, StreamLimits, Tree};

use crate::Speculation;
use crate::backend::{DeviceError, Head, Sequence};
use crate::engine::Engine;
use crate::stream::Stream;

/// Most tokens of a draft row that the automatic budget chooses among. Trees take further ones from rows so flat that hardly
/// a token of them is accepted.
const BEST: usize = 8;

/// What was drafted for the members of a round.
pub(crate) struct Drafts {
    /// The tree of each member.
    pub(crate) trees: Vec<Tree>,
    /// The draft rows of each member whose tree was a matter of the budget, for others none.
    pub(crate) rows: Vec<Vec<DraftRow>>,
    /// Which members will draft in the next round as well.
    pub(crate) ahead: Vec<bool>,
    pub(crate) plan: Plan,
    /// Sizes and times so far.
    pub(crate) outcome: Outcome,
}

impl Drafts {
    /// Of a round of so many members without drafts.
    fn none(members: usize, plan: Plan, context: usize) -> Self {
        Self {
            trees: vec![Tree::empty(); members],
            rows: vec![Vec::new(); members],
            ahead: vec![false; members],
            plan,
            outcome: Outcome { rows: members, context, ..Outcome::default() },
        }
    }
}

impl Engine {
    /// The tree of each member; drafting streams share one pass of the drafter.
    pub(crate) fn draft(&mut self, members: &[(usize, u32)]) -> Result<Drafts, DeviceError> {
        let begin = Instant::now();
        // Where nothing changes and nothing is drafted, what each stream may draft is not looked up: for sixteen that takes longer
        // than all else between two passes.
        let resting = self.resting.take() == Some(members.len());
        if let Some(plan) = resting.then(|| self.budget.rested()).flatten() {
            self.resting = Some(members.len());
            return Ok(Drafts::none(members.len(), plan, self.context(members)));
        }
        let depths = self.depths();
        let stream = |i: usize| -> &Stream { &self.running[members[i].0] };
        // Those with a tree of their own draft in every round.
        let (mut drafting, mut may, mut nodes) = (Vec::new(), Vec::new(), 0);
        for i in (0..members.len()).filter(|_| depths > 0) {
            match stream(i).request.speculation {
                Speculation::Plain | Speculation::Tree { nodes: 0 } => continue,
                Speculation::Auto => may.push(self.candidate(i, stream(i))),
                Speculation::Chain => (nodes += depths, drafting.push(i)).1,
                Speculation::Tree { nodes: own } => (nodes += own, drafting.push(i)).1,
            }
        }
        self.budget.rank(members.len(), &mut may);
        let load = Load {
            streams: members.len(),
            rows: members.len() + nodes,
            drafting: drafting.len(),
            context: self.context(members),
            depths,
            candidates: &may,
        };
        let plan = self.budget.plan(&load);
        let own = drafting.len();
        drafting.extend(may[..plan.drafters].iter().map(|candidate| candidate.id));

        let mut drafts = Drafts::none(members.len(), plan, load.context);
        drafts.ahead = self.ahead(members, &drafting, own, &plan);
        drafts.outcome.drafting = drafting.len();
        self.resting = (drafting.is_empty() && !may.is_empty()).then_some(members.len());
        if !drafting.is_empty() {
            let decided = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            drafts.outcome.read_tokens = self.catch_up(members, &drafting)?;
            drafts.outcome.read = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let mut rows = self.draft_rows(members, &drafting)?;
            let chosen = rows.split_off(own);
            for (&i, rows) in drafting.iter().zip(&rows) {
                drafts.trees[i] = self.own_tree(members[i].0, rows);
            }
            self.share_budget(members, &load, &mut drafts, &drafting[own..], chosen);
            // To decide who drafts is part of what drafting costs: on a GPU it is some hundredths of a round.
            drafts.outcome.draft = decided + begin.elapsed().as_secs_f64();
        }
        drafts.outcome.rows = drafts.trees.iter().map(|tree| tree.rows().len()).sum();
        Ok(drafts)
    }

    /// Committed tokens of a stream, the mean over the members.
    fn context(&self, members: &[(usize, u32)]) -> usize {
        let committed = members.iter().map(|&(at, _)| self.running[at].sequence.committed);
        committed.sum::<usize>() / members.len()
    }

    /// Tokens that a draft is deep, 0 where nothing can be drafted. A tree is no deeper than it has nodes.
    pub(crate) fn depths(&self) -> usize {
        let depths = self.models.drafter.as_ref().map_or(0, |drafter| drafter.config().block_size - 1);
        depths.min(self.nodes)
    }

    /// Which of the drafting members, the first `own` of which draft in every round, will draft in the next one.
    fn ahead(&self, members: &[(usize, u32)], drafting: &[usize], own: usize, plan: &Plan) -> Vec<bool> {
        let mut ahead = vec![false; members.len()];
        let goes_on = self.budget.goes_on(plan);
        for &i in &drafting[..if goes_on { drafting.len() } else { own }] {
            let stream = &self.running[members[i].0];
            // The last token of an answer is in any case the last.
            ahead[i] = stream.history.generated().len() + 1 < stream.request.max_tokens;
        }
        ahead
    }

    /// Member `i` of a round, which shares the budget.
    fn candidate(&self, i: usize, stream: &Stream) -> Candidate {
        let generated = stream.history.generated().len();
        Candidate {
            id: i,
            record: stream.record,
            unread: self.backend.unread(stream.sequence.slot),
            left: stream.request.max_tokens.saturating_sub(generated),
        }
    }

    /// Lets the drafter catch up with what the drafting members have committed; returns the number of tokens.
    fn catch_up(&mut self, members: &[(usize, u32)], drafting: &[usize]) -> Result<usize, DeviceError> {
        let sequences: Vec<&Sequence> =
            drafting.iter().map(|&i| &self.running[members[i].0].sequence).collect();
        self.backend.catch_up(&sequences)
    }

    /// The draft rows of the drafting members.
    fn draft_rows(
        &mut self,
        members: &[(usize, u32)],
        drafting: &[usize],
    ) -> Result<Vec<Vec<DraftRow>>, DeviceError> {
        let best = self.limits().cap.min(BEST);
        let head = |&i: &usize| {
            let (at, bonus) = members[i];
            let stream = &self.running[at];
            let best = match stream.request.speculation {
                Speculation::Tree { nodes } => nodes,
                Speculation::Auto => best,
                Speculation::Plain | Speculation::Chain => 1,
            };
            Head { sequence: &stream.sequence, bonus, best }
        };
        let heads: Vec<Head<'_>> = drafting.iter().map(head).collect();
        self.backend.draft(&heads)
    }

    /// Nodes of a stream that shares the budget.
    pub(crate) fn limits(&self) -> StreamLimits {
        let StreamLimits { floor, cap } = self.budget.options().limits;
        StreamLimits { floor: floor.min(self.nodes), cap: cap.min(self.nodes) }
    }

    /// The tree of the running stream `at`, whose budget is its own.
    fn own_tree(&mut self, at: usize, rows: &[DraftRow]) -> Tree {
        let Speculation::Tree { nodes } = self.running[at].request.speculation else {
            let best = rows.iter().map_while(|row| row.child(0)).take(self.nodes);
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
        members: &[(usize, u32)],
        load: &Load<'_>,
        drafts: &mut Drafts,
        sharing: &[usize],
        rows: Vec<Vec<DraftRow>>,
    ) {
        if sharing.is_empty() {
            return;
        }
        let limits = vec![self.limits(); sharing.len()];
        let record = |i: usize| &self.running[members[i].0].record;
        let scorers = sharing.iter().zip(&rows).map(|(&i, rows)| self.budget.scorer(record(i), rows));
        let mut scorers: Vec<Calibrated<'_>> = scorers.collect();
        let mut growth = self.budget.growth(&drafts.plan, load);
        self.builder
            .build_forest_while(&mut scorers, &limits, &mut self.forest, |nodes, score| {
                growth.wants(nodes, score)
            })
            .expect("limits of the budget, one for each scorer");
        for (&i, tree) in sharing.iter().zip(self.forest.trees()) {
            self.budget.drafted(&drafts.plan, &mut self.running[members[i].0].record, tree);
        }
        let (nodes, promised) = growth.chosen(&self.forest);
        self.forest.truncate(nodes);
        drafts.outcome.promised = promised;
        for ((&i, tree), rows) in sharing.iter().zip(self.forest.trees()).zip(rows) {
            drafts.trees[i].clone_from(tree);
            drafts.rows[i] = rows;
        }
    }
}
