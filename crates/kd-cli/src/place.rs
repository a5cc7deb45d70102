//! Where a verb runs the models: `--device`.

use std::io::{IsTerminal, Write, stderr};
use std::num::NonZeroUsize;
use std::time::Instant;

use kd_engine::cuda::{Gpu, Loading, MOST_CHUNK};
use kd_engine::{Engine, EngineOptions, Models};
use kd_kernels::bench::Rates;
use kd_tensor::Pool;

use crate::args::{ChunkArgs, CommonArgs, Device, RankArgs};
use crate::bench::floors::Floors;
use crate::bench::machine;
use crate::bench::record::{Record, cpu as cpu_name};
use crate::{UsageError, models};

/// Most prompt rows of a pass on the CPU: between passes Ctrl-C is heard.
const CPU_CHUNK: usize = 256;

/// A place for the models.
pub(crate) enum Place {
    /// Threads of this process.
    Cpu(Pool),
    /// A CUDA device with kernels for the models.
    Cuda(Box<Gpu>),
}

impl Place {
    /// What the flags ask for.
    pub(crate) fn of(args: &CommonArgs, models: &Models) -> anyhow::Result<Self> {
        match args.device {
            Device::Cpu => {}
            Device::Cuda(ordinal) => {
                one_rank(args.ranks)?;
                return Ok(Self::Cuda(Box::new(Gpu::open(ordinal, models)?)));
            }
            Device::Auto => match Gpu::open(0, models) {
                Ok(gpu) => return Ok(Self::Cuda(Box::new(gpu))),
                Err(error) if error.is_no_gpu() || args.quiet => {}
                Err(error) => say!("kd: the GPU is not used: {error}"),
            },
        }
        Ok(Self::Cpu(models::pool(args.threads, args.ranks)?))
    }

    /// An engine there for requests whose trees have up to `nodes` nodes; `options` hold the most prompt rows that a pass could
    /// have, `chunks` what the flags say of them. Loading is reported on stderr unless `quiet`.
    pub(crate) fn engine(
        self,
        models: Models,
        options: EngineOptions,
        nodes: usize,
        chunks: ChunkArgs,
        quiet: bool,
    ) -> anyhow::Result<Engine> {
        let rows = options.prefill_chunk;
        let chosen = |flag: Option<NonZeroUsize>, default: usize| flag.map_or(default, NonZeroUsize::get);
        let mixed_chunk = |default| chosen(chunks.mixed_chunk, default);
        match self {
            Self::Cpu(pool) => {
                let prefill_chunk = rows.min(chosen(chunks.prefill_chunk, CPU_CHUNK));
                let mixed_chunk = mixed_chunk(CPU_CHUNK);
                Ok(Engine::new(models, pool, EngineOptions { prefill_chunk, mixed_chunk, ..options })?)
            }
            Self::Cuda(gpu) => {
                let begin = Instant::now();
                let gpu = gpu.with_nodes(nodes).deterministic(chunks.deterministic);
                // Others wait until a stream has ended.
                let max_streams = options.max_streams.min(gpu.most_streams());
                let mixed_chunk = mixed_chunk(options.mixed_chunk);
                let prefill_chunk = rows.min(chosen(chunks.prefill_chunk, MOST_CHUNK));
                let mut options = EngineOptions { max_streams, prefill_chunk, mixed_chunk, ..options };
                if chunks.prefill_chunk.is_none() {
                    options.prefill_chunk = gpu.chunk_that_fits(&models, options)?;
                }
                let mut loaded = None;
                let engine = Engine::on_gpu(models, gpu, options, |loading| {
                    loaded = Some(loading);
                    if !quiet {
                        show(loading);
                    }
                })?;
                if let (false, Some(Loading { taken, bytes, .. })) = (quiet, loaded) {
                    say!(
                        "kd: ready after {:.1} s; with its weights of {:.2} GB on the device, {:.2} GB were taken",
                        begin.elapsed().as_secs_f64(),
                        bytes as f64 / 1e9,
                        taken as f64 / 1e9
                    );
                }
                Ok(engine)
            }
        }
    }

    /// Another one like it, for one more engine.
    pub(crate) fn again(&self, args: &CommonArgs, models: &Models) -> anyhow::Result<Self> {
        Ok(match self {
            Self::Cpu(_) => Self::Cpu(models::pool(args.threads, args.ranks)?),
            Self::Cuda(gpu) => Self::Cuda(Box::new(Gpu::open(gpu.ordinal(), models)?)),
        })
    }

    /// What times there are compared with, by rates measured now; `bytes` is the CPU's working set.
    pub(crate) fn floors(&self, bytes: usize) -> anyhow::Result<Floors> {
        match self {
            Self::Cpu(pool) => Ok(Floors::measure(pool, bytes)),
            Self::Cuda(gpu) => Ok(Floors::of(&Rates::measure(gpu.device(), gpu.kernels())?)),
        }
    }

    /// A record of `what` there.
    pub(crate) fn record(&self, what: &str) -> Record {
        match self {
            Self::Cpu(pool) => Record::new(what, pool),
            Self::Cuda(gpu) => Record::on(what, machine(gpu.device(), gpu.kernels())),
        }
    }

    /// What runs the models, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Cpu(pool) => format!("on the CPU with {}", models::describe_pool(pool)),
            Self::Cuda(gpu) => format!("on {} (cuda:{})", gpu.name(), gpu.ordinal()),
        }
    }

    /// As a calibration names it: device and threads, 0 where threads do not matter.
    pub(crate) fn calibrated(&self) -> (String, usize) {
        match self {
            Self::Cpu(pool) => (cpu_name(), pool.threads()),
            Self::Cuda(gpu) => (gpu.name().to_owned(), 0),
        }
    }
}

/// One engine runs on one GPU so far.
pub(crate) fn one_rank(ranks: RankArgs) -> anyhow::Result<()> {
    if ranks.tp.get() == 1 {
        return Ok(());
    }
    let message = "--tp above 1 does not run on GPUs yet: ranks of several devices are not implemented; leave --tp out, \
                   or use --device cpu";
    Err(UsageError(message.to_owned()).into())
}

/// One line that is written again and again on a terminal, and once anywhere else.
fn show(Loading { layers, of, bytes, elapsed, .. }: Loading) {
    let done = layers == of;
    let terminal = stderr().is_terminal();
    if !done && !terminal {
        return;
    }
    let gigabytes = bytes as f64 / 1e9;
    let loaded = gigabytes * layers as f64 / of.max(1) as f64;
    let rate = loaded / elapsed.as_secs_f64().max(1e-9);
    let (begin, end) = if terminal { ("\r\x1b[K", if done { "\n" } else { "" }) } else { ("", "\n") };
    // As with every note: where it cannot be written, the work goes on.
    let _ = write!(
        stderr(),
        "{begin}kd: layer {layers} of {of}, {loaded:.2} of {gigabytes:.2} GB, {rate:.2} GB/s{end}"
    );
}
