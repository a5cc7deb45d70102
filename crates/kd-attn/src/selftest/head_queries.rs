//! `head_queries` against the four launches whose place it takes, bit by bit; each of them has a check of its own.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{absorb_query, head_queries, mla_inputs, query_rope};
use kd_kernels::selftest::{
    Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify,
};
use kd_kernels::{
    Choice, CudaSlice, DenseProduct, DenseScratch, Device, KernelError, Kernels, Stream, TensorRef,
};

use super::{Angles, EPS, POSITIONS, same_bits};

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "head_queries") {
        outcomes.extend(verify(&HeadQueries::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// Compressed queries of a row, one of which lies between two neighbours of bf16 once it is normed: another last bit of the row's
/// scale shows.
fn on_an_edge(gain: &[bf16], random: &mut Random) -> Vec<bf16> {
    let edge = |row: &Vec<bf16>| {
        let squares: f64 = row.iter().map(|value| value.to_f64().powi(2)).sum();
        let scale = (squares / row.len() as f64 + f64::from(EPS)).sqrt().recip() as f32;
        let normed = |(value, gain): (&bf16, &bf16)| value.to_f32() * scale * gain.to_f32();
        // The half of an f32 that rounding takes off.
        row.iter().zip(gain).any(|pair| (normed(pair).to_bits() as u16).abs_diff(0x8000) <= 1)
    };
    let mut row = random.values(gain.len(), 4.0);
    for _ in 0..10_000 {
        if edge(&row) {
            break;
        }
        row = random.values(gain.len(), 4.0);
    }
    row
}

struct HeadQueries {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: head_queries::HeadQueries,
    apart: Apart,
    heads: usize,
    query: usize,
    latent: usize,
    nope: usize,
    rotated: usize,
    joint: Vec<bf16>,
    /// Gains of the query and of the latent, `q_b_proj`, W_UK.
    weights: [CudaSlice<bf16>; 4],
    angles: Angles,
    rope: CudaSlice<f32>,
    /// Where each input row's entry goes; -1 for padding.
    slots: Vec<i32>,
}

/// The launches of the other form.
struct Apart {
    inputs: mla_inputs::MlaInputs,
    product: DenseProduct,
    rope: query_rope::QueryRope,
    absorb: absorb_query::AbsorbQuery,
}

pub(super) struct Memory {
    rows: usize,
    joint: CudaSlice<bf16>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    slot_values: Vec<i32>,
    /// Absorbed queries and cache, of this form and of the other.
    y: [Output<bf16>; 2],
    cache: [Output<bf16>; 2],
    low: Output<bf16>,
    queries: Output<bf16>,
    scratch: DenseScratch,
}

impl HeadQueries {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        rows: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let ((h, heads), (q, query), (c, latent)) = (row.dim("H")?, row.dim("Q")?, row.dim("C")?);
        let ((n, nope), (r, rotated)) = (row.dim("N")?, row.dim("R")?);
        let (stream, mut random) = (device.stream()?, Random::new(seed));
        let angles = Angles::new(rotated, rows, &mut random);
        let mut slots: Vec<i32> =
            random.distinct(rows, 2 * rows).into_iter().map(|slot| slot as i32).collect();
        slots.iter_mut().skip(3).step_by(10).for_each(|slot| *slot = -1);
        let (up, down) = (4.0 / (nope as f32).sqrt(), 4.0 / (query as f32).sqrt());
        let weights = [
            random.values(query, 2.0),
            random.values(latent, 2.0),
            random.values(heads * (nope + rotated) * query, down),
            random.values(heads * latent * nope, up),
        ];
        let [q_gain, kv_gain, q_b, key_up] = &weights;
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: head_queries::HeadQueries::load(kernels, head_queries::Dims { h, q, c, n, r })?,
            apart: Apart {
                inputs: mla_inputs::MlaInputs::load(kernels, mla_inputs::Dims { q, c, r })?,
                product: DenseProduct::few(kernels, query)?,
                rope: query_rope::QueryRope::load(kernels, query_rope::Dims { n, r, w: c })?,
                absorb: absorb_query::AbsorbQuery::load(
                    kernels,
                    absorb_query::Dims { heads: h, k: n, n: c, rope: r },
                )?,
            },
            heads,
            query,
            latent,
            nope,
            rotated,
            joint: (0..rows)
                .flat_map(|_| {
                    [on_an_edge(q_gain, &mut random), random.values(latent + rotated, 4.0)].concat()
                })
                .collect(),
            weights: [
                upload(&stream, q_gain)?,
                upload(&stream, kv_gain)?,
                upload(&stream, q_b)?,
                upload(&stream, key_up)?,
            ],
            rope: upload(&stream, &angles.table())?,
            angles,
            slots,
            stream,
        })
    }

    /// Columns of the joint product, of a row's queries, and of an entry or an absorbed query.
    fn widths(&self) -> [usize; 3] {
        let entry = self.latent + self.rotated;
        [self.query + entry, self.heads * (self.nope + self.rotated), entry]
    }

    fn launch_apart(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, [joint, queries, entry]) = (&self.stream, memory.rows, self.widths());
        let head = [rows, self.heads, self.nope + self.rotated];
        let positions = TensorRef::new(stream, memory.positions.as_view(), [rows])?;
        let rope = TensorRef::new(stream, self.rope.as_view(), [POSITIONS, self.rotated])?;
        let args = mla_inputs::Args {
            x: TensorRef::new(stream, memory.joint.as_view(), [rows, joint])?,
            q_gain: TensorRef::new(stream, self.weights[0].as_view(), [self.query])?,
            kv_gain: TensorRef::new(stream, self.weights[1].as_view(), [self.latent])?,
            eps: EPS,
            rope,
            positions,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            q: memory.low.tensor(stream, [rows, self.query])?,
            cache: memory.cache[1].tensor(stream, [2 * self.slots.len(), entry])?,
        };
        self.apart.inputs.launch(stream, Choice::Auto, args)?;
        let low = TensorRef::new(stream, memory.low.slice().slice(..rows * self.query), [rows, self.query])?;
        let q_b = TensorRef::new(stream, self.weights[2].as_view(), [queries, self.query])?;
        let to = memory.queries.tensor(stream, [rows, queries])?;
        self.apart.product.launch(stream, &mut memory.scratch, low, q_b, to)?;
        let q = || TensorRef::new(stream, memory.queries.slice().slice(..rows * queries), head);
        let shape = [rows, self.heads, entry];
        let args = query_rope::Args { q: q()?, rope, positions, y: memory.y[1].tensor(stream, shape)? };
        self.apart.rope.launch(stream, Choice::Auto, args)?;
        let w = TensorRef::new(stream, self.weights[3].as_view(), [self.heads, self.latent, self.nope])?;
        let args = absorb_query::Args { q: q()?, w, y: memory.y[1].tensor(stream, shape)? };
        self.apart.absorb.launch(stream, Choice::Auto, args).map(drop)
    }
}

