//! `drafter_attention` and `drafter_merge` against [`attend_block`](crate::attend_block).

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{drafter_attention, drafter_merge};
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Subject, Written, cases, gather, units, upload, verify,
};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorMut, TensorRef};
use kd_tensor::{Matrix, Pool};

use crate::{BlockPass, BlockSegment, GqaConfig, PAGE_TOKENS, PageId, PagedCache, attend_block};

/// Committed tokens of the first streams: none, page edges, edges of a range of keys, several ranges, one long context.
const STARTS: [i32; 15] = [0, 63, 64, 65, 1, 127, 128, 129, 1000, 255, 4096, 4097, 5, 700, 384];
/// Streams of the largest launch.
const STREAMS: usize = 33;
/// Window and causality of each run.
const MODES: [(Option<usize>, bool); 4] = [(None, false), (Some(100), true), (Some(64), false), (None, true)];
/// Weights rounded to bf16 (8 significant bits: by at most 2^-8 of each) that add up to 1, times values below 1, and the f32
/// arithmetic.
const SLACK: f32 = 1.0 / 256.0 + 1e-5;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let rows: Vec<usize> = rows.iter().copied().filter(|rows| *rows <= STREAMS).collect();
    let mut outcomes = Vec::new();
    for row in units(kernels, "drafter_attention") {
        for (window, causal) in cases(MODES) {
            let subject = Attention::new(device, kernels, row, (window, causal), seed)?;
            outcomes.extend(verify(&subject, &rows)?);
        }
    }
    Ok(outcomes)
}

/// An input row is a whole stream: its block, its page table and its length.
struct Attention {
    stream: Stream,
    unit: String,
    variant: String,
    attention: drafter_attention::DrafterAttention,
    merge: drafter_merge::DrafterMerge,
    config: GqaConfig,
    block: usize,
    splits: usize,
    queries: Vec<bf16>,
    own: Vec<bf16>,
    starts: Vec<i32>,
    /// `[STREAMS, pages]`; no page behind the context.
    table: Vec<i32>,
    pages: usize,
    cache: CudaSlice<bf16>,
    cache_pages: usize,
    host_cache: PagedCache,
}

struct Memory {
    streams: usize,
    queries: CudaSlice<bf16>,
    own: CudaSlice<bf16>,
    starts: CudaSlice<i32>,
    table: CudaSlice<i32>,
    part_o: CudaSlice<f32>,
    part_ml: CudaSlice<f32>,
    y: Output<bf16>,
}

impl Attention {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        (window, causal): (Option<usize>, bool),
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (d, n, g) = (row.dim("D")?, row.dim("N")?, row.dim("G")?);
        let (block, splits) = (row.dim("BLK")?, row.dim("SPLITS")?);
        let config = GqaConfig {
            heads: n.1 * g.1,
            kv_heads: n.1,
            cached_heads: n.1,
            first_cached: 0,
            head_dim: d.1,
            window,
            causal,
        };
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let mut starts = STARTS.to_vec();
        starts
            .extend((STARTS.len()..STREAMS).map(|i| if i % 7 == 0 { -1 } else { random.below(600) as i32 }));
        let used = |start: i32| PagedCache::pages_for(usize::try_from(start).unwrap_or_default());
        let pages = starts.iter().map(|start| used(*start)).max().unwrap_or_default() + 1;
        let cache_pages = starts.iter().map(|start| used(*start)).sum::<usize>() + 5;
        let width = config.cache_width();
        // What no token was written to stays NaN on the device.
        let mut cache = vec![bf16::NAN; cache_pages * PAGE_TOKENS * width];
        let mut host_cache = PagedCache::new(1, cache_pages, width);
        let mut free = random.distinct(cache_pages, cache_pages).into_iter();
        let mut table = vec![-1; starts.len() * pages];
        for (stream, &start) in starts.iter().enumerate() {
            let own: Vec<usize> = free.by_ref().take(used(start)).collect();
            let ids: Vec<PageId> = own.iter().map(|page| PageId(*page as u32)).collect();
            for (i, page) in own.iter().enumerate() {
                table[stream * pages + i] = *page as i32;
            }
            for token in 0..usize::try_from(start).unwrap_or_default() {
                let values = random.values(width, 1.0);
                let at = (own[token / PAGE_TOKENS] * PAGE_TOKENS + token % PAGE_TOKENS) * width;
                cache[at..at + width].copy_from_slice(&values);
                let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
                host_cache.write(0, &ids, token, &values);
            }
        }
        let dims = drafter_attention::Dims { d: d.0, n: n.0, g: g.0, blk: block.0, splits: splits.0 };
        let merge = drafter_merge::Dims { d: d.0, n: n.0, g: g.0, blk: block.0, splits: splits.0 };
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            attention: drafter_attention::DrafterAttention::load(kernels, dims)?,
            merge: drafter_merge::DrafterMerge::load(kernels, merge)?,
            config,
            block: block.1,
            splits: splits.1,
            queries: random.values(starts.len() * block.1 * config.heads * config.head_dim, 3.0),
            own: random.values(starts.len() * block.1 * width, 1.0),
            starts,
            table,
            pages,
            cache: upload(&stream, &cache)?,
            cache_pages,
            host_cache,
            stream,
        })
    }

    fn query_width(&self) -> usize {
        self.block * self.config.heads * self.config.head_dim
    }

    fn own_width(&self) -> usize {
        self.block * self.config.cache_width()
    }

    /// The output of stream `input`.
    fn expected(&self, input: usize) -> Matrix {
        let pages = self.table[input * self.pages..(input + 1) * self.pages].iter();
        let pages: Vec<PageId> = pages.filter_map(|id| u32::try_from(*id).ok().map(PageId)).collect();
        let start = usize::try_from(self.starts[input]).unwrap_or_default();
        let segment = BlockSegment { pages: &pages, start };
        let matrix = |width: usize, values: &[bf16]| {
            let mut matrix = Matrix::zeros(self.block, width / self.block);
            let values = gather(values, width, &[input]);
            matrix.data_mut().iter_mut().zip(values).for_each(|(to, value)| *to = value.to_f32());
            matrix
        };
        let (queries, own) = (matrix(self.query_width(), &self.queries), matrix(self.own_width(), &self.own));
        let pass = BlockPass { own: &own, segments: &[segment], context: &self.host_cache, layer: 0 };
        attend_block(&Pool::single(), &self.config, &queries, 0, &pass)
    }
}

