//! Times the context and the drafts of a K2.6 drafter with random weights on device 0, beside the bytes that they must read.
//!
//! `drafter_bench [--profile NAME] [--layers N] [--streams LIST] [--context LIST] [--read TB/S]`, lists with commas. The floor is
//! all weights and the committed keys and values at the read rate given, by default that of `docs/results/dense-h200.json`.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};

use half::bf16;
use kd_attn::{BlockSegment, PAGE_TOKENS, PageId};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Buffer, Device, KernelError, Kernels, Profile, Search, Stream, TensorRef};
use kd_model::cuda::{
    Committed, CudaDrafter, CudaError, CudaTarget, Dims, DraftDims, DraftInputs, DraftLimits, RandomWeights,
};

const SAMPLES: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drafter_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the graphs own.
struct Bench {
    drafter: CudaDrafter,
    /// Lends its embedding and head.
    target: CudaTarget,
    inputs: DraftInputs,
    taps: Buffer<bf16>,
    streams: usize,
}

fn locked(bench: &Mutex<Bench>) -> MutexGuard<'_, Bench> {
    bench.lock().expect("no panic while it is held")
}

fn kernel_error(error: CudaError) -> KernelError {
    match error {
        CudaError::Kernel(error) => error,
        other => KernelError::Exchange { what: other.to_string() },
    }
}

fn draft(stream: &Stream, bench: &mut Arc<Mutex<Bench>>) -> Result<(), KernelError> {
    let mut bench = locked(bench);
    let Bench { drafter, target, inputs, streams, .. } = &mut *bench;
    let blocks = inputs.blocks(*streams).map_err(kernel_error)?;
    drafter.draft(stream, &OneRank, (&*target).into(), &blocks).map_err(kernel_error)
}

fn context(stream: &Stream, bench: &mut Arc<Mutex<Bench>>) -> Result<(), KernelError> {
    let mut bench = locked(bench);
    let Bench { drafter, inputs, taps, streams, .. } = &mut *bench;
    let (tokens, width) = (*streams * drafter.dims().block, drafter.dims().tap_width);
    let taps = TensorRef::new(stream, taps.view().slice(..tokens * width), [tokens, width])?;
    let rows = inputs.context(taps).map_err(kernel_error)?;
    drafter.context(stream, &OneRank, rows).map_err(kernel_error)
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut profile, mut layers, mut read) = ("k26-tp8".to_owned(), 6, 4.5f64);
    let (mut streams, mut contexts) = (vec![1, 4, 16], vec![0, 1024, 8192]);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let list = || value.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
        match flag.as_str() {
            "--profile" => profile = value,
            "--layers" => layers = value.parse()?,
            "--streams" => streams = list()?,
            "--context" => contexts = list()?,
            "--read" => read = value.parse()?,
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let profile = Profile::named(&profile).ok_or_else(|| format!("no profile {profile}"))?;
    let dims = DraftDims::sized(profile, layers).ok_or("the profile has no drafter")?;
    let device = Device::open(0)?;
    let (stream, kernels) = (device.stream()?, Kernels::open(&device, profile.name, &Search::standard())?);
    let (most, longest) = (largest(&streams), largest(&contexts));
    let stream_pages = (longest + 1).div_ceil(PAGE_TOKENS) + 1;
    let limits =
        DraftLimits { streams: most, tokens: most * dims.block, pages: most * stream_pages, stream_pages };
    let weights = RandomWeights { seed: 1, correlation: 0.0 };
    let bench = Arc::new(Mutex::new(Bench {
        target: CudaTarget::random(&stream, &kernels, Dims::sized(profile, 1), weights)?,
        drafter: CudaDrafter::random(&stream, &kernels, dims.clone(), limits, 2)?,
        inputs: DraftInputs::new(&stream, limits, dims.vocab)?,
        taps: Buffer::new(&stream, &vec![bf16::from_f32(0.5); most * dims.block * dims.tap_width])?,
        streams: most,
    }));
    println!("{}, {}, {layers} layers; floors at {read} TB/s", device.name(), profile.name);
    println!("{:>8} {:>7} {:>8} {:>9} {:>9} {:>6}", "what", "streams", "context", "us", "floor", "ratio");
    let line = |what: &str, streams: usize, at: usize, micros: f64, bytes: usize| {
        let floor = bytes as f64 / read / 1e6;
        println!("{what:>8} {streams:>7} {at:>8} {micros:>9.1} {floor:>9.1} {:>6.2}", micros / floor);
    };
    for &count in &streams {
        locked(&bench).streams = count;
        let (reader, drafting) =
            (stream.capture(bench.clone(), context)?, stream.capture(bench.clone(), draft)?);
        for &at in &contexts {
            let pages = |s: usize| (0..stream_pages).map(|page| PageId((page * most + s) as u32)).collect();
            let tables: Vec<Vec<PageId>> = (0..count).map(pages).collect();
            let segments: Vec<_> = tables.iter().map(|pages| BlockSegment { pages, start: at }).collect();
            let place = |(s, position): (usize, usize)| {
                Some(Committed { position, page: tables[s][position / PAGE_TOKENS] })
            };
            let accepted = (0..count).flat_map(|s| (at.saturating_sub(dims.block)..at).map(move |p| (s, p)));
            let places: Vec<_> = accepted.map(place).collect();
            {
                let bench = locked(&bench);
                bench.inputs.write_blocks(&stream, &vec![7; count], &segments)?;
                bench.inputs.write_context(&stream, &places)?;
            }
            let layer = dims.hidden * (2 * dims.heads + 2 * dims.kv_heads) * dims.head_dim
                + 3 * dims.hidden * dims.width;
            let kept = count * at * layers * 2 * dims.kv_heads * dims.head_dim;
            let bytes = 2 * (layers * layer + dims.vocab * dims.hidden + kept);
            line("draft", count, at, best(|| drafting.time(20))?, bytes);
            if at == contexts[0] {
                let entries = layers * 2 * dims.kv_heads * dims.head_dim;
                let bytes = 2 * dims.hidden * (dims.tap_width / dims.ranks + entries);
                line("context", count, at, best(|| reader.time(20))?, bytes);
            }
        }
    }
    Ok(())
}

fn largest(list: &[usize]) -> usize {
    list.iter().copied().max().unwrap_or(1).max(1)
}

fn best(mut sample: impl FnMut() -> Result<f64, KernelError>) -> Result<f64, KernelError> {
    (0..SAMPLES).try_fold(f64::INFINITY, |best, _| Ok(best.min(sample()?)))
}
