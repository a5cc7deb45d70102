//! Tables and the result file.

use std::io::{Write, stdout};

use kd_engine::Models;
use kd_engine::budget::Allocator;
use serde_json::json;

use super::super::floors::Floors;
use super::super::record::Record;
use super::super::samples::{FEWEST, Ratio, significant};
use super::super::table::Table;
use super::super::work;
use super::cells::{Cell, Runs};
use crate::args::{BenchGenerateArgs, Mode};

/// What the automatic budget must reach of plain decoding, and of the best fixed budget.
const OF_PLAIN: f64 = 0.97;
const OF_BEST: f64 = 0.95;

/// Field of the result file that holds every sample.
pub(super) const CELLS: &str = "cells";

impl Cell {
    fn of(&self, mode: Mode) -> Option<&Runs> {
        self.runs.iter().find(|run| run.mode == mode)
    }

    /// The fixed budget, plain decoding included, with the largest median.
    fn best_fixed(&self) -> Option<&Runs> {
        let fixed = self.runs.iter().filter(|run| !matches!(run.mode, Mode::Auto | Mode::Cold));
        fixed.max_by(|a, b| a.rates.median().total_cmp(&b.rates.median()))
    }

    fn of_plain(&self, mode: Mode) -> Option<Ratio> {
        self.of(mode)?.rates.ratio(&self.of(Mode::Nodes(0))?.rates)
    }

    fn of_best(&self, mode: Mode) -> Option<Ratio> {
        self.of(mode)?.rates.ratio(&self.best_fixed()?.rates)
    }
}

pub(super) fn print(
    args: &BenchGenerateArgs,
    models: &Models,
    floors: &Floors,
    cells: &[Cell],
) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "tokens/s, medians of {} interleaved runs of {} tokens", args.repeat, args.max_tokens)?;
    let mut columns = vec!["prompt".to_owned(), "streams".to_owned(), "T".to_owned()];
    columns.extend(args.budgets.iter().map(Mode::to_string));
    columns.extend(["best fixed", "auto/plain", "auto/best", "cold/plain"].map(str::to_owned));
    let mut table = Table::new(columns);
    for cell in cells {
        let mut row = vec![cell.prompt.clone(), cell.streams.to_string(), cell.temperature.to_string()];
        row.extend(args.budgets.iter().map(|&mode| rate(cell.of(mode))));
        row.push(cell.best_fixed().map_or_else(String::new, |run| run.mode.to_string()));
        let ratios = [cell.of_plain(Mode::Auto), cell.of_best(Mode::Auto), cell.of_plain(Mode::Cold)];
        row.extend(ratios.map(|ratio| ratio.map_or_else(String::new, |ratio| ratio.to_string())));
        table.row(row);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "{}", by_load(args, models, floors, cells))?;
    for verdict in verdicts(cells) {
        writeln!(out, "{verdict}")?;
    }
    Ok(())
}

/// What the automatic budget did, what that cost, and how well it knows the drafter.
pub(super) fn learnt(budget: &Allocator) -> anyhow::Result<()> {
    let counts = budget.counts();
    let (plain, drafted, looks) = (counts.plain, counts.drafted, counts.looks);
    let mut out = stdout().lock();
    writeln!(
        out,
        "auto: {plain} plain rounds, {drafted} drafted ones, {looks} to learn, which cost {:.1} ms",
        1e3 * budget.spent()
    )?;
    if let Some(errors) = budget.errors() {
        writeln!(
            out,
            "calibration error: {:.1} % of accepted tokens as drafted, {:.1} % calibrated, over {:.0} tokens",
            100.0 * errors.raw,
            100.0 * errors.calibrated,
            errors.accepted
        )?;
    }
    Ok(())
}

fn rate(run: Option<&Runs>) -> String {
    run.map_or_else(String::new, |run| significant(run.rates.median()).to_string())
}

