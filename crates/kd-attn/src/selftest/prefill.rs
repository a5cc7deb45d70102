//! `prefill_attention` and `prefill_wgmma` against expanded MLA in f64.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::prefill_attention;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, cases, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};

use super::expanded::{Keys, Shape};
use crate::block_attention::BlockAttention;

/// Keys of the block that all rows see: no whole number of tiles of any variant.
const KEYS: usize = 203;
/// Rows, committed tokens and keys of a block.
type Case = (usize, usize, usize);

/// Page and tile edges, blocks that end within the chunk, a block of which the first rows see nothing.
const CASES: [Case; 9] = [
    (1, 0, 64),
    (64, 0, 64),
    (65, 0, 128),
    (7, 63, 64),
    (64, 64, 128),
    (129, 65, 4096),
    (200, 1, 64),
    (33, 500, 192),
    (300, 128, 256),
];
/// The same for as many heads as give CTAs of `prefill_wgmma` more than a tile ([`many`]): an odd number of tiles; one block of which
/// rows see different keys, blocks that end within the chunk, a block that all rows see whole.
const SHORT: [Case; 3] = [(130, 0, 4096), (130, 0, 64), (130, 64, 64)];
/// Five tiles of rows, and more tiles of keys than its rings hold.
const FIVE: [Case; 1] = [(260, 340, 4096)];
/// The same for four tiles; and a block that all rows see whole before one that they do not.
const LONG: [Case; 2] = [(200, 340, 4096), (130, 340, 256)];

/// Heads and cases: `prefill_wgmma` has a CTA an SM. A pair is a tile of many keys and one of few; or tiles beside each other, in two
/// rounds; or in three, each of which begins elsewhere in the rings.
fn many(sms: usize) -> [(usize, &'static [Case]); 4] {
    [(sms / 3 + 1, &SHORT), (sms / 4 + 1, &FIVE), (sms * 3 / 4, &SHORT), (sms * 5 / 4, &LONG)]
}

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    let all = ["prefill_attention", "prefill_wgmma"].into_iter().flat_map(|family| units(kernels, family));
    let wide = many(device.sms() as usize);
    for (i, row) in all.enumerate() {
        // Others have the bits of the first.
        let wide = wide.iter().filter(|_| i == 0);
        let wide = wide.flat_map(|(heads, all)| all.iter().map(|case| (*heads, *case, 43)));
        for (heads, case, every) in cases(CASES.into_iter().map(|case| (3, case, 1)).chain(wide)) {
            causal(&WholeBlock::new(device, kernels, row, heads, 0, seed)?, case, every, seed)?;
        }
        let subject = WholeBlock::new(device, kernels, row, 3, most, seed)?;
        outcomes.extend(verify(&subject, rows)?);
    }
    Ok(outcomes)
}

/// Rows that all see one whole block: whatever else is in the launch, a row's bits are its own.
struct WholeBlock {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: BlockAttention,
    shape: Shape,
    queries: Vec<bf16>,
    keys: Keys,
    expanded: CudaSlice<bf16>,
    entries: CudaSlice<bf16>,
}

struct Memory {
    rows: usize,
    queries: CudaSlice<bf16>,
    part_o: Output<f32>,
    part_ml: Output<f32>,
    y: Output<bf16>,
}

