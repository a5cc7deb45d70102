//! What changes from draft to draft, at fixed addresses, so that captured launches serve any round.

use kd_attn::{BlockSegment, PAGE_TOKENS, PageId};
use kd_kernels::{Buffer, CudaView, KernelError, Stream, TensorRef};

use half::bf16;

use crate::cuda::CudaError;
use crate::cuda::error::within;

/// What memory is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLimits {
    /// Streams of a draft.
    pub streams: usize,
    /// Committed tokens whose context is computed in one pass.
    pub tokens: usize,
    /// Pages of the cache; the ids are those of the target's.
    pub pages: usize,
    /// Pages of one stream.
    pub stream_pages: usize,
}

impl DraftLimits {
    /// Positions that a row may have: any committed token, then a block of `block` rows.
    pub fn positions(&self, block: usize) -> usize {
        self.stream_pages.saturating_mul(PAGE_TOKENS).saturating_add(block)
    }
}

/// Where a committed token goes in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its position.
    pub position: usize,
    /// The page of the stream that holds it.
    pub page: PageId,
}

/// Taps of committed tokens, and where their keys and values go.
#[derive(Debug)]
pub struct ContextRows<'a> {
    /// `[tokens, taps · hidden]`
    pub taps: TensorRef<'a, bf16, 2>,
    /// Position of each token.
    pub positions: CudaView<'a, i32>,
    /// Row of the pages of each token, `64 · page + place`; -1 is a token that is not there.
    pub slots: CudaView<'a, i32>,
}

/// The streams of a draft.
#[derive(Debug)]
pub struct Blocks<'a> {
    /// Committed tokens of each stream, -1 for padding.
    pub starts: CudaView<'a, i32>,
    /// The newest token of each stream, whose context is not there yet.
    pub bonus: CudaView<'a, i32>,
    /// Pages of each stream, `[streams, pages]`, for as many pages each as any stream has or more.
    pub table: CudaView<'a, i32>,
}

impl Blocks<'_> {
    /// Streams, padding included.
    pub fn streams(&self) -> usize {
        self.starts.len()
    }
}

/// Device memory for both, written by the host. Writes are ordered by the stream: they come after every launch that was
/// enqueued before.
#[derive(Debug)]
pub struct DraftInputs {
    limits: DraftLimits,
    vocab: usize,
    /// Starts, newest tokens, pages, each from a multiple of four on.
    blocks: Buffer<i32>,
    /// Positions, slots, likewise.
    context: Buffer<i32>,
}

