//! Timing one operation against its floor.

use std::io::{Write, stdout};
use std::time::Instant;

use kd_tensor::{Pool, machine};
use serde_json::{Value, json};

use super::floors::Floors;
use super::record::Record;
use super::samples::Samples;
use super::table::Table;
use super::work::Work;
use crate::args::BenchOperationArgs;
use crate::interrupt;

/// An operation at one size.
pub(super) struct Operation<'a> {
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) work: Work,
    /// Copies of the weights. As many first runs are not recorded: they put the weights in order.
    pub(super) copies: usize,
    /// Runs it on the `n`-th copy of the weights, in turns, so that they come from memory.
    pub(super) run: Box<dyn FnMut(usize) + 'a>,
}

/// Measures all operations, prints them and writes the result file.
pub(super) fn measure(
    args: &BenchOperationArgs,
    pool: &Pool,
    floors: &Floors,
    mut record: Record,
    operations: Vec<Operation<'_>>,
) -> anyhow::Result<()> {
    interrupt::heed();
    let mut table =
        Table::new(["operation", "rows", "median", "spread", "floor", "set by", "time / floor", "GB/s"]);
    let mut measured = Vec::new();
    for mut operation in operations {
        let mut seconds = Samples::default();
        let mut peak = 0.0f64;
        let begin = Instant::now();
        for n in 0.. {
            interrupt::check()?;
            let start = Instant::now();
            (operation.run)(n);
            if n >= operation.copies {
                seconds.0.push(start.elapsed().as_secs_f64());
            }
            // Clocks move: the peak is looked at beside every run.
            peak = peak.max(machine::peak(pool, 10));
            if n >= operation.copies + 3 && begin.elapsed().as_secs_f64() > args.seconds {
                break;
            }
        }
        let Work { multiply_adds, bytes } = operation.work;
        let (floor, bound) = Floors { peak, ..*floors }.seconds(multiply_adds, bytes);
        let median = seconds.median();
        table.row([
            operation.name.clone(),
            operation.rows.to_string(),
            format!("{:.3} ms", median * 1e3),
            format!("{:.1}%", 100.0 * seconds.spread()),
            format!("{:.3} ms", floor * 1e3),
            bound.to_owned(),
            format!("{:.2}", median / floor),
            format!("{:.1}", bytes / median / 1e9),
        ]);
        let samples: Vec<f64> = seconds.0.iter().map(|s| (s * 1e7).round() / 1e4).collect();
        measured.push(json!({
            "operation": operation.name,
            "rows": operation.rows,
            "multiply_adds": multiply_adds,
            "bytes": bytes,
            "peak_multiply_adds_per_second": peak,
            "floor_ms": floor * 1e3,
            "floor_set_by": bound,
            "median_of_floor": median / floor,
            "samples_ms": samples,
        }));
    }
    let mut out = stdout().lock();
    writeln!(out, "{}\n{table}", floors.describe())?;
    record.set("floors", floors.json());
    record.set("measurements", Value::Array(measured));
    record.write(args.out.out.as_deref())
}
