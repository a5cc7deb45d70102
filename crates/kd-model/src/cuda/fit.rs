//! Everything that one device is to hold, added up before any of it is there.

use kd_attn::PAGE_TOKENS;
use kd_kernels::Stream;

use super::drafter::{DraftDims, DraftLimits};
use super::limits::Limits;
use super::plan::{free, layers_that_fit};
use super::prefill::ChunkLimits;
use super::{CudaError, Dims};

/// Kernels and libraries that come with what is counted; each part is checked once more when its turn comes.
const KERNELS: usize = 128 << 20;

/// What is to be on a device at once.
#[derive(Debug, Clone, Copy)]
pub struct Fit<'a> {
    /// Sizes of the target.
    pub target: &'a Dims,
    /// Its passes and pages.
    pub limits: Limits,
    /// Layers that are tapped.
    pub taps: usize,
    /// Prompt chunks, where prompts have passes of their own.
    pub chunks: Option<ChunkLimits>,
    /// Sizes and limits of the drafter, and the bytes of an embedding and a head of its own.
    pub drafter: Option<(&'a DraftDims, DraftLimits, usize)>,
    /// Bytes of whatever else.
    pub other: usize,
}

impl Fit<'_> {
    /// Bytes of all of it.
    ///
    /// # Errors
    /// More rows than the experts can run.
    pub fn bytes(&self) -> Result<usize, CudaError> {
        let drafter = self
            .drafter
            .map_or(0, |(dims, limits, tables)| dims.weight_bytes() + tables + limits.bytes(dims));
        let target = self.target.weight_bytes()?
            + self.limits.bytes(self.target, self.taps)?
            + self.chunks.map_or(Ok(0), |chunks| chunks.bytes(self.target, self.taps))?;
        Ok(target + drafter + self.other)
    }

    /// Fails unless all of it fits beside what is on the device, in at most `memory` bytes, with what would.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn check(&self, stream: &Stream, memory: usize) -> Result<(), CudaError> {
        self.within(free(stream)?.min(memory).saturating_sub(KERNELS))
    }

    fn within(&self, free: usize) -> Result<(), CudaError> {
        let (needed, pages) = (self.bytes()?, self.limits.pages);
        if needed <= free {
            return Ok(());
        }
        let own = self.target.layers * PAGE_TOKENS * self.target.entry_bytes();
        let page = own + self.drafter.map_or(0, |(dims, ..)| DraftLimits::page_bytes(dims));
        let without = needed.saturating_sub(pages.saturating_mul(page));
        let most = free.saturating_sub(without) / page.max(1);
        let fits = if self.target.weight_bytes()? > free {
            layers_that_fit(self.target, free)?
        } else if most > 0 {
            format!("{most} pages ({} tokens) would fit instead of {pages}", most * PAGE_TOKENS)
        } else {
            "its weights would, but not even without pages; ask for fewer streams, smaller budgets or shorter prompt chunks"
                .to_owned()
        };
        Err(CudaError::OutOfMemory { what: "weights, passes and cache need", needed, free, fits })
    }
}

#[cfg(test)]
mod tests {
    use kd_attn::KvCacheDtype;
    use kd_kernels::Profile;

    use super::*;

    /// A rank of eight of K2.6 with its drafter, sixteen streams of 8k tokens and 32 nodes.
    fn rank(check: impl Fn(&Fit<'_>)) {
        let profile = Profile::named("k26-tp8").expect("declared");
        let (target, draft) = (Dims::sized(profile, 61), DraftDims::sized(profile, 6).expect("a drafter"));
        let limits = Limits { rows: 528, nodes: 33, streams: 16, pages: 2048, stream_pages: 2048 };
        let drafts = DraftLimits { streams: 16, tokens: 528, pages: 2048, stream_pages: 2048 };
        check(&Fit {
            target: &target,
            limits,
            taps: 6,
            chunks: Some(ChunkLimits { rows: 256, streams: 16, block: 8192 }),
            drafter: Some((&draft, drafts, 0)),
            other: 0,
        });
    }

    #[test]
    fn what_is_counted_is_all_of_it() {
        rank(|fit| {
            let (dims, limits, _) = fit.drafter.expect("a drafter");
            let parts = [
                fit.target.weight_bytes().expect("a size"),
                fit.limits.bytes(fit.target, fit.taps).expect("a size"),
                fit.chunks.expect("chunks").bytes(fit.target, fit.taps).expect("a size"),
                dims.weight_bytes(),
                limits.bytes(dims),
            ];
            assert_eq!(fit.bytes().expect("a size"), parts.iter().sum::<usize>());
            // 496 bytes less a token and layer.
            let fp8 = Dims { kv_cache_dtype: KvCacheDtype::Fp8, ..fit.target.clone() };
            let less = parts[1] - fit.limits.bytes(&fp8, fit.taps).expect("a size");
            assert_eq!(less, 61 * 2048 * 64 * (1152 - 656));
            // Attention 28 MB, MLP 99 MB a layer; taps and context 116 MB.
            assert!((0.8e9..1.1e9).contains(&(dims.weight_bytes() as f64)), "{}", dims.weight_bytes());
            assert!(parts.iter().all(|bytes| *bytes < 90 << 30));
        });
    }

    #[test]
    fn too_little_memory_says_what_would_fit() {
        rank(|fit| {
            let needed = fit.bytes().expect("a size");
            fit.within(needed).expect("fits");
            let message = |free: usize| fit.within(free).expect_err("too little").to_string();
            let one = message(needed - 1);
            assert!(one.contains("2047 pages (131008 tokens) would fit instead of 2048"), "{one}");
            let weights = fit.target.weight_bytes().expect("a size");
            assert!(message(weights).contains("fewer streams"), "{}", message(weights));
            let half = message(weights / 2);
            assert!(half.contains(" of 61 layers would fit") && half.contains("--device cpu"), "{half}");
        });
    }
}
