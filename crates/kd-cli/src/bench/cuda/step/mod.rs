//! `kd bench step`: whole rounds of one rank at a model's full shape, random weights, beside their floors.

mod cell;
mod phase;
mod prompt;
mod rank;
mod rounds;
mod work;

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use kd_engine::cuda::MOST_CHAIN;
use kd_kernels::Profile;
use kd_kernels::bench::{Rates, median};
use kd_model::cuda::{CudaDrafter, CudaTarget, Dims, DraftDims, Limits, RandomWeights};
use serde_json::json;

use super::{Gpu, draw};
use crate::args::BenchStepArgs;
use crate::bench::chart::{Chart, Line};
use crate::bench::table::Table;
use crate::{UsageError, interrupt};
use cell::{Cell, Measured};
use rank::{Rank, Shared, Size};

/// The profile unless another is asked for.
const PROFILE: &str = "k26-tp8";
/// Layers of the drafter: those of Kimi K2.6's.
const DRAFTER_LAYERS: usize = 6;
/// Seed of weights.
const SEED: u64 = 1;

pub(in crate::bench) fn run(args: &BenchStepArgs) -> anyhow::Result<()> {
    let (dims, draft) = shapes(args.on.profile.as_deref().unwrap_or(PROFILE), args.layers)?;
    let gpu = Gpu::required(&args.on, PROFILE)?;
    let rates = Rates::measure(&gpu.device, &gpu.kernels)?;
    let stream = gpu.device.stream()?;
    let begin = Instant::now();
    let weights = RandomWeights { seed: SEED, correlation: args.correlation };
    let target = CudaTarget::random(&stream, &gpu.kernels, dims, weights)?;
    let drafter = |limits| CudaDrafter::random(&stream, &gpu.kernels, draft.clone(), limits, SEED);
    let mut rank = Rank::new(
        &stream,
        &gpu.kernels,
        target,
        drafter,
        limits(args, draft.block),
        &taps(&draft, args.layers),
    )?;
    fill(&stream, &mut rank, args)?;
    let bytes = rank.target.dims().weight_bytes()?;
    say!("kd: {:.1} GB of random weights in {:.1} s", bytes as f64 / 1e9, begin.elapsed().as_secs_f64());
    let mut record = gpu.record("rounds of one rank with random weights: verify pass, commit, draft", &rates);
    record.set("layers", args.layers);
    record.set("drafter", json!({ "layers": DRAFTER_LAYERS, "block": draft.block }));
    record.set("weight_bytes", bytes);
    record.set("routing_correlation", f64::from(args.correlation));
    let out = args.on.out.out.as_deref();
    interrupt::heed();
    let mut readings = Vec::new();
    for &chunk in args.chunk.iter().filter(|_| args.prompt_tokens > 0) {
        let on = (&gpu.device, &gpu.kernels);
        readings.push(prompt::measure(on, &stream, &mut rank, args.prompt_tokens, chunk)?);
        record.set("prompts", readings.iter().map(|reading| reading.json(&rates)).collect::<Vec<_>>());
    }
    if args.deterministic && args.prompt_tokens > 0 {
        readings.push(prompt::measure_rounds(&stream, &mut rank, args.prompt_tokens)?);
        record.set("prompts", readings.iter().map(|reading| reading.json(&rates)).collect::<Vec<_>>());
    }
    let shared = Shared::new(rank);
    let mut cells = Vec::new();
    for cell in all(args) {
        interrupt::check()?;
        let rounds = (args.rounds.get(), Duration::from_secs_f64(args.seconds));
        let measured = cell::measure(&stream, &shared, &rates, cell, rounds)?;
        say!(
            "kd: {} x {} rows, context {}: {:.2} ms",
            cell.streams,
            cell.nodes,
            cell.context,
            measured.step() / 1e3
        );
        cells.push(measured);
        // After each cell, so that a run that is cut short leaves what it found.
        record.set("cells", cells.iter().map(Measured::json).collect::<Vec<_>>());
        record.write(out)?;
    }
    writeln!(stdout(), "{}, {} layers\n{}", gpu.describe(&rates), args.layers, table(&cells))?;
    if !readings.is_empty() {
        writeln!(stdout(), "{}", prompt::table(&readings, &rates))?;
    }
    draw(out, &chart(&cells).svg())
}

/// What one rank of `profile` looks like.
fn shapes(profile: &str, layers: usize) -> Result<(Dims, DraftDims), UsageError> {
    let declared = Profile::named(profile);
    let draft = declared.and_then(|declared| DraftDims::sized(declared, DRAFTER_LAYERS));
    match (declared, draft) {
        (Some(declared), Some(draft)) => Ok((Dims::sized(declared, layers), draft)),
        _ => Err(UsageError(format!(
            "--profile {profile}: rounds need a profile with a drafter, such as {PROFILE}"
        ))),
    }
}

