//! `head_values` against the two launches whose place it takes, bit by bit; each of them has a check of its own.

use half::bf16;
use kd_kernels::bundle::Row;
use kd_kernels::families::{absorb_value, head_values, tree_mla_merge};
use kd_kernels::selftest::{Failure, Outcome, Output, Random, Subject, Written, units, upload, verify};
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Stream, TensorRef};

use super::same_bits;
use crate::Leaves;

/// Committed tokens of the streams in turn: one leaf, eight, more than eight, more than three times as many.
const COMMITTED: [usize; 5] = [0, 700, 2047, 5000, 20_000];
/// Nodes of each stream of trees.
const NODES: usize = 3;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in units(kernels, "head_values") {
        let subject = HeadValues::new(device, kernels, row, seed)?;
        outcomes.extend(verify(&subject, rows)?);
        for rows in [1usize, 7, 16] {
            for (streams, room) in
                [(rows.div_ceil(NODES), true), (rows / NODES, true), (rows.div_ceil(NODES), false)]
            {
                let wrong = |what| Failure::Wrong { unit: row.unit.clone(), rows, what };
                let mut memory = subject.trees(rows, streams, room)?;
                subject.launch(&mut memory)?;
                same_bits(&subject.written(&mut memory)?).map_err(wrong)?;
            }
        }
    }
    Ok(outcomes)
}

struct HeadValues {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: head_values::HeadValues,
    merge: tree_mla_merge::TreeMlaMerge,
    absorb: absorb_value::AbsorbValue,
    heads: usize,
    latent: usize,
    value: usize,
    weights: CudaSlice<bf16>,
    seed: u64,
}

pub(super) struct Memory {
    rows: usize,
    streams: usize,
    /// Rows of partial results that there is room for.
    partial: usize,
    part_o: CudaSlice<f32>,
    part_ml: CudaSlice<f32>,
    starts: CudaSlice<i32>,
    committed: CudaSlice<i32>,
    ancestors: CudaSlice<u64>,
    queue: CudaSlice<i32>,
    mixed: Output<bf16>,
    /// Of this form and of the other.
    y: [Output<bf16>; 2],
}

impl HeadValues {
    fn new(device: &Device, kernels: &Kernels, row: &Row, seed: u64) -> Result<Self, KernelError> {
        let ((h, heads), (c, latent), (n, value)) = (row.dim("H")?, row.dim("C")?, row.dim("N")?);
        let stream = device.stream()?;
        let weights = Random::new(seed).values(heads * value * latent, 4.0 / (latent as f32).sqrt());
        Ok(Self {
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: head_values::HeadValues::load(kernels, head_values::Dims { h, c, n })?,
            merge: tree_mla_merge::TreeMlaMerge::load(kernels, tree_mla_merge::Dims { h, c })?,
            absorb: absorb_value::AbsorbValue::load(kernels, absorb_value::Dims { heads: h, k: c, n })?,
            heads,
            latent,
            value,
            weights: upload(&stream, &weights)?,
            seed,
            stream,
        })
    }

    /// Partial results as attention leaves them: sums, greatest scores and sums of weights, by leaf, node and head. Every second
    /// leaf nearly undoes the one before it, so that a sum in another order has other bits.
    fn partials(&self, random: &mut Random, leaves: usize, nodes: usize) -> (Vec<f32>, Vec<f32>) {
        let (rows, before) = (leaves * nodes * self.heads, nodes * self.heads);
        let wide =
            |values: Vec<bf16>| -> Vec<f32> { values.into_iter().map(|value| value.to_f32()).collect() };
        let mut o = wide(random.values(rows * self.latent, 2.0));
        let mut scores = wide(random.values(rows, 4.0));
        let sums = wide(random.values(rows, 1.0));
        for row in (0..rows).filter(|row| row / before % 2 == 1) {
            scores[row] = scores[row - before];
            for at in row * self.latent..(row + 1) * self.latent {
                o[at] = o[at] / 1024.0 - o[at - before * self.latent];
            }
        }
        (o, scores.iter().zip(&sums).flat_map(|(most, sum)| [*most, 1.0 + sum.abs()]).collect())
    }

    fn memory_of(
        &self,
        rows: usize,
        streams: &[(usize, usize)],
        parts: Vec<(Vec<f32>, Vec<f32>)>,
        room: bool,
    ) -> Result<Memory, KernelError> {
        let stream = &self.stream;
        let int = |size: usize| size as i32;
        let (mut starts, mut first) = (vec![0], 0);
        for (nodes, _) in streams {
            first += nodes;
            starts.push(int(first.min(rows)));
        }
        let committed: Vec<i32> = streams.iter().map(|(_, committed)| int(*committed)).collect();
        let (o, ml): (Vec<Vec<f32>>, Vec<Vec<f32>>) = parts.into_iter().unzip();
        let (o, ml) = (o.concat(), ml.concat());
        let all = ml.len() / 2;
        // Each node hangs on the one before it.
        let ancestors: Vec<u64> = (0..rows).flat_map(|row| [(1u64 << (row % NODES)) - 1, 0]).collect();
        let y = || Output::poisoned(stream, rows, self.heads * self.value);
        Ok(Memory {
            rows,
            streams: streams.len(),
            partial: if room { all } else { all.saturating_sub(1) },
            part_o: upload(stream, if o.is_empty() { &[0.0] } else { &o })?,
            part_ml: upload(stream, if ml.is_empty() { &[0.0] } else { &ml })?,
            starts: upload(stream, &starts)?,
            committed: upload(stream, if committed.is_empty() { &[0] } else { &committed })?,
            ancestors: upload(stream, &ancestors)?,
            queue: upload(stream, &[7])?,
            mixed: Output::poisoned(stream, rows, self.heads * self.latent)?,
            y: [y()?, y()?],
        })
    }

