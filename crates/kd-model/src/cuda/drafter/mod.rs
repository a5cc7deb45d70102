//! The DFlash drafter on one GPU: the context of committed tokens, and drafts of whole blocks.
//!
//! [`CudaDrafter::context`] turns taps of committed tokens into keys and values of every layer, in pages with the ids of
//! the target's. [`CudaDrafter::draft`] drafts one block for each stream and finds the best tokens of its rows. Both
//! are launches alone, over memory planned once, and read what changes from [`ContextRows`] and [`Blocks`]: device memory
//! that the host writes through [`DraftInputs`], or a kernel. [`Drafter`](crate::Drafter) is the specification.

mod dims;
mod inputs;
mod kernels;
mod memory;
mod pass;
mod plan;
mod rows;
mod weights;

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_ddtree::DraftRow;
use kd_kernels::families::{drafter_context, rms_norm, tap_columns};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, CudaSlice, Device, KernelError, Kernels, Search, Stream, TensorRef};
use kd_tensor::Matrix;

pub use dims::DraftDims;
pub use inputs::{Blocks, Committed, ContextRows, DraftInputs, DraftLimits};
pub use rows::{BestTokens, SentTokens};

use super::error::within;
use super::memory::{download_f32, head, head_mut, part};
use super::upload::DeviceMatrix;
use super::{CudaError, CudaTarget};
use crate::drafter::{Drafter, in_target_ids};
use kernels::DraftKernels;
use memory::DraftMemory;
use pass::Pass;
use rows::TOP;
use weights::DraftWeights;

/// One rank of a drafter in device memory, with the kernels of its shape, its context and the memory of its drafts.
#[derive(Debug)]
pub struct CudaDrafter {
    dims: DraftDims,
    limits: DraftLimits,
    kernels: DraftKernels,
    weights: DraftWeights,
    memory: DraftMemory,
    /// Target id of each draft id, where the drafter has a vocabulary of its own.
    target_ids: Option<Vec<u32>>,
}

/// The target's embedding and head of the same rank, for a drafter that has none of its own.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLent<'a> {
    /// `embed_tokens`.
    pub embed: &'a DeviceMatrix,
    /// `lm_head`.
    pub head: &'a DeviceMatrix,
}

impl<'a> From<&'a CudaTarget> for DeviceLent<'a> {
    fn from(target: &'a CudaTarget) -> Self {
        Self { embed: target.embedding(), head: target.head_matrix() }
    }
}

/// Opens the kernels of the profile that `drafter` has the shape of.
///
/// # Errors
/// A shape without a profile, or a profile without a bundle: both say what to build.
pub fn open_drafter_kernels(
    device: &Device,
    search: &Search,
    drafter: &Drafter,
) -> Result<Kernels, CudaError> {
    let dims = DraftDims::of(drafter.config(), 0, drafter.ranks())?;
    Ok(Kernels::open(device, dims.profile, search)?)
}

impl CudaDrafter {
    /// Fails unless `kernels` has all that a drafter of `dims` launches.
    ///
    /// # Errors
    /// A unit that the bundle lacks, as that of a drafter of another profile than the target's does.
    pub fn check(kernels: &Kernels, dims: &DraftDims) -> Result<(), CudaError> {
        Ok(DraftKernels::load(kernels, dims).map(drop)?)
    }

    /// Brings rank `rank` of `drafter` to the device, with memory for `limits`.
    ///
    /// # Errors
    /// Kernels of another shape, a failed allocation or copy.
    ///
    /// # Panics
    /// If `drafter` has no such rank.
    pub fn load(
        stream: &Stream,
        kernels: &Kernels,
        drafter: &Drafter,
        rank: usize,
        limits: DraftLimits,
    ) -> Result<Self, CudaError> {
        let dims = DraftDims::of(drafter.config(), rank, drafter.ranks())?;
        let weights = DraftWeights::load(stream, drafter, &dims)?;
        let own = Self::with(stream, kernels, dims, limits, weights)?;
        Ok(Self { target_ids: drafter.target_ids.clone(), ..own })
    }

    /// A drafter with random weights of `seed`, for measurements; it borrows the target's embedding and head.
    ///
    /// # Errors
    /// As [`CudaDrafter::load`].
    pub fn random(
        stream: &Stream,
        kernels: &Kernels,
        dims: DraftDims,
        limits: DraftLimits,
        seed: u64,
    ) -> Result<Self, CudaError> {
        let weights = DraftWeights::random(stream, &dims, seed)?;
        Self::with(stream, kernels, dims, limits, weights)
    }