impl Subject for Attention {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, streams) = (&self.stream, order.len());
        let parts = streams * self.splits * self.query_width();
        let nan = |count: usize| vec![f32::NAN; count];
        Ok(Memory {
            streams,
            queries: upload(stream, &gather(&self.queries, self.query_width(), order))?,
            own: upload(stream, &gather(&self.own, self.own_width(), order))?,
            starts: upload(stream, &gather(&self.starts, 1, order))?,
            table: upload(stream, &gather(&self.table, self.pages, order))?,
            part_o: upload(stream, &nan(parts))?,
            part_ml: upload(stream, &nan(parts / self.config.head_dim * 2))?,
            y: Output::poisoned(stream, streams, self.query_width())?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let GqaConfig { heads, kv_heads, head_dim, window, causal, .. } = self.config;
        let (stream, streams, block) = (&self.stream, memory.streams, self.block);
        let rows = block * heads / kv_heads;
        let window = window.map_or(0, |window| window as i32);
        let part_o = [streams, kv_heads, self.splits, rows, head_dim];
        let part_ml = [streams, kv_heads, self.splits, rows, 2];
        let y = [streams, block, heads, head_dim];
        let args = drafter_attention::Args {
            q: TensorRef::new(stream, memory.queries.as_view(), y)?,
            own: TensorRef::new(stream, memory.own.as_view(), [streams, block, 2, kv_heads, head_dim])?,
            cache: TensorRef::new(
                stream,
                self.cache.as_view(),
                [self.cache_pages, PAGE_TOKENS, 2, kv_heads, head_dim],
            )?,
            table: TensorRef::new(stream, memory.table.as_view(), [streams, self.pages])?,
            starts: TensorRef::new(stream, memory.starts.as_view(), [streams])?,
            window,
            causal: i32::from(causal),
            scale: 1.0 / (head_dim as f32).sqrt(),
            part_o: TensorMut::new(stream, memory.part_o.as_view_mut(), part_o)?,
            part_ml: TensorMut::new(stream, memory.part_ml.as_view_mut(), part_ml)?,
            y: memory.y.tensor(stream, y)?,
        };
        self.attention.launch(stream, Choice::Forced(&self.variant), args)?;
        let args = drafter_merge::Args {
            part_o: TensorRef::new(stream, memory.part_o.as_view(), part_o)?,
            part_ml: TensorRef::new(stream, memory.part_ml.as_view(), part_ml)?,
            starts: TensorRef::new(stream, memory.starts.as_view(), [streams])?,
            window,
            y: memory.y.tensor(stream, y)?,
        };
        self.merge.launch(stream, Choice::Auto, args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![memory.y.written(&self.stream, "y")?])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let y = written.first().ok_or("the output is missing")?;
        let mut bound = Bound::default();
        for (i, &input) in order.iter().enumerate() {
            if self.starts[input] < 0 {
                if y.row(i).iter().any(|byte| *byte != 0xff) {
                    return Err(format!("stream {i} is padding, and was written"));
                }
                continue;
            }
            let expected = self.expected(input);
            bound
                .row(i, &y.values(i), expected.data(), |_| SLACK)
                .map_err(|what| format!("{} committed: {what}", self.starts[input]))?;
        }
        Ok(bound.worst)
    }

    fn bytes(&self, rows: usize) -> usize {
        let tokens: usize =
            self.starts[..rows].iter().map(|start| usize::try_from(*start).unwrap_or_default()).sum();
        let context = tokens * self.config.cache_width();
        (context + rows * (2 * self.query_width() + self.own_width())) * size_of::<bf16>()
    }
}
