//! The walk on the device: down each tree as the target's tokens say, and what is committed and drafted behind it.

use kd_kernels::families::walk;
use kd_kernels::{Choice, CudaSlice, CudaView, KernelError, Kernels, Stream, TensorRef};

use half::bf16;

use super::drafter::{Blocks, ContextRows};
use super::error::within;
use super::inputs::PassInputs;
use super::kernels::int;
use super::limits::{Bucket, Limits};
use super::memory::{head, head_mut, zeros};
use super::{CudaError, CudaTarget, PassState};

/// What the walks of a pass find, at fixed addresses: of each stream up to `depth` visited rows and what comes after them.
#[derive(Debug)]
pub struct Walks {
    kernel: walk::Walk,
    depth: usize,
    limits: Limits,
    /// `[streams, depth]`: visited rows of the pass, their positions, and where they go in the pages; rows and places are -1
    /// behind the last.
    rows: CudaSlice<i32>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    /// `[streams]`: visited rows, the token after the last one, and the tokens that are committed then; 0, -1 and -1 of a stream
    /// with a visited row that has no token, or without rows.
    counts: CudaSlice<i32>,
    bonus: CudaSlice<i32>,
    next: CudaSlice<i32>,
}

impl Walks {
    /// Fails unless there are kernels for walks that visit up to `depth` rows of a stream. Nothing is allocated.
    ///
    /// # Errors
    /// Another depth.
    pub fn check(kernels: &Kernels, depth: usize) -> Result<(), CudaError> {
        Ok(walk::Walk::load(kernels, walk::Dims { d: int(depth) }).map(drop)?)
    }

    /// Memory for walks over passes within `limits` that visit up to `depth` rows of a stream: as many as a drafter's block has,
    /// for which there are kernels.
    ///
    /// # Errors
    /// Another depth, fewer rows than all streams may visit together, a failed allocation.
    pub fn new(stream: &Stream, kernels: &Kernels, limits: Limits, depth: usize) -> Result<Self, CudaError> {
        let (streams, all) = (limits.streams, limits.streams * depth);
        within("the rows that walks may visit", all, limits.rows)?;
        let kernel = walk::Walk::load(kernels, walk::Dims { d: int(depth) })?;
        let (rows, positions, slots) = (zeros!(stream, all)?, zeros!(stream, all)?, zeros!(stream, all)?);
        let (counts, bonus, next) =
            (zeros!(stream, streams)?, zeros!(stream, streams)?, zeros!(stream, streams)?);
        Ok(Self { kernel, depth, limits, rows, positions, slots, counts, bonus, next })
    }

    /// Bytes of [`Walks::new`].
    pub fn bytes(limits: Limits, depth: usize) -> usize {
        3 * size_of::<i32>() * limits.streams * (depth + 1)
    }

    /// Rows that a commit of `streams` walks moves at most.
    pub fn kept(&self, streams: usize) -> usize {
        streams * self.depth
    }

    /// Enqueues the walks of the last pass, whose inputs are `inputs`; `chosen` is the target's token after each row, negative
    /// where it has none. Safe to capture in a graph.
    ///
    /// # Errors
    /// More rows or streams than planned, a refused launch.
    pub fn launch(
        &mut self,
        stream: &Stream,
        inputs: &PassInputs,
        bucket: Bucket,
        chosen: CudaView<'_, i32>,
    ) -> Result<(), CudaError> {
        let Bucket { rows, streams, .. } = bucket;
        within("the number of streams of a pass", streams, self.limits.streams)?;
        let (wide, width) = ([streams, self.depth], self.limits.table_width());
        let args = walk::Args {
            tokens: TensorRef::new(stream, inputs.tokens(rows)?, [rows])?,
            parents: TensorRef::new(stream, inputs.parents(rows)?, [rows])?,
            chosen: TensorRef::new(stream, chosen, [rows])?,
            firsts: TensorRef::new(stream, inputs.starts(streams)?, [streams + 1])?,
            committed: TensorRef::new(stream, inputs.committed(streams)?, [streams])?,
            table: TensorRef::new(stream, inputs.table(streams)?, [streams, width])?,
            rows: head_mut(stream, &mut self.rows, wide)?,
            positions: head_mut(stream, &mut self.positions, wide)?,
            slots: head_mut(stream, &mut self.slots, wide)?,
            counts: head_mut(stream, &mut self.counts, [streams])?,
            bonus: head_mut(stream, &mut self.bonus, [streams])?,
            next: head_mut(stream, &mut self.next, [streams])?,
        };
        self.kernel.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Visited rows of each of `streams` streams.
    ///
    /// # Errors
    /// More streams than planned.
    pub fn counts(&self, streams: usize) -> Result<CudaView<'_, i32>, KernelError> {
        self.part(&self.counts, streams)
    }

    /// The visited rows of `streams` streams as context of a drafter; `taps` are those of [`CudaTarget::commit_walked`].
    ///
    /// # Errors
    /// More streams than planned.
    pub fn context<'a>(
        &'a self,
        streams: usize,
        taps: TensorRef<'a, bf16, 2>,
    ) -> Result<ContextRows<'a>, KernelError> {
        let kept = self.kept(streams);
        let (positions, slots) = (self.part(&self.positions, kept)?, self.part(&self.slots, kept)?);
        Ok(ContextRows { taps, positions, slots })
    }

    /// The blocks that follow on the walks of `streams` streams of the pass over `inputs`.
    ///
    /// # Errors
    /// More streams than planned.
    pub fn blocks<'a>(&'a self, inputs: &'a PassInputs, streams: usize) -> Result<Blocks<'a>, KernelError> {
        let (starts, bonus) = (self.part(&self.next, streams)?, self.part(&self.bonus, streams)?);
        Ok(Blocks { starts, bonus, table: inputs.table(streams)? })
    }

    fn part<'a>(&self, memory: &'a CudaSlice<i32>, len: usize) -> Result<CudaView<'a, i32>, KernelError> {
        memory.try_slice(..len).ok_or_else(|| KernelError::BadTensor {
            shape: vec![len],
            what: format!("walks were planned for {} streams", self.limits.streams),
        })
    }
}

impl CudaTarget {
    /// As [`CudaTarget::commit`], of the rows that the walks of `streams` streams have visited. Row `depth · s + i` of
    /// [`PassState::kept_taps`] has the taps of the i-th of stream `s`.
    ///
    /// # Errors
    /// More streams than planned, a refused launch.
    pub fn commit_walked(
        &self,
        stream: &Stream,
        state: &mut PassState,
        walks: &Walks,
        streams: usize,
    ) -> Result<(), CudaError> {
        let kept = walks.kept(streams);
        let from = head(stream, &walks.rows, [kept])?;
        let PassState { rows, scratch, pages, limits, .. } = state;
        self.move_rows(stream, (scratch, pages, rows), *limits, [from, head(stream, &walks.slots, [kept])?])
    }
}