/// Over all prompts: what each mode does in a round, and how far plain decoding is from its floor.
fn by_load(args: &BenchGenerateArgs, models: &Models, floors: &Floors, cells: &[Cell]) -> Table {
    let columns = [
        "streams",
        "T",
        "mode",
        "tokens/s",
        "spread",
        "tokens/round",
        "nodes/round",
        "floor tokens/s",
        "of floor",
    ];
    let mut table = Table::new(columns);
    for streams in &args.streams {
        for &temperature in &args.temperature {
            let here: Vec<&Cell> = cells
                .iter()
                .filter(|cell| cell.streams == streams.get() && cell.temperature == temperature)
                .collect();
            for &mode in &args.budgets {
                let runs: Vec<&Runs> = here.iter().filter_map(|cell| cell.of(mode)).collect();
                let mean = |of: &dyn Fn(&Runs) -> f64| {
                    runs.iter().map(|run| of(run)).sum::<f64>() / runs.len() as f64
                };
                let rate = mean(&|run| run.rates.median());
                let (tokens, nodes) = (mean(&|run| run.tokens_per_round), mean(&|run| run.nodes_per_round));
                let fixed = !matches!(mode, Mode::Auto | Mode::Cold);
                let floor = fixed.then(|| floor(models, floors, streams.get() as f64, tokens, nodes));
                table.row([
                    streams.to_string(),
                    temperature.to_string(),
                    mode.to_string(),
                    significant(rate).to_string(),
                    format!("{:.1}%", 100.0 * mean(&|run| run.rates.spread())),
                    format!("{tokens:.2}"),
                    format!("{nodes:.1}"),
                    floor.map_or_else(String::new, |floor| significant(floor).to_string()),
                    floor.map_or_else(String::new, |floor| format!("{:.2}", rate / floor)),
                ]);
            }
        }
    }
    table
}

/// Tokens a second if rounds took no longer than their multiply-adds and bytes do; attention and prefill left out.
fn floor(models: &Models, floors: &Floors, streams: f64, tokens: f64, nodes: f64) -> f64 {
    let verify = work::target(models.target.config(), streams * (1.0 + nodes), 0.0);
    let draft = models.drafter.as_ref().filter(|_| nodes > 0.0);
    let draft = draft.map_or_else(work::Work::default, |d| work::drafter(d.config(), streams));
    let seconds = [verify, draft].map(|work| floors.seconds(work.multiply_adds, work.bytes).0);
    streams * tokens / seconds.iter().sum::<f64>()
}

/// How one ratio fares over all cells.
struct Verdict {
    what: &'static str,
    limit: f64,
    least: Ratio,
    cells: usize,
    /// Cells whose whole interval is under the limit.
    misses: usize,
    /// Cells of which that cannot be said.
    undecided: usize,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, limit, least, cells, misses, undecided } = self;
        write!(f, "{what}: least {least}; {misses} of {cells} cells under {limit} beyond chance")?;
        match undecided {
            0 => Ok(()),
            _ => write!(
                f,
                ", {undecided} undecided: fewer than {FEWEST} repetitions are too few, or a rate is missing"
            ),
        }
    }
}

fn verdicts(cells: &[Cell]) -> Vec<Verdict> {
    let verdict = |what, limit, ratio: &dyn Fn(&Cell) -> Option<Ratio>| {
        let all: Vec<Ratio> = cells.iter().filter_map(ratio).collect();
        // What is no number is the least of all, whatever its sign.
        let value = |ratio: &Ratio| if ratio.value.is_nan() { f64::NEG_INFINITY } else { ratio.value };
        let least = all.iter().copied().min_by(|a, b| value(a).total_cmp(&value(b)))?;
        let count = |what| all.iter().filter(|ratio| ratio.misses(limit) == what).count();
        let (cells, misses, undecided) = (all.len(), count(Some(true)), count(None));
        Some(Verdict { what, limit, least, cells, misses, undecided })
    };
    let all = [
        verdict("auto / plain", OF_PLAIN, &|cell| cell.of_plain(Mode::Auto)),
        verdict("auto / best fixed", OF_BEST, &|cell| cell.of_best(Mode::Auto)),
        verdict("cold / plain", OF_PLAIN, &|cell| cell.of_plain(Mode::Cold)),
    ];
    all.into_iter().flatten().collect()
}

