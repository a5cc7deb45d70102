//! `walk` against `kd_ddtree::walk`.

use cudarc::driver::CudaSlice;
use kd_ddtree::{Marginals, Tree, TreeBuilder};

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::walk;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

/// Budgets of the streams: plain decoding, a chain's length, the edges of a lane's rows, the largest.
const NODES: [usize; 8] = [0, 7, 31, 32, 64, 127, 128, 1];
/// Tokens of the trees: few, so that branches share them.
const VOCAB: usize = 12;
/// Tokens of a page.
const PAGE: usize = 64;
const PAGES: usize = 5;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "walk") {
        outcomes.extend(verify(&Walk::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// One stream of a pass.
struct Verified {
    tree: Tree,
    root: i32,
    /// The target's token after each row; -1 where it has none.
    chosen: Vec<i32>,
    committed: usize,
    table: Vec<i32>,
    /// Whether it has rows at all.
    there: bool,
}

/// An input row is a stream.
struct Walk {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: walk::Walk,
    depth: usize,
    streams: Vec<Verified>,
}

struct Memory {
    streams: usize,
    tokens: CudaSlice<i32>,
    parents: CudaSlice<i32>,
    chosen: CudaSlice<i32>,
    firsts: CudaSlice<i32>,
    committed: CudaSlice<i32>,
    table: CudaSlice<i32>,
    /// Where each stream's rows begin.
    places: Vec<i32>,
    rows: Output<i32>,
    positions: Output<i32>,
    slots: Output<i32>,
    counts: Output<i32>,
    bonus: Output<i32>,
    next: Output<i32>,
}

impl Verified {
    /// A tree of `nodes` nodes over `depth - 1` rows, and a target that mostly follows it.
    fn new(random: &mut Random, nodes: usize, depth: usize, index: usize) -> Result<Self, KernelError> {
        let logits: Vec<f32> = (0..(depth - 1) * VOCAB).map(|_| 3.0 * random.unit()).collect();
        let rows = kd_ddtree::draft_rows(&logits, VOCAB, VOCAB);
        let mut tree = Tree::empty();
        let built = TreeBuilder::new().build(&mut Marginals(&rows), nodes, &mut tree);
        built.map_err(|error| KernelError::BadTensor { shape: vec![nodes], what: error.to_string() })?;
        let follow = |random: &mut Random, row: usize| {
            let children: Vec<i32> = tree
                .nodes()
                .iter()
                .filter(|node| node.parent as usize == row)
                .map(|node| node.token.cast_signed())
                .collect();
            let any = random.below(VOCAB) as i32;
            let drafted = (!children.is_empty()).then(|| children[random.below(children.len().max(1))]);
            if random.below(8) == 0 { any } else { drafted.unwrap_or(any) }
        };
        let mut chosen: Vec<i32> = (0..=tree.len()).map(|row| follow(random, row)).collect();
        if index % 6 == 5 {
            let row = random.below(chosen.len());
            chosen[row] = -1;
        }
        let table = random.distinct(PAGES, 1000).into_iter().map(|page| page as i32).collect();
        let committed = match index % 4 {
            0 => PAGE - 3,
            1 => 0,
            _ => random.below((PAGES - 1) * PAGE),
        };
        let (root, there) = (random.below(VOCAB) as i32, index % 9 != 8);
        Ok(Self { tree, root, chosen, committed, table, there })
    }

    fn rows(&self) -> usize {
        if self.there { self.chosen.len() } else { 0 }
    }

    /// What the stream's visited rows are, and the token after them; `None` if one of them has no token.
    fn expected(&self) -> Option<(Vec<usize>, i32)> {
        if !self.there {
            return None;
        }
        let token = |row: usize| u32::try_from(self.chosen[row]).map_err(|_| ());
        let walk = kd_ddtree::walk(&self.tree, token).ok()?;
        Some((walk.rows, walk.next_token.cast_signed()))
    }
}

impl Walk {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        streams: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (d, depth) = row.dim("D")?;
        let mut random = Random::new(seed);
        let stream = |index: usize| Verified::new(&mut random, NODES[index % NODES.len()], depth, index);
        Ok(Self {
            streams: (0..streams).map(stream).collect::<Result<_, _>>()?,
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: walk::Walk::load(kernels, walk::Dims { d })?,
            depth,
        })
    }
}

impl Subject for Walk {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, streams) = (&self.stream, order.len());
        let (mut tokens, mut parents, mut chosen, mut firsts) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
        for own in order.iter().map(|input| &self.streams[*input]) {
            if own.there {
                tokens.push(own.root);
                parents.push(-1);
            }
            let nodes = own.tree.nodes().iter().take(own.rows().saturating_sub(1));
            tokens.extend(nodes.clone().map(|node| node.token.cast_signed()));
            parents.extend(nodes.map(|node| node.parent as i32));
            chosen.extend(&own.chosen[..own.rows()]);
            firsts.push(tokens.len() as i32);
        }
        // A row of padding, as a bucket has.
        tokens.push(0);
        parents.push(0);
        chosen.push(0);
        let each = |value: &dyn Fn(&Verified) -> i32| -> Vec<i32> {
            order.iter().map(|input| value(&self.streams[*input])).collect()
        };
        let table: Vec<i32> = order.iter().flat_map(|input| self.streams[*input].table.clone()).collect();
        let wide = || Output::poisoned(stream, streams, self.depth);
        let narrow = || Output::poisoned(stream, streams, 1);
        Ok(Memory {
            streams,
            tokens: upload(stream, &tokens)?,
            parents: upload(stream, &parents)?,
            chosen: upload(stream, &chosen)?,
            committed: upload(stream, &each(&|own| own.committed as i32))?,
            table: upload(stream, &table)?,
            places: gather(&firsts, 1, &(0..streams).collect::<Vec<_>>()),
            firsts: upload(stream, &firsts)?,
            rows: wide()?,
            positions: wide()?,
            slots: wide()?,
            counts: narrow()?,
            bonus: narrow()?,
            next: narrow()?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, streams, depth) = (&self.stream, memory.streams, self.depth);
        let rows = memory.tokens.len();
        let args = walk::Args {
            tokens: TensorRef::new(stream, memory.tokens.as_view(), [rows])?,
            parents: TensorRef::new(stream, memory.parents.as_view(), [rows])?,
            chosen: TensorRef::new(stream, memory.chosen.as_view(), [rows])?,
            firsts: TensorRef::new(stream, memory.firsts.as_view(), [streams + 1])?,
            committed: TensorRef::new(stream, memory.committed.as_view(), [streams])?,
            table: TensorRef::new(stream, memory.table.as_view(), [streams, PAGES])?,
            rows: memory.rows.tensor(stream, [streams, depth])?,
            positions: memory.positions.tensor(stream, [streams, depth])?,
            slots: memory.slots.tensor(stream, [streams, depth])?,
            counts: memory.counts.tensor(stream, [streams])?,
            bonus: memory.bonus.tensor(stream, [streams])?,
            next: memory.next.tensor(stream, [streams])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    /// Rows are counted from each stream's first, so that they do not depend on the streams before it.
    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let stream = &self.stream;
        let mut rows = memory.rows.written(stream, "rows")?;
        for (i, first) in memory.places.iter().enumerate() {
            for place in i * self.depth..(i + 1) * self.depth {
                let bytes = &mut rows.bytes[4 * place..4 * place + 4];
                let row: i32 = bytemuck::pod_read_unaligned(bytes);
                bytes.copy_from_slice(&if row < 0 { row } else { row - first }.to_ne_bytes());
            }
        }
        Ok(vec![
            rows,
            memory.positions.written(stream, "positions")?,
            memory.slots.written(stream, "slots")?,
            memory.counts.written(stream, "counts")?,
            memory.bonus.written(stream, "bonus")?,
            memory.next.written(stream, "next")?,
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [rows, positions, slots, counts, bonus, next] = written else {
            return Err("outputs are missing".to_owned());
        };
        for (i, &input) in order.iter().enumerate() {
            let own = &self.streams[input];
            let (visited, token) = own.expected().unwrap_or((Vec::new(), -1));
            let padded = |behind: i32, value: &dyn Fn(usize) -> usize| -> Vec<i32> {
                let mut all: Vec<i32> = (0..visited.len()).map(|step| value(step) as i32).collect();
                all.resize(self.depth, behind);
                all
            };
            let position = |step: usize| own.committed + step;
            let slot = |step: usize| own.table[position(step) / PAGE] as usize * PAGE + position(step) % PAGE;
            let committed = if token < 0 { -1 } else { (own.committed + visited.len()) as i32 };
            let found: [Vec<i32>; 3] = [rows.values(i), positions.values(i), slots.values(i)];
            let expected = [padded(-1, &|step| visited[step]), padded(0, &position), padded(-1, &slot)];
            let ends: [Vec<i32>; 3] = [counts.values(i), bonus.values(i), next.values(i)];
            if found != expected || ends != [vec![visited.len() as i32], vec![token], vec![committed]] {
                return Err(format!(
                    "stream {i}: {found:?} and {ends:?}, expected {expected:?} and token {token}"
                ));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, streams: usize) -> usize {
        let rows: usize = self.streams.iter().take(streams).map(Verified::rows).sum();
        4 * (3 * rows + streams * (5 + PAGES + 3 * self.depth))
    }
}
