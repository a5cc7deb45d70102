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
    /// Pages of each stream, `[streams, stream_pages]`.
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
    starts: Buffer<i32>,
    bonus: Buffer<i32>,
    table: Buffer<i32>,
    positions: Buffer<i32>,
    slots: Buffer<i32>,
}

impl DraftInputs {
    /// Memory for `limits`, all of it padding; tokens of a stream come from a vocabulary of `vocab`.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn new(stream: &Stream, limits: DraftLimits, vocab: usize) -> Result<Self, KernelError> {
        let buffer = |value: i32, len: usize| Buffer::new(stream, &vec![value; len]);
        Ok(Self {
            limits,
            vocab,
            starts: buffer(-1, limits.streams)?,
            bonus: buffer(0, limits.streams)?,
            table: buffer(-1, limits.streams * limits.stream_pages)?,
            positions: buffer(0, limits.tokens)?,
            slots: buffer(-1, limits.tokens)?,
        })
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
        let mut starts = vec![-1; limits.streams];
        let mut tokens = vec![0; limits.streams];
        let mut table = vec![-1; limits.streams * limits.stream_pages];
        for (i, (segment, token)) in segments.iter().zip(bonus).enumerate() {
            let pages = segment.start.div_ceil(PAGE_TOKENS);
            within("the number of pages of a stream", pages, limits.stream_pages)?;
            within("the number of pages that committed tokens fill", pages, segment.pages.len())?;
            starts[i] = index("a number of committed tokens", segment.start)?;
            tokens[i] = index("a token", *token as usize)?;
            for (to, page) in table[i * limits.stream_pages..].iter_mut().zip(&segment.pages[..pages]) {
                *to = self.page(*page)?;
            }
        }
        self.starts.write(stream, &starts)?;
        self.bonus.write(stream, &tokens)?;
        Ok(self.table.write(stream, &table)?)
    }

    /// Writes where the context of the next tokens goes; `None` is a row that is not there. More rows are padding.
    ///
    /// # Errors
    /// More rows than planned, a page that the cache does not have, a position beyond the longest context, a failed copy.
    pub fn write_context(&self, stream: &Stream, tokens: &[Option<Committed>]) -> Result<(), CudaError> {
        let limits = self.limits;
        within("the number of context tokens of a pass", tokens.len(), limits.tokens)?;
        let (mut positions, mut slots) = (vec![0; limits.tokens], vec![-1; limits.tokens]);
        for (i, token) in tokens.iter().enumerate() {
            let Some(Committed { position, page }) = *token else { continue };
            within("a position", position, (limits.stream_pages * PAGE_TOKENS).saturating_sub(1))?;
            self.page(page)?;
            positions[i] = index("a position", position)?;
            slots[i] = index("a row of the pages", page.0 as usize * PAGE_TOKENS + position % PAGE_TOKENS)?;
        }
        self.positions.write(stream, &positions)?;
        Ok(self.slots.write(stream, &slots)?)
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
        let table = self.table.view();
        Ok(Blocks {
            starts: piece(self.starts.view(), streams)?,
            bonus: piece(self.bonus.view(), streams)?,
            table: piece(table, streams * self.limits.stream_pages)?,
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
            positions: piece(self.positions.view(), tokens)?,
            slots: piece(self.slots.view(), tokens)?,
        })
    }
}

fn index(what: &'static str, value: usize) -> Result<i32, CudaError> {
    i32::try_from(value).map_err(|_| CudaError::Limit { what, found: value, limit: i32::MAX as usize })
}

fn piece<T>(view: CudaView<'_, T>, len: usize) -> Result<CudaView<'_, T>, KernelError> {
    let length = view.len();
    view.try_slice(..len).ok_or_else(|| KernelError::BadTensor {
        shape: vec![len],
        what: format!("inputs were planned for {length} values"),
    })
}