/// Layers that feed the drafter, spread over the target as Kimi K2.6's are.
fn taps(draft: &DraftDims, layers: usize) -> Vec<usize> {
    let count = draft.tap_width / draft.hidden;
    (0..count).map(|tap| (tap + 1) * layers / (count + 1)).collect()
}

/// Memory for the largest of every cell's needs.
fn limits(args: &BenchStepArgs, block: usize) -> Limits {
    let needs = |cell: Cell| {
        let own = rounds::pages(cell.context, cell.nodes.min(block));
        Limits {
            // What walks visit is laid out as rows are.
            rows: cell.rows().max(cell.streams * block),
            nodes: cell.nodes,
            streams: cell.streams,
            pages: cell.streams * own,
            stream_pages: own,
        }
    };
    let pages = prompt::pages(args.prompt_tokens).max(1);
    let chain = if args.deterministic { MOST_CHAIN } else { 1 };
    let none = Limits { rows: chain, nodes: chain, streams: 1, pages, stream_pages: pages };
    all(args).map(needs).fold(none, |a, b| Limits {
        rows: a.rows.max(b.rows),
        nodes: a.nodes.max(b.nodes),
        streams: a.streams.max(b.streams),
        pages: a.pages.max(b.pages),
        stream_pages: a.stream_pages.max(b.stream_pages),
    })
}

/// Runs one pass of the largest cell's rows and leaves its rows in all pages.
fn fill(stream: &kd_kernels::Stream, rank: &mut Rank, args: &BenchStepArgs) -> anyhow::Result<()> {
    let Some(cell) = all(args).max_by_key(Cell::rows) else { return Ok(()) };
    let pages = rank.state.limits().table_width();
    let bucket = kd_model::cuda::Bucket { rows: cell.rows(), streams: cell.streams, pages };
    let size = Size { bucket, kept: cell.streams };
    let mut streams = rounds::Streams::new(cell.streams, cell.nodes, 0, 1);
    streams.prepare(stream, rank, size)?;
    rank.verify(stream, size)?;
    Ok(rank.fill_pages(stream)?)
}

fn all(args: &BenchStepArgs) -> impl Iterator<Item = Cell> {
    args.context.iter().flat_map(move |&context| {
        args.streams
            .iter()
            .flat_map(move |&streams| args.nodes.iter().map(move |&nodes| Cell { streams, nodes, context }))
    })
}

fn table(cells: &[Measured]) -> Table {
    let phases = cells.first().map_or(&[][..], |cell| &cell.phases);
    let names = phases.iter().map(|timed| timed.phase.name());
    let head = ["rows", "streams", "context", "experts", "step µs", "floor", "ratio", "launches"];
    let mut table = Table::new(head.into_iter().chain(names).chain(["host gap"]));
    for measured in cells {
        let Cell { streams, context, .. } = measured.cell;
        let step = measured.step();
        let own = [
            measured.cell.rows().to_string(),
            streams.to_string(),
            context.to_string(),
            format!("{:.1}", measured.mean_distinct()),
            format!("{step:.0}"),
            format!("{:.0}", measured.floor),
            format!("{:.2}", step / measured.floor),
            measured.launches.to_string(),
        ];
        let phase = |timed: &cell::Timed| {
            let time = median(&timed.samples);
            match timed.floor > 0.0 {
                true => format!("{time:.0} ({:.2})", time / timed.floor),
                false => format!("{time:.0}"),
            }
        };
        let gap = format!("{:.1} %", 100.0 * measured.rounds.gap());
        table.row(own.into_iter().chain(measured.phases.iter().map(phase)).chain([gap]));
    }
    table
}

fn chart(cells: &[Measured]) -> Chart {
    let mut contexts: Vec<usize> = cells.iter().map(|measured| measured.cell.context).collect();
    contexts.sort_unstable();
    contexts.dedup();
    let line = |context: usize, name: String, value: fn(&Measured) -> f64| {
        let of = cells.iter().filter(|measured| measured.cell.context == context);
        let mut points: Vec<(f64, f64)> =
            of.map(|measured| (measured.cell.rows() as f64, value(measured) / 1e3)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name, points }
    };
    let lines = contexts.into_iter().flat_map(|context| {
        [
            line(context, format!("round, {context} tokens"), Measured::step),
            line(context, format!("floor, {context} tokens"), |measured| measured.floor),
        ]
    });
    Chart {
        title: "One round of one rank: verify, commit, draft".to_owned(),
        across: "rows of the verify pass".to_owned(),
        up: "ms".to_owned(),
        lines: lines.collect(),
    }
}