/// Says what the numbers of the result file are.
pub(super) fn describe(args: &BenchGenerateArgs, floors: &Floors, record: &mut Record) {
    record.set("floors", floors.json());
    record.set("max_tokens", args.max_tokens.get());
    record.set("kv_cache_dtype", args.common.cache.name());
    let values = "tokens a second after the first tokens; ratios are quotients of medians, with the ends of their 95 % bootstrap intervals over repetitions; a cell of fewer than five, or without a rate, is undecided";
    record.set("values", values);
}

/// Writes the result file as far as there are cells.
pub(super) fn write(args: &BenchGenerateArgs, cells: &[Cell], mut record: Record) -> anyhow::Result<()> {
    for Verdict { what, limit, least, misses, undecided, .. } in verdicts(cells) {
        let verdict = json!({
            "limit": limit,
            "least": of(least),
            "cells_under_limit_beyond_chance": misses,
            "cells_undecided": undecided,
        });
        record.set(what, verdict);
    }
    let ratio = |cell: &Cell| {
        json!({
            "prompt": cell.prompt,
            "streams": cell.streams,
            "temperature": cell.temperature,
            "best_fixed": cell.best_fixed().map(|run| run.mode.to_string()),
            "auto_of_plain": cell.of_plain(Mode::Auto).map(of),
            "auto_of_best_fixed": cell.of_best(Mode::Auto).map(of),
            "cold_of_plain": cell.of_plain(Mode::Cold).map(of),
        })
    };
    record.set("ratios", cells.iter().map(ratio).collect::<Vec<_>>());
    record.set(CELLS, serde_json::to_value(cells)?);
    record.write(args.out.as_deref())
}

/// Value and ends of the interval.
fn of(Ratio { value, interval: [low, high], .. }: Ratio) -> [f64; 3] {
    [value, low, high].map(|x| (1000.0 * x).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::Samples;
    use super::{Cell, Mode, Runs, verdicts};

    fn cell(auto: &[f64], plain: &[f64]) -> Cell {
        let run = |mode, rates: &[f64]| Runs {
            mode,
            rates: Samples(rates.to_vec()),
            rounds: 1,
            tokens_per_round: 1.0,
            nodes_per_round: 0.0,
        };
        let runs = vec![run(Mode::Nodes(0), plain), run(Mode::Auto, auto)];
        Cell { prompt: "p".to_owned(), streams: 1, temperature: 0.0, runs }
    }

    #[test]
    fn only_enough_repetitions_make_a_miss() {
        let cells = [cell(&[8.0; 5], &[10.0; 5]), cell(&[8.0; 4], &[10.0; 4]), cell(&[10.0; 5], &[10.0; 5])];
        let verdict = &verdicts(&cells)[0];
        assert_eq!((verdict.cells, verdict.misses, verdict.undecided), (3, 1, 1));
        assert!(
            verdict.to_string().contains("1 undecided: fewer than 5 repetitions are too few"),
            "{verdict}"
        );
    }

    #[test]
    fn a_cell_without_a_ratio_is_the_least_and_undecided() {
        for nan in [f64::NAN, -f64::NAN] {
            let cells = [cell(&[9.9; 5], &[10.0; 5]), cell(&[nan; 5], &[nan; 5])];
            let verdict = &verdicts(&cells)[0];
            assert!(verdict.least.value.is_nan(), "{verdict}");
            assert_eq!((verdict.misses, verdict.undecided), (0, 1), "{verdict}");
        }
    }
}