    fn with(
        stream: &Stream,
        kernels: &Kernels,
        dims: DraftDims,
        limits: DraftLimits,
        weights: DraftWeights,
    ) -> Result<Self, CudaError> {
        let memory = DraftMemory::new(stream, &dims, limits)?;
        let kernels = DraftKernels::load(kernels, &dims)?;
        Ok(Self { dims, limits, kernels, weights, memory, target_ids: None })
    }

    /// Sizes and constants.
    pub fn dims(&self) -> &DraftDims {
        &self.dims
    }

    /// What memory was planned for.
    pub fn limits(&self) -> DraftLimits {
        self.limits
    }

    /// Enqueues the context of committed tokens: their taps fused and normed, keys and values of all layers into the pages.
    /// A row depends on its own taps and position alone, so tokens may come at once or one by one. Safe to capture in a
    /// graph.
    ///
    /// # Errors
    /// More tokens than planned, taps of another width, more than one part between ranks, a refused launch.
    pub fn context(
        &mut self,
        stream: &Stream,
        exchange: &dyn Exchange,
        rows: ContextRows<'_>,
    ) -> Result<(), CudaError> {
        one_part(exchange)?;
        let (dims, kernels, weights, memory) = (&self.dims, &self.kernels, &self.weights, &mut self.memory);
        let [tokens, _] = rows.taps.shape();
        within("the number of context tokens of a pass", tokens, self.limits.tokens)?;
        let (h, layers, columns) = (dims.hidden, dims.layers.len(), dims.tap_columns());
        let taps = if dims.ranks == 1 {
            rows.taps
        } else {
            let rank = i32::try_from(dims.rank).unwrap_or(-1);
            let y = head_mut(stream, &mut memory.taps, [tokens, columns])?;
            kernels.tap_columns.launch(stream, Choice::Auto, tap_columns::Args { x: rows.taps, rank, y })?;
            head(stream, &memory.taps, [tokens, columns])?
        };
        let fused = head_mut(stream, &mut memory.part, [tokens, h])?;
        kernels.products.launch(stream, &mut memory.scratch, taps, weights.fc.tensor(stream)?, fused)?;
        let sum = exchange.meet(stream, &mut memory.part, tokens * h, &mut memory.room)?;
        let args = rms_norm::Args {
            x: TensorRef::new(stream, sum, [tokens, h])?,
            gain: head(stream, &weights.hidden_norm, [h])?,
            eps: dims.eps,
            y: head_mut(stream, &mut memory.normed, [tokens, h])?,
        };
        kernels.rms_norm.launch(stream, Choice::Auto, args)?;
        let normed = head(stream, &memory.normed, [tokens, h])?;
        let kv = head_mut(stream, &mut memory.context, [tokens, layers * dims.entry()])?;
        kernels.products.launch(stream, &mut memory.scratch, normed, weights.context.tensor(stream)?, kv)?;
        let (n, d) = (dims.kv_heads, dims.head_dim);
        let args = drafter_context::Args {
            kv: head(stream, &memory.context, [tokens, layers, 2, n, d])?,
            gain: head(stream, &weights.key_norms, [layers, d])?,
            eps: dims.eps,
            rope: head(stream, &memory.rope, [self.limits.positions(dims.block), d])?,
            positions: TensorRef::new(stream, rows.positions, [tokens])?,
            slots: TensorRef::new(stream, rows.slots, [tokens])?,
            cache: head_mut(stream, &mut memory.cache, [layers, self.limits.pages * PAGE_TOKENS, 2, n, d])?,
        };
        kernels.context.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Enqueues a draft of one block for each stream, and the search for the 64 best tokens of the rows that predict one.
    /// Padding streams cost their share and change nothing. Safe to capture in a graph.
    ///
    /// # Errors
    /// More streams than planned, more than one part between ranks, a refused launch.
    pub fn draft(
        &mut self,
        stream: &Stream,
        exchange: &dyn Exchange,
        lent: DeviceLent<'_>,
        blocks: &Blocks<'_>,
    ) -> Result<(), CudaError> {
        one_part(exchange)?;
        let streams = blocks.streams();
        within("the number of streams of a draft", streams, self.limits.streams)?;
        let Self { dims, limits, kernels, weights, memory, .. } = self;
        let embed = weights.embed.as_ref().unwrap_or(lent.embed);
        let lm_head = weights.head.as_ref().unwrap_or(lent.head);
        let (layers, weights) = (&weights.layers, &*weights);
        let mut pass = Pass { stream, dims, limits: *limits, kernels, memory, exchange, streams, blocks };
        let first = layers.first().map_or(&weights.norm, |layer| &layer.input_norm);
        pass.embed_blocks(embed, first)?;
        for (index, layer) in layers.iter().enumerate() {
            let key_norm = part(stream, &weights.key_norms, index * dims.head_dim, [dims.head_dim])?;
            pass.attention(index, layer, key_norm)?;
            pass.reduce_add_norm(&layer.post_norm)?;
            pass.mlp(layer)?;
            let next = layers.get(index + 1).map_or(&weights.norm, |next| &next.input_norm);
            pass.reduce_add_norm(next)?;
        }
        pass.best_tokens(lm_head)
    }

    /// What this rank found in the last draft of `streams` streams, once `stream` has come this far.
    ///
    /// # Errors
    /// More streams than planned, a failed copy or launch.
    pub fn best(&self, stream: &Stream, streams: usize) -> Result<BestTokens, CudaError> {
        within("the number of streams of a draft", streams, self.limits.streams)?;
        let (rows, memory) = (streams * self.dims.drafted(), &self.memory);
        let best = BestTokens {
            tokens: copied(stream, &memory.tokens, rows * TOP)?,
            logits: copied(stream, &memory.values, rows * TOP)?,
            stats: copied(stream, &memory.stats, rows * 2)?,
            finite: copied(stream, &memory.finite, rows)?,
        };
        stream.synchronize()?;
        Ok(best)
    }

    /// The rows that the tree of stream `index` is built from, in ids of the target and each cut to its `k` (at most 64) best
    /// tokens: as many as are finite, from the first on. `found` has what every rank found.
    pub fn rows(&self, found: &[BestTokens], index: usize, k: usize) -> Vec<DraftRow> {
        let first = index * self.dims.drafted();
        let ids = self.target_ids.as_deref();
        let row = |row| in_target_ids(ids, BestTokens::row(found, first + row, k)?);
        (0..self.dims.drafted()).map_while(row).collect()
    }

    /// Logits of the last draft of `streams` streams, `[streams · (block - 1), vocab]`, on the host.
    ///
    /// # Errors
    /// More streams than planned, a failed copy or launch.
    pub fn logits(&self, stream: &Stream, streams: usize) -> Result<Matrix, CudaError> {
        within("the number of streams of a draft", streams, self.limits.streams)?;
        let shape = [streams * self.dims.drafted(), self.dims.vocab];
        Ok(download_f32(stream, &self.memory.logits, shape)?)
    }

    /// Keys and values of layer `layer` in all pages, `[pages · 64, 2 · kv_heads · head_dim]`, on the host.
    ///
    /// # Errors
    /// No such layer, a failed copy or launch.
    pub fn cached(&self, stream: &Stream, layer: usize) -> Result<Matrix, CudaError> {
        within("a layer", layer, self.dims.layers.len().saturating_sub(1))?;
        let shape = [self.limits.pages * PAGE_TOKENS, self.dims.entry()];
        let start = layer * shape[0] * shape[1];
        Ok(super::memory::download(stream, &self.memory.cache, start, shape)?)
    }
}

fn one_part(exchange: &dyn Exchange) -> Result<(), CudaError> {
    if exchange.parts() == 1 {
        return Ok(());
    }
    let (key, found) = ("ranks", exchange.parts().to_string());
    Err(CudaError::Unsupported { key, found, supported: "one rank, so far" })
}

fn copied<T: kd_kernels::DeviceRepr>(
    stream: &Stream,
    memory: &CudaSlice<T>,
    len: usize,
) -> Result<Vec<T>, KernelError> {
    let failed = |error| KernelError::driver("copying a draft from the device", error);
    stream.cuda().clone_dtoh(&memory.slice(..len)).map_err(failed)
}

/// Gains of a norm.
type Gains = CudaSlice<bf16>;
