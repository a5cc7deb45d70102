//! A whole chunk, from pages to output ([`Prefill`]), against expanded MLA in f64.

use std::time::Instant;

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::selftest::{
    Bound, Failure, Outcome, Output, Random, Written, cases, first_difference, units, upload,
};
use kd_kernels::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

use super::expanded::{Keys, Shape};
use super::tree_mla::pages::{encoded, rounded};
use crate::prefill::{Chunk, PagesRef, Prefill};
use crate::{Fp8Entry, KvCacheDtype, MlaConfig, PAGE_TOKENS, PagedCache};

/// Tokens of the sequence: several blocks and pages, none of them whole at the end.
const TOKENS: usize = 333;
/// Rows of chunks that end the sequence: everything, page edges, one row.
const ROWS: [usize; 6] = [TOKENS, TOKENS - 63, TOKENS - 64, TOKENS - 65, 40, 1];
/// Keys of a block; the last holds the whole sequence.
const BLOCKS: [usize; 3] = [64, 192, 512];

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let Some(row) = units(kernels, "prefill_attention").next() else { return Ok(Vec::new()) };
    let mut sequence = Sequence::new(row, seed)?;
    let stream = device.stream()?;
    let config = MlaConfig {
        heads: sequence.shape.heads,
        nope: sequence.shape.nope,
        rope: sequence.shape.rope,
        value: sequence.shape.value,
        latent: sequence.shape.latent,
        softmax_scale: sequence.shape.scale(),
        latent_eps: 1e-6,
    };
    let mut outcomes = sequence.check(device, kernels, &stream, config, KvCacheDtype::Auto)?;
    let entry = Fp8Entry { latent: config.latent, rope: config.rope };
    rounded(entry, &mut sequence.entries);
    outcomes.extend(sequence.check(device, kernels, &stream, config, KvCacheDtype::Fp8)?);
    Ok(outcomes)
}

/// Queries and cache entries of one sequence, and the pages for all of them.
struct Sequence {
    shape: Shape,
    queries: Vec<bf16>,
    entries: Vec<bf16>,
    kv_b: Vec<bf16>,
    table: Vec<i32>,
}

impl Sequence {
    fn new(row: &Row, seed: u64) -> Result<Self, KernelError> {
        let size = |name| row.dim(name).map(|(_, size)| size);
        let shape =
            Shape { heads: 3, nope: size("N")?, rope: size("R")?, value: size("VD")?, latent: size("C")? };
        let mut random = Random::new(seed);
        let pages = PagedCache::pages_for(TOKENS);
        Ok(Self {
            shape,
            queries: random.values(TOKENS * shape.query(), 3.0),
            entries: random.values(TOKENS * shape.entry(), 1.0),
            kv_b: random.values(shape.expanded() * shape.latent, 4.0 / (shape.latent as f32).sqrt()),
            table: random.distinct(pages, 2 * pages).into_iter().map(|page| page as i32).collect(),
        })
    }

    fn query(&self, token: usize) -> &[bf16] {
        &self.queries[token * self.shape.query()..][..self.shape.query()]
    }

    /// Chunks in blocks of every size, by every variant and by the launcher's choice, with pages of `cache`.
    fn check(
        &self,
        device: &Device,
        kernels: &Kernels,
        stream: &Stream,
        config: MlaConfig,
        cache: KvCacheDtype,
    ) -> Result<Vec<Outcome>, Failure> {
        let keys = Keys::expand(self.shape, &self.kv_b, &self.entries);
        let expected: Vec<_> = (0..TOKENS).map(|token| keys.attend(self.query(token), token + 1)).collect();
        let (mut outcomes, mut whole) = (Vec::new(), None);
        for block in cases(BLOCKS) {
            let prefill = Prefill::new(device, kernels, config, block, cache)?;
            let choices = prefill.variants().map(Choice::Forced).chain([Choice::Auto]);
            for (choice, rows) in choices.flat_map(|choice| ROWS.map(|rows| (choice, rows))) {
                let unit =
                    format!("prefill of {TOKENS} tokens in blocks of {block}, {choice:?}, pages {cache:?}");
                let wrong = |what| Failure::Wrong { unit: unit.clone(), rows, what };
                let (y, micros) = self.run(stream, &prefill, choice, rows, cache)?;
                let whole = whole.get_or_insert_with(|| y.clone());
                let mut bound = Bound::default();
                for row in 0..rows {
                    let token = TOKENS - rows + row;
                    expected[token].judge(row, &y.values(row), &mut bound).map_err(wrong)?;
                    if first_difference(whole.row(token), y.row(row)).is_some() {
                        return Err(wrong(format!("token {token} depends on chunk, block and choice")));
                    }
                }
                let bytes = self.bytes(rows);
                outcomes.push(Outcome { unit: unit.clone(), rows, error: bound.worst, micros, bytes });
            }
        }
        Ok(outcomes)
    }

