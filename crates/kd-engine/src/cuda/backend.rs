//! The passes of a round on a GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use kd_attn::{Mask, PageId, Segment};
use kd_ddtree::DraftRow;
use kd_kernels::{KernelError, Landing, Marks, Stream};
use kd_model::OpCounter;
use kd_model::cuda::{Bucket, CudaError, CudaTarget, Move};

use super::Gpu;
use super::buckets::{Buckets, up_to};
use super::drafting::{Drafting, landing_bytes};
use super::passes::{Captured, Passes, Shared};
use super::plan::Plan;
use super::rotation::Ahead;
use super::sampling::{RowDraw, Sampling};
use crate::EngineError;
use crate::backend::{Answers, Backend, Chunk, DeviceError, Head, Kept, Member, PromptRows, Row, Sequence};
use crate::engine::{EngineOptions, Models};

/// Models in the memory of one device.
#[derive(Debug)]
pub(super) struct Cuda {
    pub(super) stream: Stream,
    pub(super) shared: Shared,
    pub(super) buckets: Buckets,
    /// Verify passes alone, with the commit of rounds without trees, and with all that follows.
    pub(super) verify: BTreeMap<Bucket, Captured<Bucket>>,
    pub(super) plain: BTreeMap<Bucket, Captured<Bucket>>,
    pub(super) rotated: BTreeMap<Bucket, Captured<Bucket>>,
    /// By the number of rows; without the drafter, and with it.
    commit: [BTreeMap<usize, Captured<usize>>; 2],
    /// By the number of streams.
    pub(super) draft: BTreeMap<usize, Captured<usize>>,
    /// The first row of each member of the last verify pass.
    pub(super) first: Vec<usize>,
    /// Whether the last verify pass has committed by itself.
    pub(super) committed: bool,
    /// What it has drafted for the next round.
    pub(super) ahead: Ahead,
    /// Whether a stream has drafted since the last commit.
    pub(super) drafted: bool,
    pub(super) landing: Landing,
    pub(super) ops: OpCounter,
    pub(super) layers: u64,
    pub(super) graphs: u64,
    /// Of the replays that have not been asked for, if they are timed.
    pub(super) marks: Option<Vec<Marks>>,
}

impl Cuda {
    /// Loads the weights, plans all memory, captures all graphs and freezes the device.
    pub(super) fn new(
        models: &Models,
        gpu: Gpu,
        options: EngineOptions,
        report: &mut dyn FnMut(usize, usize, usize),
    ) -> Result<Self, EngineError> {
        let Gpu { device, kernels, nodes, deterministic, memory, .. } = gpu;
        let stream = device.stream().map_err(CudaError::from)?;
        let plan = Plan::by_options(models, &kernels, nodes, deterministic)?(options)?;
        plan.admit(&stream, &kernels, models, memory)?;
        let Plan { dims, buckets, limits, trees, chunk, read } = plan;
        let bytes = dims.weight_bytes()?;
        let target = CudaTarget::load(&stream, &kernels, &models.target, 0, &mut |done, of| {
            report(done, of, bytes);
        })?;
        let taps = models.drafter.as_ref().map_or(&[][..], |drafter| &drafter.config().target_layer_ids);
        let state = target.state(&stream, limits, taps, 1)?;
        let chunks = chunk
            .map(|chunk| target.prefill_state(&device, &stream, &kernels, &state, chunk, 1))
            .transpose()?;
        let vocab = target.dims().vocab;
        let sampling = Sampling::new(&stream, &kernels, limits.rows, vocab).map_err(CudaError::from)?;
        let drafter = models.drafter.as_ref();
        let drafting =
            drafter.map(|own| Drafting::load(&stream, &kernels, own, limits, read, trees)).transpose()?;
        let layers = target.dims().layers as u64;
        let results = drafter.map_or(0, |drafter| landing_bytes(drafter, limits.streams));
        let landing = Landing::new(&stream, results).map_err(CudaError::from)?;
        let shared = Shared::new(Passes { target, state, chunks, sampling, drafting });
        let mut cuda = Self {
            stream,
            shared,
            buckets,
            verify: BTreeMap::new(),
            plain: BTreeMap::new(),
            rotated: BTreeMap::new(),
            commit: Default::default(),
            draft: BTreeMap::new(),
            first: Vec::new(),
            committed: false,
            ahead: Ahead::default(),
            drafted: false,
            landing,
            ops: OpCounter::default(),
            layers,
            graphs: 0,
            marks: None,
        };
        cuda.warm_up(options.slots(), nodes)?;
        device.freeze();
        Ok(cuda)
    }

