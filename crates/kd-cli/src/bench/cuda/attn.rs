//! `kd bench attn`: one pass of tree-verify attention, split and merge, beside its floor.

use std::io::{Write, stdout};

use kd_attn::KvCacheDtype;
use kd_attn::bench::{Cell, Measured, measure};
use kd_kernels::bench::Rates;
use serde_json::{Value, json};

use super::{Gpu, draw, micros};
use crate::args::BenchAttnArgs;
use crate::bench::chart::{Chart, Line};
use crate::bench::table::Table;
use crate::interrupt;

/// The profile unless another is asked for.
const PROFILE: &str = "k26-tp8";
/// Timings of each cell.
const SAMPLES: usize = 5;

pub(in crate::bench) fn run(args: &BenchAttnArgs) -> anyhow::Result<()> {
    let gpu = Gpu::required(&args.on, PROFILE)?;
    let rates = Rates::measure(&gpu.device, &gpu.kernels)?;
    let mut record = gpu.record("one pass of tree-verify attention: tree_mla and tree_mla_merge", &rates);
    record.set("context_from_memory", !args.warm);
    record.set("variant", args.variant.clone());
    let cache = args.cache.dtype();
    record.set("kv_cache_dtype", if cache == KvCacheDtype::Fp8 { "fp8" } else { "bf16" });
    let mut table = Table::new([
        "streams",
        "nodes",
        "context",
        "µs",
        "floor",
        "set by",
        "floor / time",
        "TB/s",
        "TFLOP/s",
    ]);
    let (mut cells, out) = (Vec::new(), args.on.out.out.as_deref());
    interrupt::heed();
    for cell in all(args) {
        interrupt::check()?;
        let measured =
            measure(&gpu.device, &gpu.kernels, cell, !args.warm, args.variant.as_deref(), SAMPLES, cache)?;
        let (time, (floor, by)) = (measured.micros(), measured.floor_micros(&rates));
        table.row([
            cell.streams.to_string(),
            cell.nodes.to_string(),
            cell.context.to_string(),
            format!("{time:.1}"),
            format!("{floor:.2}"),
            by.to_owned(),
            format!("{:.3}", floor / time),
            format!("{:.2}", measured.bytes / time / 1e6),
            format!("{:.1}", measured.operations / time / 1e6),
        ]);
        cells.push(measured);
        // After each cell, so that a run that is cut short leaves what it found.
        record.set("cells", cells.iter().map(|cell| json(cell, &rates)).collect::<Vec<_>>());
        record.write(out)?;
    }
    writeln!(stdout(), "{}\n{table}", gpu.describe(&rates))?;
    draw(out, &chart(args, &cells, &rates).svg())
}

fn all(args: &BenchAttnArgs) -> impl Iterator<Item = Cell> {
    args.streams.iter().flat_map(move |&streams| {
        args.nodes
            .iter()
            .flat_map(move |&nodes| args.context.iter().map(move |&context| Cell { streams, nodes, context }))
    })
}

fn json(measured: &Measured, rates: &Rates) -> Value {
    let (Cell { streams, nodes, context }, (floor, by)) = (measured.cell, measured.floor_micros(rates));
    json!({
        "streams": streams, "nodes": nodes, "context": context, "copies": measured.copies, "bytes": measured.bytes,
        "operations": measured.operations, "partial_rows": measured.partial_rows, "median_us": measured.micros(),
        "floor_us": floor, "floor_set_by": by, "samples_us": micros(&measured.samples),
    })
}

fn chart(args: &BenchAttnArgs, cells: &[Measured], rates: &Rates) -> Chart {
    let pairs =
        args.streams.iter().flat_map(|&streams| args.nodes.iter().map(move |&nodes| (streams, nodes)));
    let line = |(streams, nodes)| {
        let of = cells.iter().filter(|m| (m.cell.streams, m.cell.nodes) == (streams, nodes));
        let points = of.map(|m| (m.cell.context as f64, m.floor_micros(rates).0 / m.micros()));
        Line { name: format!("{streams} × {nodes} rows"), points: points.collect() }
    };
    Chart {
        title: "Tree-verify attention: floor ÷ time".to_owned(),
        across: "committed tokens of each stream".to_owned(),
        up: "floor ÷ time".to_owned(),
        lines: pairs.map(line).collect(),
    }
}