    fn bytes(&self, rows: usize) -> usize {
        (TOKENS * self.shape.entry() + self.kv_b.len() + rows * (self.shape.query() + self.shape.out()))
            * size_of::<bf16>()
    }

    /// The last `rows` tokens as one chunk: only the tokens before it are in the pages, all else there is NaN, and the
    /// table ends in pages that do not exist.
    fn run(
        &self,
        stream: &Stream,
        prefill: &Prefill,
        choice: Choice<'_>,
        rows: usize,
        cache: KvCacheDtype,
    ) -> Result<(Written, f64), KernelError> {
        let Shape { heads, nope, rope, value, latent } = self.shape;
        let (width, committed) = (self.shape.entry(), TOKENS - rows);
        let mut pages = vec![bf16::NAN; 2 * self.table.len() * PAGE_TOKENS * width];
        for (token, entry) in self.entries.chunks_exact(width).take(committed).enumerate() {
            let slot = self.table[token / PAGE_TOKENS] as usize * PAGE_TOKENS + token % PAGE_TOKENS;
            pages[slot * width..(slot + 1) * width].copy_from_slice(entry);
        }
        let mut table = self.table.clone();
        table[PagedCache::pages_for(committed)..].fill(-1);
        let queries = upload(stream, &self.queries[committed * self.shape.query()..])?;
        let own = upload(stream, &self.entries[committed * width..])?;
        let table_now = upload(stream, &table)?;
        let entry = Fp8Entry { latent, rope };
        let (pages_now, encoded_now) = (upload(stream, &pages)?, upload(stream, &encoded(entry, &pages))?);
        let count = 2 * self.table.len();
        let kv_b = upload(stream, &self.kv_b)?;
        let chunk = Chunk {
            queries: TensorRef::new(stream, queries.as_view(), [rows, heads, nope + rope])?,
            kv_b: TensorRef::new(stream, kv_b.as_view(), [heads * (nope + value), latent])?,
            pages: match cache {
                KvCacheDtype::Auto => {
                    PagesRef::Bf16(TensorRef::new(stream, pages_now.as_view(), [count, PAGE_TOKENS, width])?)
                }
                KvCacheDtype::Fp8 => {
                    let shape = [count, PAGE_TOKENS, entry.bytes()];
                    PagesRef::Fp8(TensorRef::new(stream, encoded_now.as_view(), shape)?)
                }
            },
            table: TensorRef::new(stream, table_now.as_view(), [table.len()])?,
            own: TensorRef::new(stream, own.as_view(), [rows, width])?,
            committed,
        };
        let mut workspace = prefill.workspace(stream, rows)?;
        let mut y = Output::poisoned(stream, rows, self.shape.out())?;
        let mut begin = Instant::now();
        for _ in 0..2 {
            stream.synchronize()?;
            begin = Instant::now();
            let mut out = y.tensor(stream, [rows, heads, value])?;
            prefill.launch(stream, choice, &chunk, &mut workspace, &mut out)?;
            stream.synchronize()?;
        }
        let micros = begin.elapsed().as_secs_f64() * 1e6;
        Ok((y.written(stream, "y")?, micros))
    }
}