impl WholeBlock {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        heads: usize,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (n, r, vd, c) = (row.dim("N")?, row.dim("R")?, row.dim("VD")?, row.dim("C")?);
        let shape = Shape { heads, nope: n.1, rope: r.1, value: vd.1, latent: c.1 };
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let expanded = random.values(KEYS * shape.expanded(), 1.0);
        let entries = random.values(KEYS * shape.entry(), 1.0);
        let dims = prefill_attention::Dims { n: n.0, r: r.0, vd: vd.0, c: c.0 };
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: BlockAttention::load(kernels, dims)?,
            shape,
            queries: random.values(rows * shape.query(), 3.0),
            keys: Keys::given(shape, &expanded, &entries),
            expanded: upload(&stream, &with_poison(&expanded, shape.expanded()))?,
            entries: upload(&stream, &with_poison(&entries, shape.entry()))?,
            stream,
        })
    }

    fn memory_for(&self, queries: &[bf16]) -> Result<Memory, KernelError> {
        let (stream, Shape { heads, value, .. }) = (&self.stream, self.shape);
        let rows = queries.len() / self.shape.query();
        Ok(Memory {
            rows,
            queries: upload(stream, queries)?,
            part_o: Output::poisoned(stream, rows, heads * value)?,
            part_ml: Output::poisoned(stream, rows, heads * 8)?,
            y: Output::poisoned(stream, rows, heads * value)?,
        })
    }

    /// By `variant`, one block: `count` keys from `first` on, of a chunk after `committed` tokens that has `total` keys in all.
    fn block(
        &self,
        variant: &str,
        memory: &mut Memory,
        keys: (&CudaSlice<bf16>, &CudaSlice<bf16>),
        (first, count, total): (usize, usize, usize),
        committed: usize,
    ) -> Result<(), KernelError> {
        let (stream, shape, rows) = (&self.stream, self.shape, memory.rows);
        let Shape { heads, nope, rope, value, .. } = shape;
        let expanded = keys.0.slice(first * shape.expanded()..(first + count) * shape.expanded());
        let entries = keys.1.slice(first * shape.entry()..(first + count) * shape.entry());
        let args = prefill_attention::Args {
            q: TensorRef::new(stream, memory.queries.as_view(), [rows, heads, nope + rope])?,
            kv: TensorRef::new(stream, expanded, [count, heads, nope + value])?,
            entries: TensorRef::new(stream, entries, [count, shape.entry()])?,
            ahead: committed as i32 - first as i32,
            scale: shape.scale(),
            resumed: i32::from(first > 0),
            finished: i32::from(first + count == total),
            part_o: memory.part_o.tensor(stream, [rows, heads, value])?,
            part_ml: memory.part_ml.tensor(stream, [rows, heads, 8])?,
            y: memory.y.tensor(stream, [rows, heads, value])?,
        };
        self.kernel.launch(stream, Choice::Forced(variant), args)
    }

    /// A whole chunk by `variant`, as [`causal`] has it.
    fn chunk(
        &self,
        variant: &str,
        queries: &[bf16],
        keys: (&CudaSlice<bf16>, &CudaSlice<bf16>),
        (rows, committed, block): Case,
    ) -> Result<Written, KernelError> {
        let (total, mut memory) = (committed + rows, self.memory_for(queries)?);
        for first in (0..total).step_by(block) {
            self.block(variant, &mut memory, keys, (first, block.min(total - first), total), committed)?;
        }
        memory.y.written(&self.stream, "y")
    }
}

/// `values`, and a tile's worth of rows behind them that must not be read.
fn with_poison(values: &[bf16], width: usize) -> Vec<bf16> {
    [values, &vec![bf16::NAN; 128 * width]].concat()
}

/// A chunk after `committed` tokens in blocks: random inputs, then queries of zeros and values of 1 at every fourth token,
/// so that each output is a known average and a key too many or too few shows. Every `every`-th row is judged; all have the bits
/// of all variants of both families.
fn causal(
    subject: &WholeBlock,
    case @ (rows, committed, block): Case,
    every: usize,
    seed: u64,
) -> Result<(), Failure> {
    let (stream, shape, total) = (&subject.stream, subject.shape, committed + rows);
    let wrong = |what: String| {
        let what = format!("{} heads, {committed} committed, blocks of {block}: {what}", shape.heads);
        Failure::Wrong { unit: subject.unit.clone(), rows, what }
    };
    let mut random = Random::new(seed ^ total as u64);
    let mut queries = random.values(rows * shape.query(), 3.0);
    let mut expanded = random.values(total * shape.expanded(), 1.0);
    let entries = random.values(total * shape.entry(), 1.0);
    for constant in [false, true] {
        if constant {
            queries.fill(bf16::ZERO);
            for (i, value) in expanded.iter_mut().enumerate() {
                *value = if i / shape.expanded() % 4 == 0 { bf16::ONE } else { bf16::ZERO };
            }
        }
        let device = (
            upload(stream, &with_poison(&expanded, shape.expanded()))?,
            upload(stream, &with_poison(&entries, shape.entry()))?,
        );
        let by = |variant: &str| subject.chunk(variant, &queries, (&device.0, &device.1), case);
        let y = by(&subject.variant)?;
        let (keys, mut bound) = (Keys::given(shape, &expanded, &entries), Bound::default());
        for (row, query) in queries.chunks_exact(shape.query()).enumerate().step_by(every) {
            let expected = keys.attend(query, committed + row + 1);
            let judged = expected.judge(row, &y.values(row), &mut bound);
            judged.map_err(|what| wrong(if constant { format!("averages: {what}") } else { what }))?;
        }
        for other in subject.kernel.variants().filter(|other| *other != subject.variant) {
            if by(other)?.bytes != y.bytes {
                return Err(wrong(format!("other bits than {other}")));
            }
        }
    }
    Ok(())
}

impl Subject for WholeBlock {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        self.memory_for(&gather(&self.queries, self.shape.query(), order))
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        self.block(&self.variant, memory, (&self.expanded, &self.entries), (0, KEYS, KEYS), KEYS)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let mut bound = Bound::default();
        for (row, &input) in order.iter().enumerate() {
            let query = gather(&self.queries, self.shape.query(), &[input]);
            self.keys.attend(&query, KEYS).judge(row, &y.values(row), &mut bound)?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        let rows = rows * (self.shape.query() + self.shape.out());
        (rows + KEYS * (self.shape.expanded() + self.shape.rope)) * size_of::<bf16>()
    }
}