    /// Captures every size that a round can have.
    fn warm_up(&mut self, streams: usize, nodes: usize) -> Result<(), CudaError> {
        self.write_padding()?;
        for bucket in self.buckets.all() {
            let graph = self.shared.capture(&self.stream, bucket, Passes::verify)?;
            self.verify.insert(bucket, graph);
        }
        for bucket in self.buckets.plain() {
            self.plain.insert(bucket, self.shared.capture(&self.stream, bucket, Passes::plain)?);
        }
        self.prompt_once()?;
        // With passes of rounds it has left its token and its move.
        self.write_padding()?;
        let depths = self.shared.lock().drafting.as_ref().map_or(0, Drafting::depths);
        let drafts = nodes > 0 && depths > 0;
        for count in up_to(streams * (1 + nodes.min(depths))) {
            let graph = self.shared.capture(&self.stream, count, Passes::commit)?;
            self.commit[0].insert(count, graph);
            if drafts {
                let graph = self.shared.capture(&self.stream, count, Passes::commit_and_read)?;
                self.commit[1].insert(count, graph);
            }
        }
        for &streams in self.buckets.streams().iter().filter(|_| drafts) {
            self.draft.insert(streams, self.shared.capture(&self.stream, streams, Passes::draft)?);
        }
        for bucket in self.buckets.all().into_iter().filter(|_| drafts) {
            self.rotated.insert(bucket, self.shared.capture(&self.stream, bucket, Passes::rotated)?);
        }
        self.stream.synchronize().map_err(CudaError::from)
    }

    /// Inputs of passes of padding alone: nothing that they leave behind is ever read.
    fn write_padding(&self) -> Result<(), CudaError> {
        let mut passes = self.shared.lock();
        passes.state.inputs.write(&self.stream, &[], &[])?;
        passes.state.inputs.write_moves(&self.stream, &[])
    }

    /// Reads a token into a page that no stream has: what the driver loads at first launches is there then.
    fn prompt_once(&self) -> Result<(), CudaError> {
        let mut passes = self.shared.lock();
        let segment = Segment { pages: &[PageId(0)], committed: 0, rows: 1, mask: Mask::Causal };
        let sequence = Sequence { pages: vec![PageId(0)], drafts: true, ..Sequence::default() };
        passes.prompt(&self.stream, &[0], &[segment], Some(&[(&sequence, 0, 1)]))?;
        passes.last(&self.stream, &[0])
    }
}

