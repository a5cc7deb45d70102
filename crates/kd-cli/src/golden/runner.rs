//! Passes of a target for one sequence at a time, on either device.

use anyhow::Context;
use kd_attn::{PageId, PagedCache, Segment};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Device, Search, Stream};
use kd_model::Target;
use kd_model::cuda::{Bucket, CudaTarget, Limits, Move, PassState, open_kernels};
use kd_tensor::{Matrix, Pool};

use super::record::Recorder;

/// Runs the target.
pub(super) enum Runner<'a> {
    Cpu { target: &'a Target, pool: &'a Pool, cache: Option<PagedCache> },
    Cuda(Box<Cuda<'a>>),
}

/// A target in the memory of a device.
pub(super) struct Cuda<'a> {
    target: &'a Target,
    stream: Stream,
    loaded: CudaTarget,
    state: Option<PassState>,
}

/// What a pass computed for its rows.
pub(super) struct Output {
    /// A matrix `[rows, latent + rope]` a layer.
    pub(super) latents: Vec<Matrix>,
    /// `[rows, hidden]`: the input of the head.
    pub(super) normed: Matrix,
    /// `[rows, vocab]`
    pub(super) logits: Matrix,
}

impl<'a> Runner<'a> {
    pub(super) fn cpu(target: &'a Target, pool: &'a Pool) -> Self {
        Self::Cpu { target, pool, cache: None }
    }

    pub(super) fn cuda(target: &'a Target, ordinal: usize) -> anyhow::Result<Self> {
        let device = Device::open(ordinal)?;
        let kernels = open_kernels(&device, &Search::standard(), target)?;
        let stream = device.stream()?;
        let loaded = CudaTarget::load(&stream, &kernels, target, 0, &mut |_, _| {})?;
        Ok(Self::Cuda(Box::new(Cuda { target, stream, loaded, state: None })))
    }

    /// The CPU's model: configuration and routers.
    pub(super) fn target(&self) -> &'a Target {
        match self {
            Self::Cpu { target, .. } => target,
            Self::Cuda(cuda) => cuda.target,
        }
    }

    /// Forgets the last sequence. The next one has `pages` pages and passes of up to `rows` rows.
    pub(super) fn begin(&mut self, pages: usize, rows: usize) -> anyhow::Result<()> {
        match self {
            Self::Cpu { target, cache, .. } => *cache = Some(target.try_new_cache(pages)?),
            Self::Cuda(cuda) => {
                let limits = Limits { rows, nodes: rows, streams: 1, pages, stream_pages: pages };
                // The old one first: there may be no room for two.
                cuda.state = None;
                cuda.state = Some(cuda.loaded.state(&cuda.stream, limits, &[], 1)?);
            }
        }
        Ok(())
    }

    /// One pass over the rows of `segment`.
    pub(super) fn pass(
        &mut self,
        tokens: &[u32],
        segment: Segment<'_>,
        recorder: &mut Recorder,
    ) -> anyhow::Result<Output> {
        let segments = std::slice::from_ref(&segment);
        match self {
            Self::Cpu { target, pool, cache } => {
                let cache = cache.as_ref().context("no sequence")?;
                let pass = target.forward(pool, tokens, segments, cache, &[], recorder)?;
                let (normed, logits) = (target.final_norm(&pass.hidden), target.logits(pool, &pass.hidden));
                Ok(Output { latents: pass.latents, normed, logits })
            }
            Self::Cuda(cuda) => {
                let Cuda { stream, loaded, state, target } = &mut **cuda;
                let state = state.as_mut().context("no sequence")?;
                let rows = tokens.len();
                let bucket = Bucket { rows, streams: 1, pages: state.limits().table_width() };
                state.inputs.write(stream, tokens, segments)?;
                loaded.forward_traced(stream, state, bucket, &OneRank, recorder, rows)?;
                loaded.logits(stream, state, rows)?;
                let layers = 0..target.config().num_hidden_layers;
                Ok(Output {
                    latents: layers
                        .map(|layer| state.latents(stream, layer, rows))
                        .collect::<Result<_, _>>()?,
                    normed: state.normed(stream, rows)?,
                    logits: state.logits(stream, rows)?,
                })
            }
        }
    }

    /// Commits all rows of the last pass, which follow `committed` tokens.
    pub(super) fn commit(
        &mut self,
        output: &Output,
        pages: &[PageId],
        committed: usize,
    ) -> anyhow::Result<()> {
        let rows: Vec<usize> = (0..output.normed.rows()).collect();
        match self {
            Self::Cpu { cache, .. } => {
                cache.as_mut().context("no sequence")?.commit(&output.latents, &rows, pages, committed);
            }
            Self::Cuda(cuda) => {
                let Cuda { stream, loaded, state, .. } = &mut **cuda;
                let state = state.as_mut().context("no sequence")?;
                state.inputs.write_moves(stream, &Move::path(&rows, pages, committed))?;
                loaded.commit(stream, state, rows.len())?;
            }
        }
        Ok(())
    }
}
