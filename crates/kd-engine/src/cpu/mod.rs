//! The CPU backend: the specification of what a backend computes.

mod unread;

use std::sync::Arc;

use kd_attn::{Ancestors, BlockSegment, CacheError, Mask, PagedCache, Segment};
use kd_ddtree::DraftRow;
use kd_model::{Drafter, Forward, OpCounter, Target};
use kd_tensor::{Matrix, Pool};

use crate::backend::{Answers, Backend, Chunk, DeviceError, Head, Kept, Member, Sequence};
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
        let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        let segments: Vec<Segment<'_>> =
            chunks.iter().map(|c| segment(c.sequence, c.tokens.len(), Mask::Causal)).collect();
        let pass = self.forward(&tokens, &segments);
        let (mut first, mut last) = (0, Vec::new());
        for chunk in chunks {
            let rows: Vec<usize> = (first..first + chunk.tokens.len()).collect();
            self.keep(chunk.sequence, &pass, &rows);
            first += rows.len();
            last.extend(chunk.complete.then_some(first - 1));
        }
        let last = pass.hidden.gather(last.into_iter());
        Ok(Answers::of_logits(self.target.logits(&self.pool, &last)))
    }

    fn verify(&mut self, members: &[Member<'_>]) -> Result<Answers, DeviceError> {
        let (mut tokens, mut first) = (Vec::new(), Vec::with_capacity(members.len()));
        for member in members {
            first.push(tokens.len());
            tokens.push(member.bonus);
            tokens.extend(member.tree.nodes().iter().map(|node| node.token));
        }
        let mask = |member: &Member<'_>| (1..=member.tree.len()).map(|row| member.tree.mask(row)).collect();
        let masks: Vec<Vec<Ancestors>> = members.iter().map(mask).collect();
        let segments: Vec<Segment<'_>> = members
            .iter()
            .zip(&masks)
            .map(|(member, mask)| segment(member.sequence, 1 + mask.len(), Mask::Tree(mask)))
            .collect();
        let pass = self.forward(&tokens, &segments);
        let logits = self.target.logits(&self.pool, &pass.hidden);
        self.verified = Some((pass, first));
        Ok(Answers::of_logits(logits))
    }

    fn commit(&mut self, kept: &[Kept<'_>]) -> Result<(), DeviceError> {
        let Some((pass, first)) = self.verified.take() else { return Ok(()) };
        for kept in kept {
            let rows: Vec<usize> = kept.rows.iter().map(|row| first[kept.member] + row).collect();
            self.keep(kept.sequence, &pass, &rows);
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
            *row = DraftRow::from_logits(logits, k);
        });
        let rows = rows.chunks_exact_mut(depths);
        rows.map(|rows| rows.iter_mut().map_while(|row| in_target_ids(drafter, row.take()?)).collect())
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

fn segment<'a>(sequence: &'a Sequence, rows: usize, mask: Mask<'a>) -> Segment<'a> {
    Segment { pages: &sequence.pages, committed: sequence.committed, rows, mask }
}

/// A row of draft ids as one of target ids.
fn in_target_ids(drafter: &Drafter, row: DraftRow) -> Option<DraftRow> {
    let (tokens, logprobs): (Vec<u32>, Vec<f32>) =
        row.children().iter().map(|child| (drafter.target_id(child.token), child.logprob)).unzip();
    DraftRow::from_top_k(&tokens, &logprobs).ok()
}
