//! Passes of tree nodes with their inputs, and the f64 decode of one row that they are measured against.

use half::bf16;
use kd_kernels::selftest::{Bound, Random, gather};

use super::pages::rounded;
use crate::{Ancestors, Fp8Entry, Mask, PAGE_TOKENS, PageId, Segment};

/// What the inputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// Queries of zero over keys that are zero in the pages and one-hot in the tree: a row is the average of what it sees, so
    /// column `i` tells whether it saw node `i`.
    Average,
    /// One-hot queries over one-hot keys: a row picks the keys of one column.
    Pick,
    /// Uniform values.
    Random,
}

/// One stream of a pass.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    /// Parent of each node but the root, which is node 0.
    pub(crate) parents: Vec<usize>,
    pub(crate) committed: usize,
}

impl Branch {
    /// A random tree of `nodes` nodes that is at most `depth` deep below its root.
    pub(crate) fn random(nodes: usize, committed: usize, depth: usize, random: &mut Random) -> Self {
        let mut depths = vec![0];
        let mut parents = Vec::new();
        while depths.len() < nodes {
            let parent = random.below(depths.len());
            if depths[parent] < depth {
                parents.push(parent);
                depths.push(depths[parent] + 1);
            }
        }
        Self { parents, committed }
    }

    /// A tree without branches.
    pub(crate) fn chain(nodes: usize, committed: usize) -> Self {
        Self { parents: (0..nodes - 1).collect(), committed }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.parents.len() + 1
    }

    /// Keys that all nodes see, added up.
    pub(crate) fn seen(&self) -> usize {
        let depth = |words: &Ancestors| words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let depths: usize = self.ancestors().iter().map(depth).sum();
        self.nodes() * (self.committed + 1) + depths
    }

    pub(crate) fn ancestors(&self) -> Vec<Ancestors> {
        let mut all: Vec<Ancestors> = Vec::new();
        for (i, &parent) in self.parents.iter().enumerate() {
            let mut own = if parent == 0 { [0; 2] } else { all[parent - 1] };
            own[i / 64] |= 1 << (i % 64);
            all.push(own);
        }
        all
    }
}

/// Widths of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Widths {
    pub(crate) heads: usize,
    pub(crate) latent: usize,
    pub(crate) rope: usize,
    /// Whether pages hold FP8 entries, and scratch what these give back.
    pub(crate) fp8: bool,
}

impl Widths {
    pub(crate) fn key(self) -> usize {
        self.latent + self.rope
    }

    pub(crate) fn entry(self) -> Fp8Entry {
        Fp8Entry { latent: self.latent, rope: self.rope }
    }
}

/// A pass over some streams: every input as it is before it is laid out in pages.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) widths: Widths,
    pub(crate) branches: Vec<Branch>,
    /// `[rows, heads, key]`
    pub(crate) queries: Vec<bf16>,
    /// `[rows, key]`: entries of the nodes.
    pub(crate) scratch: Vec<bf16>,
    /// For each stream `[committed, key]`.
    pub(crate) context: Vec<Vec<bf16>>,
}

/// Factor on the scores: that of K2.6, about.
pub(crate) const SCALE: f32 = 0.1147;

impl Case {
    pub(crate) fn new(widths: Widths, branches: Vec<Branch>, inputs: Inputs, random: &mut Random) -> Self {
        let key = widths.key();
        let rows: usize = branches.iter().map(Branch::nodes).sum();
        let one_hot = |at: usize, value: f32| -> Vec<bf16> {
            (0..key).map(|i| bf16::from_f32(if i == at { value } else { 0.0 })).collect()
        };
        let mut of = |count: usize, each: &dyn Fn(usize, &mut Random) -> Vec<bf16>| -> Vec<bf16> {
            (0..count).flat_map(|i| each(i, random)).collect()
        };
        let (queries, scratch): (Vec<bf16>, Vec<bf16>) = match inputs {
            Inputs::Average => (
                vec![bf16::ZERO; rows * widths.heads * key],
                branches
                    .iter()
                    .flat_map(|b| (0..b.nodes()).flat_map(|n| one_hot(n % widths.latent, 1.0)))
                    .collect(),
            ),
            Inputs::Pick => (
                of(rows * widths.heads, &|_, random| one_hot(random.below(key), 8.0)),
                of(rows, &|_, random| one_hot(random.below(key), 8.0)),
            ),
            Inputs::Random => (
                of(rows * widths.heads, &|_, random| random.values(key, 2.0)),
                of(rows, &|_, random| random.values(key, 1.0)),
            ),
        };
        let context = branches
            .iter()
            .map(|branch| match inputs {
                Inputs::Average => vec![bf16::ZERO; branch.committed * key],
                Inputs::Pick => of(branch.committed, &|_, random| one_hot(random.below(key), 8.0)),
                Inputs::Random => of(branch.committed, &|_, random| random.values(key, 1.0)),
            })
            .collect();
        let mut case = Self { widths, branches, queries, scratch, context };
        if widths.fp8 {
            let all = case.context.iter_mut().chain([&mut case.scratch]);
            all.for_each(|entries| rounded(widths.entry(), entries));
        }
        case
    }

