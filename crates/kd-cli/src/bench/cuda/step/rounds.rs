//! What the host does in a round: trees from what was drafted, the walk, and what the next launches read.

use std::time::{Duration, Instant};

use anyhow::ensure;
use kd_attn::{BlockSegment, Mask, PAGE_TOKENS, PageId, Segment};
use kd_ddtree::{DraftRow, Marginals, Tree, TreeBuilder, walk};
use kd_kernels::{Graph, Landing, Stream};
use kd_model::cuda::{Bucket, Committed, Move, SentTokens};

use super::rank::{Rank, Recording, Shared, Size};

/// The share of what is left that each next child of a draft row has. Random weights know nothing: their rows are flat, and
/// the best tree of flat rows has one level.
const SHARE: f32 = 0.6;

/// The streams of a cell, all of one length.
pub(super) struct Streams {
    pages: Vec<Vec<PageId>>,
    context: usize,
    nodes: usize,
    builder: TreeBuilder,
    trees: Vec<Tree>,
    bonus: Vec<u32>,
}

/// How rounds went.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounds {
    pub(super) count: usize,
    /// From the first round's beginning to the last one's end.
    pub(super) wall: Duration,
    /// Of that, the time that graphs ran on the device.
    pub(super) device: Duration,
}

impl Rounds {
    /// The share of the time in which no graph ran.
    pub(super) fn gap(&self) -> f64 {
        1.0 - self.device.as_secs_f64() / self.wall.as_secs_f64()
    }
}

/// Pages of a stream that holds `context` tokens and commits up to `kept` more.
pub(super) fn pages(context: usize, kept: usize) -> usize {
    (context + kept).div_ceil(PAGE_TOKENS)
}

impl Streams {
    /// `count` streams of `context` tokens with trees of `nodes` rows, their roots included.
    pub(super) fn new(count: usize, nodes: usize, context: usize, kept: usize) -> Self {
        let own = pages(context, kept);
        let page = |at: usize| PageId(u32::try_from(at).unwrap_or(u32::MAX));
        Self {
            pages: (0..count).map(|stream| (stream * own..(stream + 1) * own).map(page).collect()).collect(),
            context,
            nodes,
            builder: TreeBuilder::new(),
            trees: vec![Tree::empty(); count],
            bonus: (0..count as u32).collect(),
        }
    }

    /// Keys that all rows see together.
    pub(super) fn seen(&self) -> usize {
        let of = |tree: &Tree| tree.rows().map(|row| self.context + tree.depth(row) + 1).sum::<usize>();
        self.trees.iter().map(of).sum()
    }

    /// Grows the trees from `best`, the tokens of each stream's draft rows, best first.
    fn grow(&mut self, best: &[Vec<DraftRow>]) -> anyhow::Result<()> {
        for (tree, rows) in self.trees.iter_mut().zip(best) {
            let rows: Vec<DraftRow> = rows.iter().map(scored).collect::<Result<_, _>>()?;
            self.builder.build(&mut Marginals(&rows), self.nodes - 1, tree)?;
            let found = tree.rows().len();
            ensure!(found == self.nodes, "a draft gave a tree of {found} rows instead of {}", self.nodes);
        }
        Ok(())
    }

    /// Writes the verify pass over `tokens`, those of all rows.
    fn write(&self, stream: &Stream, rank: &mut Rank, tokens: &[u32]) -> anyhow::Result<()> {
        let masks: Vec<Vec<[u64; 2]>> =
            self.trees.iter().map(|tree| tree.rows().skip(1).map(|row| tree.mask(row)).collect()).collect();
        let segments: Vec<Segment<'_>> = self
            .pages
            .iter()
            .zip(&masks)
            .map(|(pages, mask)| Segment {
                pages,
                committed: self.context,
                rows: self.nodes,
                mask: Mask::Tree(mask),
            })
            .collect();
        Ok(rank.state.inputs.write(stream, tokens, &segments)?)
    }

    /// The tokens of all rows, as drafted.
    fn tokens(&self) -> Vec<u32> {
        let rows = |(tree, bonus): (&Tree, &u32)| {
            let drafted: Vec<u32> = tree.nodes().iter().map(|node| node.token).collect();
            std::iter::once(*bonus).chain(drafted)
        };
        self.trees.iter().zip(&self.bonus).flat_map(rows).collect()
    }

    /// Follows the drawn tokens, as the device has done. The context does not grow, so that every round is the same.
    fn accept(&mut self, drawn: &[i32]) -> anyhow::Result<()> {
        for (index, tree) in self.trees.iter().enumerate() {
            let first = index * self.nodes;
            self.bonus[index] = walk(tree, |row| u32::try_from(drawn[first + row]))?.next_token;
        }
        Ok(())
    }

