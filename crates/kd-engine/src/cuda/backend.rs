//! The passes of a round on a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use kd_attn::{Ancestors, Mask, PAGE_TOKENS, Segment};
use kd_ddtree::DraftRow;
use kd_kernels::Stream;
use kd_model::OpCounter;
use kd_model::cuda::{Bucket, CudaError, CudaTarget, Dims, Limits, Move};

use super::Gpu;
use super::buckets::{Buckets, up_to};
use super::drafting::Drafting;
use super::passes::{Captured, Passes, Shared};
use super::sampling::{RowDraw, Sampling};
use crate::EngineError;
use crate::backend::{Answers, Backend, Chunk, DeviceError, Head, Kept, Member, Row, Sequence};
use crate::engine::{EngineOptions, Models};

/// Prompt rows of one stream in a pass: they are a chain, and a chain is a tree.
const PIECE: usize = 128;

/// Models in the memory of one device.
#[derive(Debug)]
pub(super) struct Cuda {
    stream: Stream,
    shared: Shared,
    buckets: Buckets,
    limits: Limits,
    verify: BTreeMap<Bucket, Captured<Bucket>>,
    /// By the number of rows; without the drafter, and with it.
    commit: [BTreeMap<usize, Captured<usize>>; 2],
    /// By the number of streams.
    draft: BTreeMap<usize, Captured<usize>>,
    /// The first row of each member of the last verify pass.
    first: Vec<usize>,
    ops: OpCounter,
    layers: u64,
}

/// One stream's part of a prompt pass.
struct Piece<'a> {
    chunk: &'a Chunk<'a>,
    /// Which chunk it is of.
    index: usize,
    /// Of its tokens, those that earlier passes have read.
    done: usize,
    rows: usize,
}

impl Cuda {
    /// Loads the weights, plans all memory, captures all graphs and freezes the device.
    pub(super) fn new(
        models: &Models,
        gpu: Gpu,
        options: EngineOptions,
        report: &mut dyn FnMut(usize, usize, usize),
    ) -> Result<Self, EngineError> {
        let Gpu { device, kernels, nodes, .. } = gpu;
        let stream = device.stream().map_err(CudaError::from)?;
        let buckets = Buckets::new(options.slots(), nodes);
        let limits = limits(models, options, &buckets);
        let bytes = Dims::of(models.target.config(), 0, 1)?.weight_bytes()?;
        let target = CudaTarget::load(&stream, &kernels, &models.target, 0, &mut |done, of| {
            report(done, of, bytes);
        })?;
        let taps = models.drafter.as_ref().map_or(&[][..], |drafter| &drafter.config().target_layer_ids);
        let state = target.state(&stream, limits, taps, 1)?;
        let vocab = target.dims().vocab;
        let sampling = Sampling::new(&stream, &kernels, limits.rows, vocab).map_err(CudaError::from)?;
        let drafter = models.drafter.as_ref();
        let drafting =
            drafter.map(|drafter| Drafting::load(&stream, &kernels, drafter, limits)).transpose()?;
        let layers = target.dims().layers as u64;
        let shared = Shared::new(Passes { target, state, sampling, drafting });
        let mut cuda = Self {
            stream,
            shared,
            buckets,
            limits,
            verify: BTreeMap::new(),
            commit: Default::default(),
            draft: BTreeMap::new(),
            first: Vec::new(),
            ops: OpCounter::default(),
            layers,
        };
        cuda.warm_up(options.slots(), nodes)?;
        device.freeze();
        Ok(cuda)
    }