    /// `streams` trees in `rows` rows, the rest padding; with room for all partial results, or for all but one row.
    fn trees(&self, rows: usize, streams: usize, room: bool) -> Result<Memory, KernelError> {
        let (leaves, mut random) = (Leaves::new(self.heads), Random::new(self.seed));
        let nodes = |stream: usize| NODES.min(rows - stream * NODES);
        let streams: Vec<(usize, usize)> =
            (0..streams).map(|stream| (nodes(stream), COMMITTED[stream % COMMITTED.len()])).collect();
        let parts = streams
            .iter()
            .map(|(nodes, committed)| {
                self.partials(&mut random, leaves.at(committed + nodes - 1) + 1, *nodes)
            })
            .collect();
        self.memory_of(rows, &streams, parts, room)
    }
}

impl Subject for HeadValues {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Every row is a stream of its own, with its own partial results.
    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let leaves = Leaves::new(self.heads);
        let committed = |row: &usize| COMMITTED[row % COMMITTED.len()];
        let streams: Vec<(usize, usize)> = order.iter().map(|row| (1, committed(row))).collect();
        let part = |row: &usize| {
            let mut random = Random::new(self.seed ^ (*row as u64 + 1));
            self.partials(&mut random, leaves.at(committed(row)) + 1, 1)
        };
        self.memory_of(order.len(), &streams, order.iter().map(part).collect(), true)
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, rows, streams, partial) = (&self.stream, memory.rows, memory.streams, memory.partial);
        let args = head_values::Args {
            part_o: TensorRef::new(
                stream,
                memory.part_o.slice(..partial * self.latent),
                [partial, self.latent],
            )?,
            part_ml: TensorRef::new(stream, memory.part_ml.slice(..2 * partial), [partial, 2])?,
            starts: TensorRef::new(stream, memory.starts.as_view(), [streams + 1])?,
            committed: TensorRef::new(stream, memory.committed.slice(..streams), [streams])?,
            ancestors: TensorRef::new(stream, memory.ancestors.as_view(), [rows, 2])?,
            w: TensorRef::new(stream, self.weights.as_view(), [self.heads, self.value, self.latent])?,
            queue: kd_kernels::TensorMut::new(stream, memory.queue.as_view_mut(), [1])?,
            y: memory.y[0].tensor(stream, [rows, self.heads, self.value])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        let (stream, rows, streams, partial) = (&self.stream, memory.rows, memory.streams, memory.partial);
        let args = tree_mla_merge::Args {
            part_o: TensorRef::new(
                stream,
                memory.part_o.slice(..partial * self.latent),
                [partial, self.latent],
            )?,
            part_ml: TensorRef::new(stream, memory.part_ml.slice(..2 * partial), [partial, 2])?,
            starts: TensorRef::new(stream, memory.starts.as_view(), [streams + 1])?,
            committed: TensorRef::new(stream, memory.committed.slice(..streams), [streams])?,
            ancestors: TensorRef::new(stream, memory.ancestors.as_view(), [rows, 2])?,
            queue: kd_kernels::TensorMut::new(stream, memory.queue.as_view_mut(), [1])?,
            y: memory.mixed.tensor(stream, [rows, self.heads, self.latent])?,
        };
        self.merge.launch(stream, Choice::Auto, args)?;
        let mixed = memory.mixed.slice().slice(..rows * self.heads * self.latent);
        let args = absorb_value::Args {
            o: TensorRef::new(stream, mixed, [rows, self.heads, self.latent])?,
            w: TensorRef::new(stream, self.weights.as_view(), [self.heads, self.value, self.latent])?,
            y: memory.y[1].tensor(stream, [rows, self.heads, self.value])?,
        };
        self.absorb.launch(stream, Choice::Auto, args)?;
        memory.y.iter().map(|y| y.written(stream, "y")).collect()
    }

    fn judge(&self, _: &[usize], written: &[Written]) -> Result<f64, String> {
        same_bits(written)
    }

    fn bytes(&self, rows: usize) -> usize {
        let (leaves, values) = (Leaves::new(self.heads), self.heads * self.value);
        let parts: usize = (0..rows).map(|row| leaves.at(COMMITTED[row % COMMITTED.len()]) + 1).sum();
        (values * (self.latent + rows)) * size_of::<bf16>()
            + parts * self.heads * (self.latent + 2) * size_of::<f32>()
    }
}