impl DraftInputs {
    /// Memory for `limits`, all of it padding; tokens of a stream come from a vocabulary of `vocab`.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn new(stream: &Stream, limits: DraftLimits, vocab: usize) -> Result<Self, KernelError> {
        let streams = padded(limits.streams);
        let mut blocks = vec![-1; 2 * streams + limits.streams * limits.stream_pages];
        blocks[streams..2 * streams].fill(0);
        let mut context = vec![0; 2 * padded(limits.tokens)];
        context[padded(limits.tokens)..].fill(-1);
        let (blocks, context) = (Buffer::new(stream, &blocks)?, Buffer::new(stream, &context)?);
        Ok(Self { limits, vocab, blocks, context })
    }

    /// Writes the streams of the next draft: the newest token of each, its committed tokens and their pages. A draft of more
    /// streams is padded.
    ///
    /// # Errors
    /// As many tokens as streams not given, a token outside the vocabulary, a limit exceeded, a page that the cache does not
    /// have, a failed copy.
    pub fn write_blocks(
        &self,
        stream: &Stream,
        bonus: &[u32],
        segments: &[BlockSegment<'_>],
    ) -> Result<(), CudaError> {
        let limits = self.limits;
        within("the number of streams of a draft", segments.len(), limits.streams)?;
        if bonus.len() != segments.len() {
            let (found, limit) = (bonus.len(), segments.len());
            return Err(CudaError::Limit { what: "the number of newest tokens", found, limit });
        }
        kd_tensor::ops::check_ids(bonus, self.vocab)?;
        let (streams, pages) = (padded(limits.streams), limits.stream_pages);
        let mut all = vec![-1; 2 * streams + limits.streams * pages];
        let (starts, rest) = all.split_at_mut(streams);
        let (tokens, table) = rest.split_at_mut(streams);
        tokens.fill(0);
        for (i, (segment, token)) in segments.iter().zip(bonus).enumerate() {
            let filled = segment.start.div_ceil(PAGE_TOKENS);
            within("the number of pages of a stream", filled, pages)?;
            within("the number of pages that committed tokens fill", filled, segment.pages.len())?;
            starts[i] = index("a number of committed tokens", segment.start)?;
            tokens[i] = index("a token", *token as usize)?;
            for (to, page) in table[i * pages..].iter_mut().zip(&segment.pages[..filled]) {
                *to = self.page(*page)?;
            }
        }
        Ok(self.blocks.write(stream, &all)?)
    }

    /// Writes where the context of the next tokens goes; `None` is a row that is not there. More rows are padding.
    ///
    /// # Errors
    /// More rows than planned, a page that the cache does not have, a position beyond the longest context, a failed copy.
    pub fn write_context(&self, stream: &Stream, tokens: &[Option<Committed>]) -> Result<(), CudaError> {
        let limits = self.limits;
        within("the number of context tokens of a pass", tokens.len(), limits.tokens)?;
        let mut all = vec![0; 2 * padded(limits.tokens)];
        let (positions, slots) = all.split_at_mut(padded(limits.tokens));
        slots.fill(-1);
        for (i, token) in tokens.iter().enumerate() {
            let Some(Committed { position, page }) = *token else { continue };
            within("a position", position, (limits.stream_pages * PAGE_TOKENS).saturating_sub(1))?;
            self.page(page)?;
            positions[i] = index("a position", position)?;
            slots[i] = index("a row of the pages", page.0 as usize * PAGE_TOKENS + position % PAGE_TOKENS)?;
        }
        Ok(self.context.write(stream, &all)?)
    }

    fn page(&self, page: PageId) -> Result<i32, CudaError> {
        within("a page", page.0 as usize, self.limits.pages.saturating_sub(1))?;
        index("a page", page.0 as usize)
    }

    /// The first `streams` streams, as they are when the launches run.
    ///
    /// # Errors
    /// More streams than planned.
    pub fn blocks(&self, streams: usize) -> Result<Blocks<'_>, CudaError> {
        within("the number of streams of a draft", streams, self.limits.streams)?;
        let all = padded(self.limits.streams);
        Ok(Blocks {
            starts: piece(&self.blocks, 0, streams)?,
            bonus: piece(&self.blocks, all, streams)?,
            table: piece(&self.blocks, 2 * all, streams * self.limits.stream_pages)?,
        })
    }

    /// The first rows of a context pass with as many taps as `taps` has rows.
    ///
    /// # Errors
    /// More rows than planned.
    pub fn context<'a>(&'a self, taps: TensorRef<'a, bf16, 2>) -> Result<ContextRows<'a>, CudaError> {
        let [tokens, _] = taps.shape();
        within("the number of context tokens of a pass", tokens, self.limits.tokens)?;
        Ok(ContextRows {
            taps,
            positions: piece(&self.context, 0, tokens)?,
            slots: piece(&self.context, padded(self.limits.tokens), tokens)?,
        })
    }
}

fn index(what: &'static str, value: usize) -> Result<i32, CudaError> {
    i32::try_from(value).map_err(|_| CudaError::Limit { what, found: value, limit: i32::MAX as usize })
}

/// Operands begin at multiples of 16 bytes.
fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn piece(buffer: &Buffer<i32>, start: usize, len: usize) -> Result<CudaView<'_, i32>, KernelError> {
    let view = buffer.view();
    let length = view.len();
    view.try_slice(start..start.saturating_add(len)).ok_or_else(|| KernelError::BadTensor {
        shape: vec![len],
        what: format!("inputs were planned for {length} values"),
    })
}