    /// Captures every size that a round can have.
    fn warm_up(&mut self, streams: usize, nodes: usize) -> Result<(), CudaError> {
        // Passes of padding alone: nothing that they leave behind is ever read.
        self.shared.lock().state.inputs.write(&self.stream, &[], &[])?;
        self.shared.lock().state.inputs.write_moves(&self.stream, &[])?;
        for bucket in self.buckets.all() {
            let graph = self.shared.capture(&self.stream, bucket, Passes::verify)?;
            self.verify.insert(bucket, graph);
        }
        let drafts = nodes > 0 && self.shared.lock().drafting.is_some();
        for count in up_to(streams * (1 + nodes)) {
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
        self.stream.synchronize().map_err(CudaError::from)
    }

    /// Reads the next rows of each piece, commits them, and answers after those that complete their chunk.
    fn piece(&mut self, pieces: &[Piece<'_>], answers: &mut [Row]) -> Result<(), CudaError> {
        let (mut tokens, mut segments, mut moves) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ends, mut draws, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for &Piece { chunk, index, done, rows } in pieces {
            let committed = chunk.sequence.committed + done;
            let own: Vec<usize> = (tokens.len()..tokens.len() + rows).collect();
            tokens.extend_from_slice(&chunk.tokens[done..done + rows]);
            moves.extend(Move::path(&own, &chunk.sequence.pages, committed));
            moved.push((chunk.sequence, committed, rows));
            segments.push(Segment { pages: &chunk.sequence.pages, committed, rows, mask: Mask::Causal });
            if chunk.complete && done + rows == chunk.tokens.len() {
                ends.push((index, tokens.len() - 1));
                draws.push(chunk.draw.map(|draw| RowDraw { draw, position: committed + rows }));
            }
        }
        let mut passes = self.shared.lock();
        let Passes { state, sampling, drafting, .. } = &mut *passes;
        state.inputs.write(&self.stream, &tokens, &segments)?;
        state.inputs.write_moves(&self.stream, &moves)?;
        let drafts = pieces.iter().any(|piece| piece.chunk.sequence.drafts);
        if let (Some(drafting), true) = (drafting, drafts) {
            drafting.write_context(&self.stream, &moved)?;
        }
        let last: Vec<usize> = ends.iter().map(|&(_, row)| row).collect();
        state.inputs.choose(&self.stream, &last)?;
        sampling.write(&self.stream, &draws)?;
        passes.forward(&self.stream, Bucket { rows: tokens.len(), streams: segments.len() })?;
        if drafts {
            passes.commit_and_read(&self.stream, tokens.len())?;
        } else {
            passes.commit(&self.stream, tokens.len())?;
        }
        self.ops.attention_calls += self.layers;
        self.ops.attention_rows += self.layers * tokens.len() as u64;
        if last.is_empty() {
            return Ok(());
        }
        passes.last(&self.stream, last.len())?;
        let rows = rows(&passes, &self.stream, &draws)?;
        ends.iter().zip(rows).for_each(|(&(index, _), row)| answers[index] = row);
        Ok(())
    }
}

impl Backend for Cuda {
    fn open(&mut self, _: &Sequence) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&mut self, _: &Sequence) {}

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Answers, DeviceError> {
        let mut done = vec![0; chunks.len()];
        let mut answers = vec![Row::Token(None); chunks.len()];
        loop {
            let mut room = self.limits.rows;
            let mut pieces = Vec::new();
            for (index, chunk) in chunks.iter().enumerate() {
                let rows = room.min(PIECE).min(chunk.tokens.len() - done[index]);
                if rows > 0 {
                    pieces.push(Piece { chunk, index, done: done[index], rows });
                    room -= rows;
                }
            }
            if pieces.is_empty() {
                break;
            }
            self.piece(&pieces, &mut answers)?;
            pieces.iter().for_each(|piece| done[piece.index] += piece.rows);
        }
        let answered = chunks.iter().zip(answers).filter(|(chunk, _)| chunk.complete);
        Ok(Answers::new(answered.map(|(_, answer)| answer).collect()))
    }

    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        let (mut tokens, mut draws) = (Vec::new(), Vec::new());
        self.first.clear();
        for member in members {
            self.first.push(tokens.len());
            tokens.push(member.bonus);
            tokens.extend(member.tree.nodes().iter().map(|node| node.token));
            let next = |row: usize| member.sequence.committed + member.tree.depth(row) + 1;
            let draw = |row| member.draw.map(|draw| RowDraw { draw, position: next(row) });
            draws.extend(member.tree.rows().map(draw));
        }
        let mask = |member: &Member<'_>| (1..=member.tree.len()).map(|row| member.tree.mask(row)).collect();
        let masks: Vec<Vec<Ancestors>> = members.iter().map(mask).collect();
        let segments: Vec<Segment<'_>> = members
            .iter()
            .zip(&masks)
            .map(|(Member { sequence, .. }, mask)| Segment {
                pages: &sequence.pages,
                committed: sequence.committed,
                rows: 1 + mask.len(),
                mask: Mask::Tree(mask),
            })
            .collect();
        let bucket = self.buckets.fit(tokens.len(), members.len());
        let graph = bucket.and_then(|bucket| self.verify.get(&bucket)).ok_or_else(|| {
            DeviceError(format!("no graph for {} rows of {} streams", tokens.len(), members.len()))
        })?;
        let mut passes = self.shared.lock();
        passes.state.inputs.write(&self.stream, &tokens, &segments)?;
        passes.sampling.write(&self.stream, &draws)?;
        graph.launch()?;
        self.ops.attention_calls += self.layers;
        self.ops.attention_rows += self.layers * tokens.len() as u64;
        Ok(Answers::new(rows(&passes, &self.stream, &draws)?))
    }

    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError> {
        let (mut moves, mut moved) = (Vec::new(), Vec::new());
        for &Kept { sequence, member, rows } in kept {
            let rows: Vec<usize> = rows.iter().map(|row| self.first[member] + row).collect();
            moves.extend(Move::path(&rows, &sequence.pages, sequence.committed));
            moved.push((sequence, sequence.committed, rows.len()));
        }
        if moves.is_empty() {
            return Ok(());
        }
        let drafts = kept.iter().any(|kept| kept.sequence.drafts);
        let graph = self.commit[usize::from(drafts)].range(moves.len()..).next();
        let (_, graph) =
            graph.ok_or_else(|| DeviceError(format!("no graph for a commit of {} rows", moves.len())))?;
        let passes = self.shared.lock();
        passes.state.inputs.write_moves(&self.stream, &moves)?;
        if let (Some(drafting), true) = (&passes.drafting, drafts) {
            drafting.write_context(&self.stream, &moved)?;
        }
        Ok(graph.launch()?)
    }