    fn write_commit(
        &self,
        stream: &Stream,
        rank: &Rank,
        moves: &[Move],
        committed: &[Option<Committed>],
    ) -> anyhow::Result<()> {
        rank.state.inputs.write_moves(stream, moves)?;
        rank.drafts.write_context(stream, committed)?;
        let blocks: Vec<BlockSegment<'_>> =
            self.pages.iter().map(|pages| BlockSegment { pages, start: self.context }).collect();
        Ok(rank.drafts.write_blocks(stream, &self.bonus, &blocks)?)
    }

    /// What launches are timed with: every row has a token of its own, and as many rows are committed as one round can.
    pub(super) fn prepare(&mut self, stream: &Stream, rank: &mut Rank, size: Size) -> anyhow::Result<()> {
        let falling: Vec<f32> = (0u8..64).map(|rank| -f32::from(rank)).collect();
        let row = DraftRow::from_top_k(&(0..64).collect::<Vec<u32>>(), &falling)?;
        let rows = vec![scored(&row)?; rank.drafter.dims().drafted()];
        self.grow(&vec![rows; self.trees.len()])?;
        let tokens: Vec<u32> = (0..size.bucket.rows as u32).collect();
        self.write(stream, rank, &tokens)?;
        let each = size.kept / self.trees.len();
        let (mut moves, mut committed) = (Vec::new(), Vec::new());
        for (index, pages) in self.pages.iter().enumerate() {
            let rows: Vec<usize> = (0..each).map(|row| index * self.nodes + row).collect();
            moves.extend(Move::path(&rows, pages, self.context));
            let at = |position: usize| Committed { position, page: pages[position / PAGE_TOKENS] };
            committed.extend((self.context..self.context + each).map(|position| Some(at(position))));
        }
        self.write_commit(stream, rank, &moves, &committed)
    }

    /// Runs `count` rounds, each a replay of `round`, or as many as `most` takes.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        shared: &Shared,
        round: &Graph<Recording>,
        size: Size,
        count: usize,
        most: Duration,
    ) -> anyhow::Result<Rounds> {
        let Bucket { rows, streams, .. } = size.bucket;
        let drafted = streams * shared.lock().drafter.dims().drafted();
        let mut landing = Landing::new(stream, Landing::bytes::<i32>(rows) + SentTokens::bytes(drafted))?;
        let (mut device, mut done, mut begin) = (0.0, 0, Instant::now());
        let mut best = Vec::new();
        // The first one is for its drafts: its trees are those that launches were timed with.
        for index in 0..=count {
            if index > 0 {
                self.grow(&best)?;
                self.write(stream, &mut shared.lock(), &self.tokens())?;
            }
            let marks = round.launch_marked()?;
            let rank = shared.lock();
            let (drawn, sent) = rank.send(&mut landing, size.bucket)?;
            let arrived = landing.wait()?;
            self.accept(arrived.get(drawn))?;
            let found = [sent.arrived(arrived)];
            best = (0..streams).map(|stream| rank.drafter.rows(&found, stream, 64)).collect();
            if index == 0 {
                begin = Instant::now();
                continue;
            }
            (device, done) = (device + marks.micros()?, index);
            if begin.elapsed() >= most {
                break;
            }
        }
        Ok(Rounds { count: done, wall: begin.elapsed(), device: Duration::from_secs_f64(device * 1e-6) })
    }
}

/// The tokens of a row under a geometric law.
fn scored(row: &DraftRow) -> Result<DraftRow, kd_ddtree::RowError> {
    let tokens: Vec<u32> = row.children().iter().map(|child| child.token).collect();
    let law = |rank: usize| SHARE.ln() + rank as f32 * (1.0 - SHARE).ln();
    DraftRow::from_top_k(&tokens, &(0..tokens.len()).map(law).collect::<Vec<f32>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_row_gives_trees_with_breadth_and_depth() {
        let flat = DraftRow::from_top_k(&(0..64).collect::<Vec<u32>>(), &[-4.0; 64]).expect("a row");
        let rows = vec![scored(&flat).expect("scored"); 7];
        let mut tree = Tree::empty();
        TreeBuilder::new().build(&mut Marginals(&rows), 32, &mut tree).expect("a tree");
        let level = tree.nodes().iter().filter(|node| node.depth == 1).count();
        assert!(tree.len() == 32 && tree.max_depth() >= 5 && level >= 3, "{tree:?}");
    }

    #[test]
    fn the_gap_is_what_the_device_does_not_fill() {
        let [wall, device] = [1000, 980].map(Duration::from_millis);
        assert!((Rounds { count: 500, wall, device }.gap() - 0.02).abs() < 1e-12);
    }

    #[test]
    fn a_stream_has_pages_for_what_a_round_commits() {
        assert_eq!([pages(0, 1), pages(1024, 0), pages(1024, 1), pages(1023, 8)], [1, 16, 17, 17]);
    }
}