    /// A pass whose tokens are of no interest.
    pub(crate) fn without_context(widths: Widths, branches: Vec<Branch>, random: &mut Random) -> Self {
        let rows: usize = branches.iter().map(Branch::nodes).sum();
        Self {
            widths,
            queries: random.values(rows * widths.heads * widths.key(), 1.0),
            scratch: random.values(rows * widths.key(), 1.0),
            context: vec![Vec::new(); branches.len()],
            branches,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.branches.iter().map(Branch::nodes).sum()
    }

    /// The first row of each stream, and the number of rows.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        starts.extend(self.branches.iter().scan(0, |row, branch| {
            *row += branch.nodes();
            Some(*row)
        }));
        starts
    }

    /// The rows of node `node` of stream `stream` and its ancestors, the root first.
    fn path(&self, stream: usize, node: usize) -> Vec<usize> {
        let branch = &self.branches[stream];
        let ancestors = branch.ancestors();
        let rows = branch.nodes();
        let segment = Segment { pages: &[], committed: branch.committed, rows, mask: Mask::Tree(&ancestors) };
        segment.visible(node).into_iter().map(|row| self.starts()[stream] + row).collect()
    }

    /// Of each row whether it sees row `seen`.
    pub(crate) fn seeing(&self, seen: usize) -> Vec<bool> {
        let nodes = self.branches.iter().enumerate().flat_map(|(s, b)| (0..b.nodes()).map(move |n| (s, n)));
        nodes.map(|(stream, node)| self.path(stream, node).contains(&seen)).collect()
    }

    /// The pass in which node `node` of stream `stream` is decoded alone: its ancestors are committed.
    pub(crate) fn alone(&self, stream: usize, node: usize) -> Self {
        let (key, path) = (self.widths.key(), self.path(stream, node));
        let (own, before) = path.split_last().map_or((0, &[][..]), |(own, before)| (*own, before));
        let context = [self.context[stream].clone(), gather(&self.scratch, key, before)].concat();
        Self {
            widths: self.widths,
            branches: vec![Branch { parents: Vec::new(), committed: context.len() / key }],
            queries: gather(&self.queries, self.widths.heads * key, &[own]),
            scratch: gather(&self.scratch, key, &[own]),
            context: vec![context],
        }
    }

    /// The streams `order` of this pass.
    pub(crate) fn streams(&self, order: &[usize]) -> Self {
        let (starts, key) = (self.starts(), self.widths.key());
        let rows: Vec<usize> = order.iter().flat_map(|s| starts[*s]..starts[*s + 1]).collect();
        Self {
            widths: self.widths,
            branches: order.iter().map(|s| self.branches[*s].clone()).collect(),
            queries: gather(&self.queries, self.widths.heads * key, &rows),
            scratch: gather(&self.scratch, key, &rows),
            context: order.iter().map(|s| self.context[*s].clone()).collect(),
        }
    }

    /// Pages that the pass needs, and each stream's table of them in random order.
    pub(crate) fn tables(&self, random: &mut Random) -> (usize, Vec<Vec<PageId>>) {
        let counts: Vec<usize> =
            self.branches.iter().map(|branch| branch.committed.div_ceil(PAGE_TOKENS)).collect();
        let pages = counts.iter().sum::<usize>() + 3;
        let mut ids = random.distinct(pages, pages).into_iter().map(|id| PageId(id as u32));
        (pages, counts.iter().map(|count| ids.by_ref().take(*count).collect()).collect())
    }

    /// Decodes head `head` of a node by itself in f64: the mixed latent, and how much each column may be off by the rounding of
    /// weights to bf16.
    fn decode(&self, stream: usize, node: usize, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (key, latent) = (self.widths.key(), self.widths.latent);
        let wide = |values: &[bf16]| -> Vec<f64> { values.iter().map(|value| value.to_f64()).collect() };
        let row = self.starts()[stream] + node;
        let query = wide(&self.queries[(row * self.widths.heads + head) * key..][..key]);
        let own = gather(&self.scratch, key, &self.path(stream, node));
        let keys: Vec<Vec<f64>> =
            self.context[stream].chunks_exact(key).chain(own.chunks_exact(key)).map(wide).collect();
        let dot = |k: &Vec<f64>| query.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(SCALE);
        let scores: Vec<f64> = keys.iter().map(dot).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mixed = |column: usize, of: fn(f64) -> f64| {
            weights.iter().zip(&keys).map(|(w, k)| w * of(k[column])).sum::<f64>() / total
        };
        let values = (0..latent).map(|column| mixed(column, |x| x) as f32).collect();
        // Each weight, and with it the sum that divides them, is rounded to 8 bits.
        let slack = (0..latent).map(|column| (mixed(column, f64::abs) / 256.0) as f32).collect();
        (values, slack)
    }

    /// Compares every `every`-th (node, head) of `found` `[rows, heads, latent]` with its own decode: the largest error as a
    /// fraction of the bound.
    pub(crate) fn judge(&self, found: &[bf16], every: usize) -> Result<f64, String> {
        let (heads, latent) = (self.widths.heads, self.widths.latent);
        let mut bound = Bound::default();
        let nodes = self.branches.iter().enumerate().flat_map(|(s, b)| (0..b.nodes()).map(move |n| (s, n)));
        let all = nodes.flat_map(|(s, n)| (0..heads).map(move |h| (s, n, h)));
        for (row, (stream, node, head)) in all.enumerate().step_by(every) {
            let (expected, slack) = self.decode(stream, node, head);
            let found = found.get(row * latent..(row + 1) * latent).unwrap_or_default();
            bound
                .row(row, found, &expected, |column| slack[column])
                .map_err(|what| format!("stream {stream}, node {node}, head {head}: {what}"))?;
        }
        Ok(bound.worst)
    }
}
