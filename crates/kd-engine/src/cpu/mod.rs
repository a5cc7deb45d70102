//! The CPU backend: the specification of what a backend computes.

mod unread;

use std::sync::Arc;

use kd_attn::{BlockSegment, CacheError, PagedCache, Segment};
use kd_ddtree::DraftRow;
use kd_model::{Drafter, Forward, OpCounter, Target};
use kd_tensor::ops::exp_sum;
use kd_tensor::{Matrix, Pool};

use crate::backend::{
    Answers, Backend, Chunk, DeviceError, Head, Kept, Member, PromptRows, Sequence, TreeRows,
};
use crate::engine::Models;
use unread::Unread;

/// Models, caches and threads of this process.
#[derive(Debug)]
pub(crate) struct Cpu {
    pool: Pool,
    target: Arc<Target>,
    latents: PagedCache,
    reader: Option<Reader>,
    /// What the drafter has not read, of each slot.
    unread: Vec<Unread>,
    /// The last verify pass, and the first row of each of its members.
    verified: Option<(Forward, Vec<usize>)>,
    ops: OpCounter,
}

/// The drafter and the context that it has read.
#[derive(Debug)]
struct Reader {
    drafter: Arc<Drafter>,
    context: PagedCache,
}

impl Cpu {
    /// Caches of `pages` pages for `slots` streams.
    ///
    /// # Errors
    /// If the caches do not fit in memory.
    pub(crate) fn new(models: &Models, pool: Pool, slots: usize, pages: usize) -> Result<Self, CacheError> {
        let reader = |drafter: &Arc<Drafter>| -> Result<Reader, CacheError> {
            Ok(Reader { context: drafter.try_new_cache(pages)?, drafter: drafter.clone() })
        };
        Ok(Self {
            pool,
            latents: models.target.try_new_cache(pages)?,
            reader: models.drafter.as_ref().map(reader).transpose()?,
            target: models.target.clone(),
            unread: std::iter::repeat_with(Unread::default).take(slots).collect(),
            verified: None,
            ops: OpCounter::default(),
        })
    }

    fn forward(&mut self, tokens: &[u32], segments: &[Segment<'_>]) -> Forward {
        let taps = self.reader.as_ref().map_or(&[][..], |reader| &reader.drafter.config().target_layer_ids);
        self.target
            .forward(&self.pool, tokens, segments, &self.latents, taps, &mut self.ops)
            .expect("the engine checks prompts, and drafts lie in the target's vocabulary")
    }

    /// Writes rows of a pass into the pages of a stream, and keeps their taps for the drafter if the stream may draft.
    fn keep(&mut self, sequence: &Sequence, pass: &Forward, rows: &[usize]) {
        self.latents.commit(&pass.latents, rows, &sequence.pages, sequence.committed);
        if let (Some(reader), true) = (&mut self.reader, sequence.drafts) {
            let unread = &mut self.unread[sequence.slot];
            unread.push(&pass.taps, rows, sequence.committed);
            if unread.is_full() {
                reader.read(&self.pool, &mut self.unread, &[sequence]);
            }
        }
    }
}

impl Backend for Cpu {
    fn open(&mut self, sequence: &Sequence) -> Result<(), DeviceError> {
        self.unread[sequence.slot].clear();
        Ok(())
    }

    fn close(&mut self, sequence: &Sequence) {
        self.unread[sequence.slot].clear();
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Answers, DeviceError> {
        let PromptRows { tokens, segments, ends } = PromptRows::of(chunks);
        let pass = self.forward(&tokens, &segments);
        let mut first = 0;
        for chunk in chunks {
            let rows: Vec<usize> = (first..first + chunk.tokens.len()).collect();
            self.keep(chunk.sequence, &pass, &rows);
            first += rows.len();
        }
        let last = pass.hidden.gather(ends.into_iter());
        Ok(Answers::of_logits(self.target.logits(&self.pool, &last)))
    }

    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        let rows = TreeRows::of(members);
        let pass = self.forward(&rows.tokens, &rows.segments(members));
        let logits = self.target.logits(&self.pool, &pass.hidden);
        self.verified = Some((pass, rows.first));
        Ok(Answers::of_logits(logits))
    }

    fn logits(&mut self, row: usize) -> Result<Vec<f32>, DeviceError> {
        Err(DeviceError(format!("the logits of row {row} were handed out")))
    }

    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError> {
        let Some((pass, first)) = self.verified.take() else { return Ok(()) };
        for kept in kept {
            self.keep(kept.sequence, &pass, &kept.of_pass(&first));
        }
        Ok(())
    }

    fn unread(&self, slot: usize) -> usize {
        self.unread[slot].tokens()
    }

    fn catch_up(&mut self, sequences: &[&Sequence]) -> Result<usize, DeviceError> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        Ok(reader.read(&self.pool, &mut self.unread, sequences))
    }

    fn draft(&mut self, heads: &[Head<'_>]) -> Result<Vec<Vec<DraftRow>>, DeviceError> {
        let Some(Reader { drafter, context }) = &self.reader else {
            return Ok(vec![Vec::new(); heads.len()]);
        };
        let bonus: Vec<u32> = heads.iter().map(|head| head.bonus).collect();
        let segments: Vec<BlockSegment<'_>> = heads
            .iter()
            .map(|head| BlockSegment { pages: &head.sequence.pages, start: head.sequence.committed })
            .collect();
        let draft = drafter
            .draft(&self.pool, self.target.as_ref().into(), &bonus, &segments, context)
            .expect("bonus tokens come from the target's own vocabulary");
        Ok(self.best(drafter, heads, &draft.logits))
    }

    fn ops(&self) -> OpCounter {
        self.ops
    }
}

impl Cpu {
    /// The draft rows of each stream, as deep as they are finite: a shorter tree is still a tree.
    fn best(&self, drafter: &Drafter, heads: &[Head<'_>], logits: &Matrix) -> Vec<Vec<DraftRow>> {
        let depths = drafter.config().block_size - 1;
        let mut rows = vec![None; heads.len() * depths];
        let best = heads.iter().flat_map(|head| std::iter::repeat_n(head.best, depths));
        let tasks = rows.iter_mut().zip(logits.data().chunks_exact(logits.cols())).zip(best).collect();
        self.pool.for_each(tasks, |((row, logits), k): ((&mut Option<DraftRow>, &[f32]), usize)| {
            *row = DraftRow::from_logits_with(logits, k, exp_sum);
        });
        let rows = rows.chunks_exact_mut(depths);
        rows.map(|rows| rows.iter_mut().map_while(|row| drafter.in_target_ids(row.take()?)).collect())
            .collect()
    }
}

impl Reader {
    /// Reads what these streams have committed, in one batch; returns the number of tokens.
    fn read(&mut self, pool: &Pool, unread: &mut [Unread], sequences: &[&Sequence]) -> usize {
        let (taps, positions) = unread::together(sequences.iter().map(|s| &unread[s.slot]));
        if positions.is_empty() {
            return 0;
        }
        let tokens = positions.len();
        let layers = self.drafter.context(pool, &taps, positions);
        let mut first = 0;
        for sequence in sequences {
            let unread = &mut unread[sequence.slot];
            let rows: Vec<usize> = (first..first + unread.tokens()).collect();
            self.context.commit(&layers, &rows, &sequence.pages, unread.start());
            first += rows.len();
            unread.clear();
        }
        tokens
    }
}
