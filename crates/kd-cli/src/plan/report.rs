//! Cost curve, regimes, knee and best cells: tables, picture and result file.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Context;
use kd_engine::Models;
use kd_engine::budget::{CostModel, Prices, SIZES, edge};
use kd_tensor::file::write_atomically;
use serde_json::{Value, json};

use super::measure::{Measured, Passes};
use crate::args::PlanArgs;
use crate::bench::chart::{Chart, Line};
use crate::bench::floors::Floors;
use crate::bench::record::Record;
use crate::bench::table::Table;
use crate::bench::work;

/// A number of streams with a budget, and what it is expected to bring.
#[derive(Debug, Clone, Copy)]
struct Choice {
    streams: usize,
    nodes: usize,
    rate: f64,
    plain: f64,
}

pub(super) fn print(
    args: &PlanArgs,
    models: &Models,
    floors: &Floors,
    measured: &Measured,
    costs: &CostModel,
) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    let heads = ["streams", "rows", "context", "verify", "spread", "µs a row", "floor", "time / floor"];
    let timed = measured.verify.iter().any(|p| !p.gaps.0.is_empty());
    let mut table = Table::new(heads.into_iter().chain(timed.then_some("host gap")));
    for p in &measured.verify {
        let median = p.seconds.median();
        let work = work::target(models.target.config(), p.size as f64, p.context as f64);
        let (floor, _) = floors.seconds(work.multiply_adds, work.bytes);
        let row = [
            p.streams.to_string(),
            p.size.to_string(),
            p.context.to_string(),
            milliseconds(median),
            format!("{:.1}%", 100.0 * p.seconds.spread()),
            format!("{:.1}", median * 1e6 / p.size as f64),
            milliseconds(floor),
            format!("{:.2}", median / floor),
        ];
        let gap = timed.then(|| format!("{:.1}%", 100.0 * p.gaps.median()));
        table.row(row.into_iter().chain(gap));
    }
    writeln!(out, "{table}")?;
    let mut table = Table::new(["streams that draft", "context", "draft", "spread"]);
    for p in &measured.draft {
        table.row([
            p.size.to_string(),
            p.context.to_string(),
            milliseconds(p.seconds.median()),
            format!("{:.1}%", 100.0 * p.seconds.spread()),
        ]);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "{}\n", regimes(&shortest(measured)))?;
    let mut table =
        Table::new(["streams", "nodes", "rows", "tokens/s", "plain", "gain", "expected tokens/round"]);
    for choice in best(args, measured, costs) {
        table.row([
            choice.streams.to_string(),
            choice.nodes.to_string(),
            (choice.streams * (1 + choice.nodes)).to_string(),
            format!("{:.0}", choice.rate),
            format!("{:.0}", choice.plain),
            format!("{:.2}x", choice.rate / choice.plain),
            format!("{:.2}", 1.0 + measured.gain[choice.nodes]),
        ]);
    }
    writeln!(
        out,
        "best (streams, nodes a stream), from {} drafts at temperature 0:\n{table}",
        measured.rounds
    )?;
    Ok(())
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

/// The passes of the shortest context.
fn shortest(measured: &Measured) -> Vec<&Passes> {
    let context = measured.verify.iter().map(|p| p.context).min();
    context.map_or_else(Vec::new, |context| by_size(&measured.verify, context))
}

/// Those of one context, each size by the fewest streams that were timed in it.
fn by_size(passes: &[Passes], context: usize) -> Vec<&Passes> {
    let mut here: Vec<&Passes> = passes.iter().filter(|p| p.context == context).collect();
    here.sort_by_key(|p| (p.size, p.streams));
    here.dedup_by_key(|p| p.size);
    here
}

/// What a row costs below and above the knee: the split of the curve into two lines that lie nearest to it.
fn regimes(passes: &[&Passes]) -> String {
    let points: Vec<(f64, f64)> = passes.iter().map(|p| (p.size as f64, p.seconds.median())).collect();
    let split = (2..points.len().saturating_sub(1))
        .map(|at| (at, fit(&points[..at]), fit(&points[at..])))
        .min_by(|a, b| (a.1.2 + a.2.2).total_cmp(&(b.1.2 + b.2.2)));
    let Some((at, below, above)) = split else {
        return "too few sizes to tell regimes apart; raise --max-rows".to_owned();
    };
    let line =
        |(base, slope, _): (f64, f64, f64)| format!("{:.3} ms + {:.1} µs a row", base * 1e3, slope * 1e6);
    let (knee, change) = (points[at - 1].0, above.1 / below.1);
    let verdict = match change {
        c if c < 0.8 => "more rows become cheaper: wide passes pay",
        c if c > 1.25 => "more rows become dearer: arithmetic has caught up",
        _ => "no knee to speak of: a row costs about the same everywhere",
    };
    format!("up to {knee} rows: {}; beyond: {}; {verdict}", line(below), line(above))
}

