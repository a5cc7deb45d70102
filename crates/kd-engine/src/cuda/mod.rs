//! The CUDA backend: models in device memory, passes replayed as graphs.
//!
//! A round is one graph: *forward → head → draw* for the rows of all trees, *walk → commit*, and *read → draft* for the next
//! round, whose trees the host builds from what comes back ([`rotation`]). A round without trees is *forward → head → draw →
//! commit*. Where a request needs the host's sampler, the host walks: it is *forward → head → draw*, then *commit → read*, and a
//! graph that drafts, as for streams that have just joined. Each is captured once for every [bucket](buckets) of sizes while
//! the engine is made. Then the device is frozen: from there on a round writes a few small buffers, launches, and reads results.

mod backend;
mod buckets;
mod drafting;
mod passes;
mod plan;
mod rotation;
mod sampling;

use std::time::{Duration, Instant};

use kd_kernels::{Device, KernelError, Kernels, Search};
use kd_model::cuda::{CudaError, MOST_ROWS, open_kernels};

/// Most prompt rows of one pass.
pub const MOST_CHUNK: usize = MOST_ROWS;
/// Most prompt rows of one pass of a [deterministic](Gpu::deterministic) engine: a chain of the most rows that a tree may have.
pub const MOST_CHAIN: usize = MAX_NODES;

use self::plan::{Plan, most_streams};
use crate::engine::{Engine, EngineOptions, Models};
use crate::{DeviceError, EngineError, MAX_NODES};

/// An open CUDA device with kernels for a target.
#[derive(Debug)]
pub struct Gpu {
    device: Device,
    kernels: Kernels,
    ordinal: usize,
    nodes: usize,
    /// Rows of the drafter's block; `None` without one.
    block: Option<usize>,
    deterministic: bool,
    /// Bytes of the device that may be taken.
    memory: usize,
}

/// How far the weights have come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading {
    /// Layers of the target that are on the device.
    pub layers: usize,
    /// Layers of the target.
    pub of: usize,
    /// Bytes of all weights of the target on the device.
    pub bytes: usize,
    /// Bytes of the device's memory that have been taken since the beginning.
    pub taken: usize,
    /// Since the beginning.
    pub elapsed: Duration,
}

impl Gpu {
    /// Opens device `ordinal`, and the kernels for the target's shape where [`Search::standard`] finds them.
    ///
    /// # Errors
    /// No driver, an old one, no such device, one that no image is made for, models that ranks share, a shape without
    /// kernels or a bundle that is not there; the last two say what to build.
    pub fn open(ordinal: usize, models: &Models) -> Result<Self, EngineError> {
        let device = Device::open(ordinal).map_err(CudaError::from)?;
        let ranks = models.target.ranks().max(models.drafter.as_ref().map_or(1, |drafter| drafter.ranks()));
        if ranks > 1 {
            let (found, supported) = (ranks.to_string(), "one rank so far");
            return Err(CudaError::Unsupported { key: "tp", found, supported }.into());
        }
        let kernels = open_kernels(&device, &Search::standard(), &models.target)?;
        let block = models.drafter.as_ref().map(|drafter| drafter.config().block_size);
        Ok(Self {
            device,
            kernels,
            ordinal,
            nodes: MAX_NODES,
            block,
            deterministic: false,
            memory: usize::MAX,
        })
    }

    /// Plans memory for trees of at most `nodes` nodes; requests for larger ones are refused.
    #[must_use]
    pub fn with_nodes(self, nodes: usize) -> Self {
        Self { nodes: nodes.min(MAX_NODES), ..self }
    }

    /// Lets prompts take the passes of rounds, in chains of up to [`MOST_CHAIN`] rows, instead of passes of their own with other
    /// kernels. A row then has the same bits whether its token was read or generated, so an answer does not change where it is
    /// stopped and continued, or scored, as a prompt, unless presence or frequency penalties or `min_tokens`, which count the answer's
    /// tokens alone, are set. Reading a long prompt takes several times as long.
    #[must_use]
    pub fn deterministic(self, deterministic: bool) -> Self {
        Self { deterministic, ..self }
    }

    /// Plans as if no more than `bytes` bytes of the device were free, for one that is shared with others.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// What `options` come to on this device.
    fn options(&self, options: EngineOptions) -> EngineOptions {
        let most = if self.deterministic { MOST_CHAIN } else { MOST_CHUNK };
        let EngineOptions { prefill_chunk, mixed_chunk, .. } = options;
        EngineOptions {
            prefill_chunk: prefill_chunk.min(most),
            mixed_chunk: mixed_chunk.min(most),
            ..options
        }
    }

    /// Streams whose rounds fit one pass, each with a tree of as many nodes as are planned for.
    pub fn most_streams(&self) -> usize {
        most_streams(self.nodes, self.block)
    }

    /// The most prompt rows of a pass whose memory fits beside everything else that an engine with `options` has: as many as
    /// `options` say, or half, a quarter… of them, but no fewer than passes beside generating streams may have. Tokens do not
    /// depend on it.
    ///
    /// # Errors
    /// Models that are not implemented on GPUs, a failed call.
    pub fn chunk_that_fits(&self, models: &Models, options: EngineOptions) -> Result<usize, EngineError> {
        let stream = self.device.stream().map_err(CudaError::from)?;
        let options = self.options(options);
        let (mut rows, least) = (options.chunk(false), options.mixed_chunk.max(1));
        let plan = Plan::by_options(models, &self.kernels, self.nodes, self.deterministic)?;
        loop {
            let plan = plan(EngineOptions { prefill_chunk: rows, ..options })?;
            match plan.fits(&stream, models, self.memory) {
                Err(CudaError::OutOfMemory { .. }) if rows > least => rows = rows.div_ceil(2).max(least),
                // What does not fit at all is said when the engine is made.
                Ok(()) | Err(CudaError::OutOfMemory { .. }) => return Ok(rows),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The device's own name.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// The device, for what is measured beside an engine.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernels of its models.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Which device it is.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }
}

impl Engine {
    /// An engine without requests that runs on a GPU. It loads the weights, plans and takes all memory and captures every
    /// graph; nothing is allocated on the device afterwards. `progress` is called after each layer.
    ///
    /// # Errors
    /// If drafter and target do not fit together, several ranks share them, they are not implemented on GPUs, or they do
    /// not fit in the device's memory.
    pub fn on_gpu(
        models: Models,
        gpu: Gpu,
        options: EngineOptions,
        mut progress: impl FnMut(Loading),
    ) -> Result<Self, EngineError> {
        Self::check_pair(&models)?;
        let (begin, nodes, context) = (Instant::now(), gpu.nodes, gpu.device.context().clone());
        let options = gpu.options(options);
        let free = || context.mem_get_info().map_or(0, |(free, _)| free);
        let before = free();
        let mut report = |layers, of, bytes| {
            let (taken, elapsed) = (before.saturating_sub(free()), begin.elapsed());
            progress(Loading { layers, of, bytes, taken, elapsed });
        };
        let backend = backend::Cuda::new(&models, gpu, options, &mut report)?;
        Ok(Self::over(Box::new(backend), models, nodes, options))
    }
}

impl EngineError {
    /// Whether there is simply no GPU on this machine.
    pub fn is_no_gpu(&self) -> bool {
        use KernelError::{NoDevice, NoDriver};
        matches!(self, Self::Cuda(CudaError::Kernel(NoDriver | NoDevice { count: 0, .. })))
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        Self(error.to_string())
    }
}

impl From<KernelError> for DeviceError {
    fn from(error: KernelError) -> Self {
        Self(error.to_string())
    }
}