impl Subject for HeadQueries {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, rows, [joint, queries, entry]) = (&self.stream, order.len(), self.widths());
        let slot_values = gather(&self.slots, 1, order);
        let y = || Output::poisoned(stream, rows, self.heads * entry);
        let cache = || Output::poisoned(stream, 2 * self.slots.len(), entry);
        Ok(Memory {
            rows,
            joint: upload(stream, &gather(&self.joint, joint, order))?,
            positions: upload(stream, &self.angles.positions(order))?,
            slots: upload(stream, &slot_values)?,
            slot_values,
            y: [y()?, y()?],
            cache: [cache()?, cache()?],
            low: Output::poisoned(stream, rows, self.query)?,
            queries: Output::poisoned(stream, rows, queries)?,
            scratch: DenseScratch::few(stream, rows, queries)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, [joint, queries, entry]) = (&self.stream, memory.rows, self.widths());
        let args = head_queries::Args {
            joint: TensorRef::new(stream, memory.joint.as_view(), [rows, joint])?,
            q_gain: TensorRef::new(stream, self.weights[0].as_view(), [self.query])?,
            kv_gain: TensorRef::new(stream, self.weights[1].as_view(), [self.latent])?,
            eps: EPS,
            q_b: TensorRef::new(stream, self.weights[2].as_view(), [queries, self.query])?,
            key_up: TensorRef::new(stream, self.weights[3].as_view(), [self.heads, self.latent, self.nope])?,
            rope: TensorRef::new(stream, self.rope.as_view(), [POSITIONS, self.rotated])?,
            positions: TensorRef::new(stream, memory.positions.as_view(), [rows])?,
            slots: TensorRef::new(stream, memory.slots.as_view(), [rows])?,
            cache: memory.cache[0].tensor(stream, [2 * self.slots.len(), entry])?,
            y: memory.y[0].tensor(stream, [rows, self.heads, entry])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        self.launch_apart(memory)?;
        let mut written = Vec::new();
        for form in 0..2 {
            written.push(memory.y[form].written(&self.stream, "y")?);
            let cache = memory.cache[form].written(&self.stream, "cache")?;
            written.push(cache.scattered(&memory.slot_values));
        }
        Ok(written)
    }

    fn judge(&self, _: &[usize], written: &[Written]) -> Result<f64, String> {
        same_bits(written)
    }

    fn bytes(&self, rows: usize) -> usize {
        let [joint, queries, entry] = self.widths();
        let weights = queries * self.query + self.heads * self.latent * self.nope;
        (weights + rows * (joint + entry + self.heads * entry)) * size_of::<bf16>()
    }
}