impl Backend for Cuda {
    fn open(&mut self, _: &Sequence) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&mut self, sequence: &Sequence) {
        self.ahead.forget(sequence.slot);
        if let Some(drafting) = &mut self.shared.lock().drafting {
            drafting.forget(sequence.slot);
        }
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Answers, DeviceError> {
        let PromptRows { tokens, segments, ends } = PromptRows::of(chunks);
        let moved: Vec<_> =
            chunks.iter().map(|c| (c.sequence, c.sequence.committed, c.tokens.len())).collect();
        let draw = |chunk: &Chunk<'_>| {
            let position = chunk.sequence.committed + chunk.tokens.len();
            chunk.draw.map(|draw| RowDraw { draw, position })
        };
        let draws: Vec<_> = chunks.iter().filter(|chunk| chunk.complete).map(draw).collect();
        let mut passes = self.shared.lock();
        let read = chunks.iter().any(|chunk| chunk.sequence.drafts);
        passes.prompt(&self.stream, &tokens, &segments, read.then_some(&moved))?;
        count(&mut self.ops, self.layers, tokens.len());
        if ends.is_empty() {
            // What follows is timed, for the automatic budget: it must not wait for this.
            self.stream.synchronize()?;
            self.ahead.overlap(&mut self.landing)?;
            return Ok(Answers::default());
        }
        passes.sampling.write(&self.stream, &draws)?;
        passes.last(&self.stream, &ends)?;
        let found = answers(&draws, &passes.sampling.read(ends.len())?);
        self.ahead.overlap(&mut self.landing)?;
        Ok(found)
    }

    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        self.pass(members)
    }

    fn logits(&mut self, row: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(self.shared.lock().state.logits_of(&self.stream, row)?)
    }

    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError> {
        if self.committed {
            self.ahead.take(kept);
            return Ok(());
        }
        let drafted = std::mem::take(&mut self.drafted);
        let (mut moves, mut moved) = (Vec::new(), Vec::new());
        for kept in kept {
            let (sequence, rows) = (kept.sequence, kept.of_pass(&self.first));
            moves.extend(Move::path(&rows, &sequence.pages, sequence.committed));
            moved.push((sequence, sequence.committed, rows.len()));
        }
        if moves.is_empty() {
            return Ok(());
        }
        // Where nothing is ever drafted, nothing has to be read for it: no such graphs were captured.
        let drafts = !self.commit[1].is_empty() && kept.iter().any(|kept| kept.sequence.drafts);
        let read = drafts && drafted;
        let graph = self.commit[usize::from(read)].range(moves.len()..).next();
        let (_, graph) =
            graph.ok_or_else(|| DeviceError(format!("no graph for a commit of {} rows", moves.len())))?;
        let mut passes = self.shared.lock();
        passes.state.inputs.write_moves(&self.stream, &moves)?;
        if let (Some(drafting), true) = (&passes.drafting, read) {
            drafting.write_context(&self.stream, &moved)?;
        }
        self.graphs += 1;
        replay(graph, &mut self.marks)?;
        if drafts && !read {
            passes.keep(&self.stream, &moved)?;
        }
        Ok(())
    }

    /// What waits is read in any case, many rounds' tokens in one pass, whoever drafts: the automatic budget has nothing to
    /// decide about it, and is told of none.
    fn unread(&self, _: usize) -> usize {
        0
    }

    fn catch_up(&mut self, _: &[&Sequence]) -> Result<usize, DeviceError> {
        let mut passes = self.shared.lock();
        if let Some(drafting) = &mut passes.drafting
            && drafting.catch_up(&self.stream)?
        {
            // The draft, which is timed, must not wait for this.
            self.stream.synchronize()?;
        }
        Ok(0)
    }

    fn draft(&mut self, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, DeviceError> {
        self.ahead.settle(&mut self.landing)?;
        let passes = self.shared.lock();
        let Some(drafting) = &passes.drafting else { return Ok(vec![Vec::new(); heads.len()]) };
        self.drafted = true;
        let mut rows = vec![Vec::new(); heads.len()];
        // Streams that have just joined, and those that were not expected to draft.
        let mut others: Vec<usize> = Vec::new();
        for (i, head) in heads.iter().enumerate() {
            match self.ahead.find(head.sequence) {
                Some((found, index)) => rows[i] = drafting.rows(found, index, head.best),
                None => others.push(i),
            }
        }
        if others.is_empty() {
            return Ok(rows);
        }
        let graph = self.draft.range(others.len()..).next();
        let (_, graph) =
            graph.ok_or_else(|| DeviceError(format!("no graph for drafts of {} streams", others.len())))?;
        let own: Vec<Head<'_>> = others.iter().map(|&i| heads[i]).collect();
        drafting.write_blocks(&self.stream, &own)?;
        self.graphs += 1;
        replay(graph, &mut self.marks)?;
        let sent = drafting.send(&mut self.landing, own.len())?;
        let found = sent.arrived(self.landing.wait()?);
        for (index, &i) in others.iter().enumerate() {
            rows[i] = drafting.rows(&found, index, heads[i].best);
        }
        Ok(rows)
    }

    fn settle(&mut self) -> Result<bool, DeviceError> {
        self.ahead.settle(&mut self.landing)?;
        Ok(self.ahead.overlapped)
    }

    fn graphs(&self) -> u64 {
        self.graphs
    }

    fn ops(&self) -> OpCounter {
        self.ops
    }

    fn time_device(&mut self, on: bool) {
        self.marks = on.then(Vec::new);
    }

    fn device_time(&mut self) -> Result<Option<Duration>, DeviceError> {
        let Some(marks) = &mut self.marks else { return Ok(None) };
        let micros = marks.drain(..).map(|marks| marks.micros()).sum::<Result<f64, _>>()?;
        Ok(Some(Duration::from_secs_f64(micros * 1e-6)))
    }
}

/// Replays `graph`, with marks if they are kept.
pub(super) fn replay<S>(graph: &Captured<S>, marks: &mut Option<Vec<Marks>>) -> Result<(), KernelError> {
    match marks {
        Some(marks) => graph.launch_marked().map(|own| marks.push(own)),
        None => graph.launch(),
    }
}

/// The answers of a pass whose rows gave `tokens`, where they were drawn.
pub(super) fn answers(draws: &[Option<RowDraw>], tokens: &[i32]) -> Answers {
    let row = |(draw, &token): (&Option<RowDraw>, &i32)| {
        draw.map_or(Row::Held, |_| Row::Token(u32::try_from(token).ok()))
    };
    Answers::new(draws.iter().zip(tokens).map(row).collect())
}

/// Each layer has attended once, over all rows.
pub(super) fn count(ops: &mut OpCounter, layers: u64, rows: usize) {
    ops.attention_calls += layers;
    ops.attention_rows += layers * rows as u64;
}
