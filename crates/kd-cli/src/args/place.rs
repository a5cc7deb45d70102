//! Flags of the models and of where they run.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use kd_attn::KvCacheDtype;

/// What every verb that runs a model takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// Checkpoint folder of the target [default: the demo pair].
    #[arg(long, env = "KD_MODEL", value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Checkpoint folder of the DFlash drafter [default: the demo drafter for the demo target, else none].
    #[arg(long, env = "KD_DRAFTER", value_name = "DIR")]
    pub(crate) drafter: Option<PathBuf>,
    /// Where to run: `cpu`, `cuda` (device 0), `cuda:N`, or `auto`: on CUDA device 0 if there are one and kernels for the
    /// model, else on the CPU.
    #[arg(long, env = "KD_DEVICE", value_name = "auto|cpu|cuda[:N]", value_parser = device, default_value = "auto")]
    pub(crate) device: Device,
    /// Worker threads of the CPU [default: one for each CPU]. Results do not depend on it.
    #[arg(long, env = "KD_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Print nothing but the result.
    #[arg(long, short, env = "KD_QUIET", value_parser = BoolishValueParser::new())]
    pub(crate) quiet: bool,
}

/// How many ranks share a model.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RankArgs {
    /// Ranks that share the models: attention heads, expert and MLP widths, vocabulary. Each has its share of the threads.
    #[arg(
        long,
        visible_alias = "tensor-parallel-size",
        env = "KD_TP",
        value_name = "N",
        default_value = "1"
    )]
    pub(crate) tp: NonZeroUsize,
}

impl RankArgs {
    /// One rank: everything in one piece.
    pub(crate) const ONE: Self = Self { tp: NonZeroUsize::MIN };
}

/// How the target's cache holds what it has read.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct CacheArgs {
    /// What the target's pages hold: `auto`, what the device computes with (f32 on the CPU, bf16 on a GPU), or `fp8`, e4m3 latents with
    /// a scale a token and bf16 rotated keys, which take 57 % of the room of bf16. Trees still give the tokens of plain decoding
    /// with the same pages.
    #[arg(
        long = "kv-cache-dtype",
        env = "KD_KV_CACHE_DTYPE",
        value_name = "auto|fp8",
        value_enum,
        default_value = "auto"
    )]
    kv_cache_dtype: CacheDtype,
}

impl CacheArgs {
    /// What pages hold.
    pub(crate) fn dtype(self) -> KvCacheDtype {
        match self.kv_cache_dtype {
            CacheDtype::Auto => KvCacheDtype::Auto,
            CacheDtype::Fp8 => KvCacheDtype::Fp8,
        }
    }

    /// As records and calibrations name it.
    pub(crate) fn name(self) -> &'static str {
        cache_name(self.dtype())
    }
}

/// The value of `--kv-cache-dtype` that asks for such pages.
pub(crate) fn cache_name(dtype: KvCacheDtype) -> &'static str {
    match dtype {
        KvCacheDtype::Auto => "auto",
        KvCacheDtype::Fp8 => "fp8",
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CacheDtype {
    /// What the device computes with.
    Auto,
    /// e4m3 latents, bf16 keys.
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

/// How prompts are read.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ChunkArgs {
    /// Most prompt tokens of one pass while no stream generates [default: 256 on the CPU; on a GPU the most,
    /// 4096, with --deterministic 128, or as many as fit in its memory]. Tokens do not depend on it.
    #[arg(long, visible_alias = "chunked-prefill-size", env = "KD_PREFILL_CHUNK", value_name = "N")]
    pub(crate) prefill_chunk: Option<NonZeroUsize>,
    /// Most prompt tokens that are read between two rounds of streams that generate, which wait for them [default: 256 on the
    /// CPU, 512 on a GPU]. Tokens do not depend on it.
    #[arg(long, env = "KD_MIXED_CHUNK", value_name = "N")]
    pub(crate) mixed_chunk: Option<NonZeroUsize>,
    /// Read prompts with the kernels of generation, up to 128 tokens a pass: a token's logits have the same bits whether it was read
    /// or generated, so an answer that is stopped and continued as a prompt goes on as if it had not been, unless presence or frequency
    /// penalties or --min-tokens, which count the answer's tokens alone, are set. On a GPU long prompts take several times as long;
    /// on the CPU it is always so.
    #[arg(long, env = "KD_DETERMINISTIC", value_parser = BoolishValueParser::new())]
    pub(crate) deterministic: bool,
}

/// Where to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The best device that is there and has kernels for the model.
    Auto,
    /// The CPU.
    Cpu,
    /// This CUDA device.
    Cuda(usize),
}

/// `auto`, `cpu`, `cuda` or `cuda:N`.
pub(crate) fn device(text: &str) -> Result<Device, String> {
    let expected = || format!("expected auto, cpu, cuda or cuda:N, found {text:?}");
    match text {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        _ => {
            let ordinal = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
            ordinal.map(Device::Cuda).ok_or_else(expected)
        }
    }
}
