//! `draft_block` against the blocks that the drafter is given: a stream's newest token, then masks.

use cudarc::driver::CudaSlice;

use super::{Failure, Outcome, Output, Random, Subject, Written, gather, units, upload, verify};
use crate::bundle::Row;
use crate::families::draft_block;
use crate::{Choice, Device, KernelError, Kernels, Stream, TensorRef};

const MASK: i32 = 163_838;

pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let most = rows.iter().copied().max().unwrap_or_default();
    for row in units(kernels, "draft_block") {
        outcomes.extend(verify(&DraftBlock::new(device, kernels, row, most, seed)?, rows)?);
    }
    Ok(outcomes)
}

/// An input row is a stream.
struct DraftBlock {
    stream: Stream,
    unit: String,
    variant: String,
    kernel: draft_block::DraftBlock,
    block: usize,
    starts: Vec<i32>,
    bonus: Vec<i32>,
}

struct Memory {
    starts: CudaSlice<i32>,
    bonus: CudaSlice<i32>,
    ids: Output<i32>,
    positions: Output<i32>,
}

impl DraftBlock {
    fn new(
        device: &Device,
        kernels: &Kernels,
        row: &Row,
        streams: usize,
        seed: u64,
    ) -> Result<Self, KernelError> {
        let (blk, block) = row.dim("BLK")?;
        let mut random = Random::new(seed);
        let start = |i: usize| if i % 4 == 1 { -1 } else { random.below(200_000) as i32 };
        Ok(Self {
            stream: device.stream()?,
            unit: row.unit.clone(),
            variant: row.variant.clone(),
            kernel: draft_block::DraftBlock::load(kernels, draft_block::Dims { blk })?,
            block,
            starts: (0..streams).map(start).collect(),
            bonus: (0..streams).map(|i| i as i32).collect(),
        })
    }
}

impl Subject for DraftBlock {
    type Memory = Memory;

    fn unit(&self) -> &str {
        &self.unit
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn memory(&self, order: &[usize]) -> Result<Memory, KernelError> {
        let (stream, streams) = (&self.stream, order.len());
        Ok(Memory {
            starts: upload(stream, &gather(&self.starts, 1, order))?,
            bonus: upload(stream, &gather(&self.bonus, 1, order))?,
            ids: Output::poisoned(stream, streams, self.block)?,
            positions: Output::poisoned(stream, streams, self.block)?,
        })
    }

    fn launch(&self, memory: &mut Memory) -> Result<(), KernelError> {
        let (stream, streams) = (&self.stream, memory.starts.len());
        let args = draft_block::Args {
            starts: TensorRef::new(stream, memory.starts.as_view(), [streams])?,
            bonus: TensorRef::new(stream, memory.bonus.as_view(), [streams])?,
            mask: MASK,
            ids: memory.ids.tensor(stream, [streams, self.block])?,
            positions: memory.positions.tensor(stream, [streams, self.block])?,
        };
        self.kernel.launch(stream, Choice::Forced(&self.variant), args).map(drop)
    }

    fn written(&self, memory: &mut Memory) -> Result<Vec<Written>, KernelError> {
        Ok(vec![
            memory.ids.written(&self.stream, "ids")?,
            memory.positions.written(&self.stream, "positions")?,
        ])
    }

    fn judge(&self, order: &[usize], written: &[Written]) -> Result<f64, String> {
        let [ids, positions] = written else { return Err("an output is missing".to_owned()) };
        for (i, &input) in order.iter().enumerate() {
            let (start, mut expected) = (self.starts[input], vec![MASK; self.block]);
            let mut places = vec![0; self.block];
            if start >= 0 {
                expected[0] = self.bonus[input];
                places = (start..).take(self.block).collect();
            }
            if ids.values::<i32>(i) != expected || positions.values::<i32>(i) != places {
                return Err(format!("stream {i}, which starts at {start}, has another block"));
            }
        }
        Ok(0.0)
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * (2 * self.block + 2) * size_of::<i32>()
    }
}
