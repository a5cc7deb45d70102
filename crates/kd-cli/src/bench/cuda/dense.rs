//! `kd bench dense` on a GPU: our products beside their floor and cuBLASLt, the router beside its floor and target.

use std::io::{Write, stdout};

use kd_kernels::bench::{
    DenseLine, DenseShape, K26_TP1, K26_TP8, Rates, RouterLine, RowsLine, dense, median, router,
    rows as moved,
};
use serde_json::{Value, json};

use super::{Gpu, draw, micros};
use crate::UsageError;
use crate::args::BenchDenseArgs;
use crate::bench::chart::{Chart, Line};
use crate::bench::table::Table;

/// Rows unless others are asked for.
const ROWS: [usize; 8] = [1, 8, 16, 33, 64, 132, 264, 528];
/// Widths of K2.6: hidden; compressed query, latent and rotary values of the rows that become cache entries.
const HIDDEN: usize = 7168;
const LATENTS: [usize; 3] = [1536, 512, 64];
/// The profile unless another is asked for.
pub(in crate::bench) const PROFILE: &str = "k26-tp8";

pub(in crate::bench) fn run(args: &BenchDenseArgs, gpu: &Gpu) -> anyhow::Result<()> {
    let shapes = shapes(&gpu.profile)?;
    let rows = args.m.as_ref().map_or(ROWS.to_vec(), |rows| rows.iter().map(|rows| rows.get()).collect());
    let rates = Rates::measure(&gpu.device, &gpu.kernels)?;
    let lines = dense(&gpu.device, &gpu.kernels, shapes, &rows, &rates)?;
    let mut table = Table::new([
        "product",
        "rows",
        "variant",
        "µs",
        "floor",
        "set by",
        "time / floor",
        "TB/s",
        "TFLOP/s",
        "cuBLASLt",
        "with best tokens",
    ]);
    for line in &lines {
        let (time, (floor, by)) = (line.micros(), line.floor_micros(&rates));
        table.row([
            product(line.shape),
            line.rows.to_string(),
            line.variant.to_owned(),
            format!("{time:.2}"),
            format!("{floor:.2}"),
            by.to_owned(),
            format!("{:.2}", time / floor),
            format!("{:.2}", line.bytes() / time / 1e6),
            format!("{:.1}", line.operations() / time / 1e6),
            line.cublas.as_ref().map_or_else(String::new, |times| format!("{:.2}", median(times))),
            line.head.as_ref().map_or_else(String::new, |times| format!("{:.2}", median(times))),
        ]);
    }
    let routed = router(&gpu.device, &gpu.kernels, &rows)?;
    let moved = moved(&gpu.device, &gpu.kernels, HIDDEN, LATENTS)?;
    let (routed_table, moved_table) = (routed_table(&routed, &rates), moved_table(&moved, &rates));
    writeln!(stdout(), "{}\n{table}\n{routed_table}\n{moved_table}", gpu.describe(&rates))?;
    let mut record = gpu.record("dense products with bf16 weights from memory, launches in a graph", &rates);
    record.set("measurements", lines.iter().map(|line| json(line, &rates)).collect::<Vec<_>>());
    record.set("router", routed.iter().map(|line| routed_json(line, &rates)).collect::<Vec<_>>());
    record.set("rows", moved.iter().map(|line| moved_json(line, &rates)).collect::<Vec<_>>());
    let out = args.on.out.out.as_deref();
    record.write(out)?;
    draw(out, &chart(shapes, &lines, &rates).svg())
}

fn shapes(profile: &str) -> Result<&'static [DenseShape], UsageError> {
    match profile {
        "k26-tp1" => Ok(&K26_TP1),
        "k26-tp8" => Ok(&K26_TP8),
        other => Err(UsageError(format!(
            "--profile {other}: the products of k26-tp1 and k26-tp8 can be measured, not those of other profiles"
        ))),
    }
}

fn product(shape: DenseShape) -> String {
    format!("{} → {}", shape.k, shape.n)
}

fn json(line: &DenseLine, rates: &Rates) -> Value {
    let (time, (floor, by)) = (line.micros(), line.floor_micros(rates));
    json!({
        "k": line.shape.k, "n": line.shape.n, "rows": line.rows, "variant": line.variant, "median_us": time,
        "floor_us": floor, "floor_set_by": by, "over_floor": time / floor, "samples_us": micros(&line.samples),
        "cublaslt_samples_us": line.cublas.as_deref().map(micros),
        "head_samples_us": line.head.as_deref().map(micros),
    })
}

/// The router of K2.6, products and choice.
fn routed_table(lines: &[RouterLine], rates: &Rates) -> Table {
    let mut table =
        Table::new(["router, rows", "variant", "µs", "in L2", "target", "floor", "set by", "time / floor"]);
    for line in lines {
        let (time, (floor, by)) = (line.micros(), line.floor_micros(rates));
        table.row([
            line.rows.to_string(),
            line.variant.to_owned(),
            format!("{time:.2}"),
            format!("{:.2}", median(&line.cached)),
            line.target().map_or_else(String::new, |most| format!("{most:.0}")),
            format!("{floor:.2}"),
            by.to_owned(),
            format!("{:.2}", time / floor),
        ]);
    }
    table
}

fn routed_json(line: &RouterLine, rates: &Rates) -> Value {
    let (time, (floor, by)) = (line.micros(), line.floor_micros(rates));
    json!({
        "rows": line.rows, "variant": line.variant, "median_us": time, "target_us": line.target(), "floor_us": floor,
        "floor_set_by": by, "over_floor": time / floor, "samples_us": micros(&line.samples),
        "weights_in_l2_samples_us": micros(&line.cached),
    })
}

/// Kernels that only move rows, past L2.
fn moved_table(lines: &[RowsLine], rates: &Rates) -> Table {
    let mut table = Table::new(["past L2", "rows", "µs", "TB/s", "of the read rate"]);
    for line in lines {
        table.row([
            line.family.to_owned(),
            line.rows.to_string(),
            format!("{:.1}", line.micros),
            format!("{:.2}", line.rate() / 1e12),
            format!("{:.2}", line.rate() / rates.bytes),
        ]);
    }
    table
}

fn moved_json(line: &RowsLine, rates: &Rates) -> Value {
    json!({
        "family": line.family, "rows": line.rows, "bytes": line.bytes, "us": line.micros,
        "of_read_rate": line.rate() / rates.bytes,
    })
}

fn chart(shapes: &[DenseShape], lines: &[DenseLine], rates: &Rates) -> Chart {
    let line = |shape: &DenseShape| {
        let of = lines.iter().filter(|line| line.shape == *shape);
        let points = of.map(|line| (line.rows as f64, line.micros() / line.floor_micros(rates).0));
        Line { name: product(*shape), points: points.collect() }
    };
    Chart {
        title: "Dense products: time ÷ floor".to_owned(),
        across: "rows".to_owned(),
        up: "time ÷ floor".to_owned(),
        lines: shapes.iter().map(line).collect(),
    }
}
