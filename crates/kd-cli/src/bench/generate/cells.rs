//! Running what competes, in turns.

use anyhow::bail;
use kd_engine::budget::Allocator;
use kd_engine::{Engine, Models, Speculation};
use serde::{Deserialize, Serialize};

use super::super::samples::{Samples, significant};
use super::{engine, requests};
use crate::args::{BenchGenerateArgs, Mode};
use crate::generate::run;
use crate::place::Place;

/// A fixed budget that is this much slower than the fastest in its first run is not run again.
const HOPELESS: f64 = 1.3;

/// What happened with one prompt, number of streams and temperature.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) prompt: String,
    pub(super) streams: usize,
    pub(super) temperature: f64,
    pub(super) runs: Vec<Runs>,
}

/// All runs of one mode in one cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Runs {
    pub(super) mode: Mode,
    /// Tokens after the first ones a second, by the time from there to the end of the last stream.
    #[serde(rename = "tokens_per_second")]
    pub(super) rates: Samples,
    pub(super) rounds: u64,
    pub(super) tokens_per_round: f64,
    pub(super) nodes_per_round: f64,
}

/// The experiment.
pub(super) struct Bench<'a> {
    args: &'a BenchGenerateArgs,
    prompts: Vec<(String, Vec<u32>)>,
    engine: Engine,
    /// What the automatic budget of each mode has learnt: one does not know what others did.
    modes: Vec<(Mode, Allocator)>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        args: &'a BenchGenerateArgs,
        models: &Models,
        place: Place,
        prompts: Vec<(String, Vec<u32>)>,
    ) -> anyhow::Result<Self> {
        let streams = args.streams.iter().map(|n| n.get()).max().unwrap_or(1);
        let longest = prompts.iter().map(|(_, ids)| ids.len()).max().unwrap_or(0) + args.max_tokens.get();
        let nodes = args.budgets.iter().map(|mode| speculation(*mode).most_nodes()).max().unwrap_or(0);
        let engine = engine(models, place, [streams, nodes, longest])?;
        let modes = args.budgets.iter().map(|&mode| (mode, engine.budget().clone())).collect();
        Ok(Self { args, prompts, engine, modes })
    }

    /// The automatic budget that ran throughout.
    pub(super) fn budget(&self) -> Option<&Allocator> {
        self.modes.iter().find(|(mode, _)| *mode == Mode::Auto).map(|(_, budget)| budget)
    }

    /// All cells but those that are there already, after one unrecorded run of every mode and number of streams.
    /// `save` hears of the cells after each prompt.
    pub(super) fn run(
        &mut self,
        mut cells: Vec<Cell>,
        save: impl Fn(&[Cell]) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Cell>> {
        let prompts = self.prompts.clone();
        for streams in self.args.streams.clone() {
            for at in 0..self.modes.len() {
                self.once(at, &prompts[0].1, streams.get(), 0.0)?;
            }
        }
        for (name, ids) in &prompts {
            if cells.iter().any(|cell| cell.prompt == *name) {
                continue;
            }
            for streams in self.args.streams.clone() {
                for temperature in self.args.temperature.clone() {
                    let runs = self.cell(ids, streams.get(), temperature)?;
                    let (prompt, streams) = (name.clone(), streams.get());
                    cells.push(Cell { prompt, streams, temperature, runs });
                }
            }
            save(&cells)?;
            if !self.args.common.quiet {
                say!("kd: {name} done");
            }
        }
        Ok(cells)
    }

    fn cell(&mut self, ids: &[u32], streams: usize, temperature: f64) -> anyhow::Result<Vec<Runs>> {
        let modes: Vec<Mode> = self.modes.iter().map(|(mode, _)| *mode).collect();
        let fresh = |&mode: &Mode| Runs {
            mode,
            rates: Samples::default(),
            rounds: 0,
            tokens_per_round: 0.0,
            nodes_per_round: 0.0,
        };
        let mut runs: Vec<Runs> = modes.iter().map(fresh).collect();
        let mut tokens = None;
        for repetition in 0..self.args.repeat.get() {
            let fastest = runs.iter().filter_map(|run| run.rates.0.first()).copied().fold(0.0, f64::max);
            for turn in 0..modes.len() {
                // Every mode is first, second, … equally often.
                let at = (turn + repetition) % modes.len();
                let keep = matches!(modes[at], Mode::Nodes(0) | Mode::Auto | Mode::Cold);
                if repetition > 0 && !keep && runs[at].rates.0[0] * HOPELESS < fastest {
                    continue;
                }
                let (rate, outcomes) = self.once(at, ids, streams, temperature)?;
                let output: Vec<Vec<u32>> = outcomes.iter().map(|o| o.output_ids.clone()).collect();
                if tokens.get_or_insert_with(|| output.clone()) != &output {
                    bail!("{} gives other tokens than the modes before it; this is a bug", modes[at]);
                }
                let run = &mut runs[at];
                run.rates.0.push(significant(rate));
                run.rounds = outcomes.iter().map(|o| o.stats.rounds).sum();
                let rounds = run.rounds.max(1) as f64;
                let sum = |of: fn(&kd_engine::StreamStats) -> u64| -> f64 {
                    outcomes.iter().map(|o| of(&o.stats) as f64).sum::<f64>() / rounds
                };
                run.tokens_per_round = sum(|stats| stats.round_tokens);
                run.nodes_per_round = sum(|stats| stats.nodes);
            }
        }
        Ok(runs)
    }

    /// Tokens a second of one run.
    fn once(
        &mut self,
        at: usize,
        ids: &[u32],
        streams: usize,
        temperature: f64,
    ) -> anyhow::Result<(f64, Vec<run::Outcome>)> {
        let (mode, budget) = &mut self.modes[at];
        if *mode == Mode::Cold {
            *budget = Allocator::new(*budget.options());
        }
        let requests = requests(ids, streams, temperature, self.args.max_tokens.get(), speculation(*mode));
        std::mem::swap(self.engine.budget_mut(), budget);
        let outcomes = run::run(&mut self.engine, &requests)?;
        std::mem::swap(self.engine.budget_mut(), budget);
        if let Some(error) = outcomes.iter().find_map(|o| o.error.as_ref()) {
            bail!("{mode}: {error}");
        }
        // All prompts are read in one pass, so that all streams begin together.
        let tokens: u64 = outcomes.iter().map(|o| o.stats.generated - 1).sum();
        let seconds = outcomes.iter().map(|o| o.stats.decode).max().unwrap_or_default().as_secs_f64();
        Ok((tokens as f64 / seconds, outcomes))
    }
}

/// What the requests of a mode ask for.
fn speculation(mode: Mode) -> Speculation {
    match mode {
        Mode::Nodes(nodes) => Speculation::Tree { nodes },
        Mode::Chain => Speculation::Chain,
        Mode::Auto | Mode::Cold => Speculation::Auto,
    }
}