    /// The drafter reads what is committed at once: its taps are on the device for one pass only.
    fn unread(&self, _: usize) -> usize {
        0
    }

    fn catch_up(&mut self, _: &[&Sequence]) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn draft(&mut self, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, DeviceError> {
        let passes = self.shared.lock();
        let Some(drafting) = &passes.drafting else { return Ok(vec![Vec::new(); heads.len()]) };
        let (_, graph) = self
            .draft
            .range(heads.len()..)
            .next()
            .ok_or_else(|| DeviceError(format!("no graph for drafts of {} streams", heads.len())))?;
        drafting.write_blocks(&self.stream, heads)?;
        graph.launch()?;
        Ok(drafting.rows(&self.stream, heads)?)
    }

    fn ops(&self) -> OpCounter {
        self.ops
    }
}

/// The answers of the pass that was enqueued last, once the device has come this far: tokens, and logits where there was no
/// draw.
fn rows(passes: &Passes, stream: &Stream, draws: &[Option<RowDraw>]) -> Result<Vec<Row>, CudaError> {
    let logits = if draws.iter().any(Option::is_none) {
        Some(Arc::new(passes.state.logits(stream, draws.len())?))
    } else {
        None
    };
    let tokens = passes.sampling.read(stream, draws.len())?;
    let row = |(row, (draw, token)): (usize, (&Option<RowDraw>, Option<u32>))| match (draw, &logits) {
        (None, Some(logits)) => Row::Logits(logits.clone(), row),
        _ => Row::Token(token),
    };
    Ok(draws.iter().zip(tokens).enumerate().map(row).collect())
}

fn limits(models: &Models, options: EngineOptions, buckets: &Buckets) -> Limits {
    let longest = models.target.config().max_position_embeddings.div_ceil(PAGE_TOKENS);
    let prompt = options.prefill_chunk.clamp(1, PIECE * options.slots());
    Limits {
        rows: buckets.most_rows().max(prompt),
        streams: buckets.most_streams(),
        pages: options.pages(),
        stream_pages: longest.min(options.pages()),
    }
}
