//! Whether a drafter's memory fits, before it is allocated, and what would.

use kd_attn::PAGE_TOKENS;
use kd_kernels::{DenseScratch, HEAD_TILE, Stream};

use super::DraftDims;
use super::inputs::DraftLimits;
use super::rows::TOP;
use crate::cuda::CudaError;
use crate::cuda::plan::free;

impl DraftDims {
    /// Bytes of the weights of one rank, without an embedding and a head of its own.
    pub fn weight_bytes(&self) -> usize {
        let h = self.hidden;
        let layer = h * (self.queries() + self.entry()) + h * self.queries() + 3 * h * self.width;
        let context = h * (self.tap_columns() + self.layers.len() * self.entry());
        let norms = self.layers.len() * (2 * h + 2 * self.head_dim) + 2 * h;
        2 * (self.layers.len() * layer + context + norms)
    }
}

impl DraftLimits {
    /// Bytes of a page: keys and values of all layers.
    pub fn page_bytes(dims: &DraftDims) -> usize {
        2 * dims.layers.len() * PAGE_TOKENS * dims.entry()
    }

    /// Bytes that drafts within these limits need, pages included, weights not.
    pub fn bytes(&self, dims: &DraftDims) -> usize {
        let (blocks, drafted) = (self.streams * dims.block, self.streams * dims.drafted());
        let rows = blocks.max(self.tokens);
        let partial = self.streams * dims.splits() * dims.block * dims.heads;
        let taps = if dims.ranks > 1 { dims.tap_columns() } else { 0 };
        let narrow = 3 * rows * dims.hidden
            + self.tokens * (taps + dims.layers.len() * dims.entry())
            + blocks * (3 * dims.queries() + 2 * dims.entry() + 3 * dims.width)
            + drafted * dims.hidden;
        let wide = self.positions(dims.block) * dims.head_dim
            + 2 * blocks
            + partial * (dims.head_dim + 2)
            + drafted * (dims.vocab + 4 * dims.vocab.div_ceil(HEAD_TILE) + 2 * TOP + 4);
        self.pages * Self::page_bytes(dims)
            + 2 * narrow
            + 4 * wide
            + DenseScratch::few_bytes(rows, dims.hidden)
    }

    /// Fails unless all of it fits beside what is there.
    pub(super) fn check_room(&self, stream: &Stream, dims: &DraftDims) -> Result<(), CudaError> {
        self.fits(dims, free(stream)?)
    }

    fn fits(&self, dims: &DraftDims, free: usize) -> Result<(), CudaError> {
        let (needed, page) = (self.bytes(dims), Self::page_bytes(dims).max(1));
        if needed <= free {
            return Ok(());
        }
        let pages = free.saturating_sub(needed - self.pages * page) / page;
        let fits = if pages > 0 {
            format!("{pages} pages ({} tokens) would fit instead of {}", pages * PAGE_TOKENS, self.pages)
        } else {
            "not even without pages; ask for fewer streams or context tokens".to_owned()
        };
        Err(CudaError::OutOfMemory { what: "drafts and their context need", needed, free, fits })
    }
}

#[cfg(test)]
mod tests {
    use kd_kernels::Profile;

    use super::*;

    #[test]
    fn too_little_memory_says_how_many_pages_would_fit() {
        let dims = DraftDims::sized(Profile::named("k26-tp8").expect("declared"), 6).expect("a drafter");
        let limits = DraftLimits { streams: 16, tokens: 128, pages: 2048, stream_pages: 512 };
        // 24,576 bytes a token over all eight ranks, an eighth of them here.
        assert_eq!(DraftLimits::page_bytes(&dims), 64 * 24_576 / 8);
        let needed = limits.bytes(&dims);
        assert!(limits.fits(&dims, needed).is_ok());
        let message = limits.fits(&dims, needed - 1).expect_err("a byte less").to_string();
        assert!(message.contains("2047 pages (131008 tokens) would fit instead of 2048"), "{message}");
        let message = limits.fits(&dims, 1 << 20).expect_err("a megabyte").to_string();
        assert!(message.contains("fewer streams"), "{message}");
    }
}