/// Base, slope and squared relative error of the line nearest to the points, each weighed by its size.
fn fit(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let weighed = |of: fn(f64, f64) -> f64| points.iter().map(|&(x, y)| of(x, y) / (y * y)).sum::<f64>();
    let (w, x, y) = (weighed(|_, _| 1.0), weighed(|x, _| x), weighed(|_, y| y));
    let (xx, xy) = (weighed(|x, _| x * x), weighed(|x, y| x * y));
    let determinant = w * xx - x * x;
    let slope = if determinant > 0.0 { (w * xy - x * y) / determinant } else { 0.0 };
    let base = (y - slope * x) / w;
    let error = points.iter().map(|&(x, y)| ((base + slope * x) / y - 1.0).powi(2)).sum();
    (base, slope, error)
}

/// For every number of streams the budget that is expected to bring most tokens a second.
fn best(args: &PlanArgs, measured: &Measured, costs: &CostModel) -> Vec<Choice> {
    let context = measured.verify.iter().map(|p| p.context).min().unwrap_or(0);
    let most = args.max_rows.get();
    let choices = args.streams.iter().map(|streams| {
        let streams = streams.get();
        let prices = costs.prices(context, streams);
        let plain = rate(&prices, measured, streams, 0)?;
        let nodes = (0..measured.gain.len()).filter(|nodes| streams * (1 + nodes) <= most.max(streams));
        let rated = nodes.filter_map(|nodes| Some((nodes, rate(&prices, measured, streams, nodes)?)));
        let (nodes, rate) = rated.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Choice { streams, nodes, rate, plain })
    });
    choices.flatten().collect()
}

/// Expected tokens a second of `streams` streams with `nodes` nodes each.
fn rate(prices: &Prices, measured: &Measured, streams: usize, nodes: usize) -> Option<f64> {
    let tokens = streams as f64 * (1.0 + measured.gain[nodes]);
    let draft = if nodes == 0 { 0.0 } else { prices.draft(streams)? + prices.read(1) * tokens };
    Some(tokens / (draft + prices.verify(streams * (1 + nodes))?))
}

/// Draws the cost curves.
pub(super) fn plot(path: &Path, measured: &Measured) -> anyhow::Result<()> {
    let mut contexts: Vec<usize> = measured.verify.iter().map(|p| p.context).collect();
    contexts.dedup();
    let points = |passes: &[Passes], context: usize| {
        let here = by_size(passes, context).into_iter();
        here.map(|p| (p.size as f64, p.seconds.median() * 1e3)).collect()
    };
    let mut lines: Vec<Line> = contexts
        .iter()
        .map(|&context| Line {
            name: format!("verify, {context} tokens"),
            points: points(&measured.verify, context),
        })
        .collect();
    if let Some(&context) = contexts.first() {
        lines.push(Line { name: "draft (streams)".to_owned(), points: points(&measured.draft, context) });
    }
    let chart = Chart {
        title: "What passes cost".to_owned(),
        across: "rows of a verify pass, or streams of a draft".to_owned(),
        up: "milliseconds".to_owned(),
        lines,
    };
    write_atomically(path, chart.svg().as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Fills the result file.
pub(super) fn fill(args: &PlanArgs, measured: &Measured, costs: &CostModel, record: &mut Record) {
    let passes = |passes: &[Passes]| -> Value {
        let one = |p: &Passes| {
            let samples: Vec<f64> = p.seconds.0.iter().map(|s| (s * 1e7).round() / 1e4).collect();
            let mut cell =
                json!({ "streams": p.streams, "size": p.size, "context": p.context, "samples_ms": samples });
            if !p.gaps.0.is_empty() {
                cell["host_gap"] = p.gaps.0.iter().map(|gap| (gap * 1e4).round() / 1e4).collect();
            }
            cell
        };
        passes.iter().map(one).collect()
    };
    record.set("kv_cache_dtype", args.common.cache.name());
    record
        .set("buckets", (0..SIZES).map(edge).filter(|&rows| rows <= args.max_rows.get()).collect::<Vec<_>>());
    record.set("verify", passes(&measured.verify));
    record.set("draft", passes(&measured.draft));
    record.set("read_us_a_token", measured.read.median() * 1e6);
    record.set("gain_by_nodes", measured.gain.clone());
    record.set("rounds_behind_gain", measured.rounds);
    record.set("regimes", regimes(&shortest(measured)));
    let cell = |c: Choice| json!({ "streams": c.streams, "nodes": c.nodes, "tokens_per_second": c.rate, "plain": c.plain });
    record.set("best", best(args, measured, costs).into_iter().map(cell).collect::<Vec<_>>());
}
