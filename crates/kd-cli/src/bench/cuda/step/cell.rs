//! One cell: a round timed whole and phase by phase.

use std::time::{Duration, Instant};

use kd_kernels::bench::{Rates, median};
use kd_kernels::ranks::OneRank;
use kd_kernels::{Graph, Stream};
use kd_model::Trace;
use kd_model::cuda::Bucket;
use kd_moe::Routing;
use serde_json::{Value, json};

use super::phase::Phase;
use super::rank::{Rank, Record, Recording, Shared, Size};
use super::rounds::{Rounds, Streams};
use super::work::Work;
use crate::bench::cuda::micros;

/// How long a graph is replayed before it is timed: clocks have settled, and power is what it will be.
const WARM: Duration = Duration::from_millis(200);
/// Timed replays of whole graphs, and of those of a phase.
const SAMPLES: usize = 15;
const PHASE_SAMPLES: usize = 7;

/// The size of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) streams: usize,
    /// Rows of each stream's tree, its root included.
    pub(super) nodes: usize,
    /// Committed tokens of each stream.
    pub(super) context: usize,
}

/// A phase, timed alone.
pub(super) struct Timed {
    pub(super) phase: Phase,
    pub(super) samples: Vec<f64>,
    /// Least microseconds of what the graph did.
    pub(super) floor: f64,
    pub(super) launches: usize,
}

/// A cell, measured; microseconds.
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) verify: Vec<f64>,
    /// Commit, context and draft.
    pub(super) draft: Vec<f64>,
    pub(super) phases: Vec<Timed>,
    /// Different experts, by layer with experts.
    pub(super) distinct: Vec<usize>,
    /// Least microseconds of the whole round.
    pub(super) floor: f64,
    /// Launches of the whole round.
    pub(super) launches: usize,
    pub(super) rounds: Rounds,
}

impl Cell {
    /// Rows of the verify pass.
    pub(super) fn rows(&self) -> usize {
        self.streams * self.nodes
    }

    /// Rows that a round commits at most: a path from root to leaf of each tree.
    pub(super) fn kept(&self, block: usize) -> usize {
        self.streams * self.nodes.min(block)
    }
}

impl Measured {
    /// The median of a whole round.
    pub(super) fn step(&self) -> f64 {
        median(&self.verify) + median(&self.draft)
    }

    /// Mean number of different experts a layer.
    pub(super) fn mean_distinct(&self) -> f64 {
        self.distinct.iter().sum::<usize>() as f64 / self.distinct.len().max(1) as f64
    }

    /// For the result file.
    pub(super) fn json(&self) -> Value {
        let phase = |timed: &Timed| {
            json!({
                "phase": timed.phase.name(), "median_us": median(&timed.samples), "floor_us": timed.floor,
                "launches": timed.launches, "samples_us": micros(&timed.samples),
            })
        };
        let Rounds { count, wall, device } = self.rounds;
        json!({
            "streams": self.cell.streams, "nodes": self.cell.nodes, "rows": self.cell.rows(),
            "context": self.cell.context, "step_us": self.step(), "floor_us": self.floor,
            "over_floor": self.step() / self.floor, "launches": self.launches, "verify_samples_us": micros(&self.verify),
            "commit_and_draft_samples_us": micros(&self.draft),
            "phases": self.phases.iter().map(phase).collect::<Vec<_>>(),
            "distinct_experts_by_layer": self.distinct,
            "rounds": { "count": count, "wall_s": wall.as_secs_f64(), "device_s": device.as_secs_f64(),
                        "host_gap": self.rounds.gap() },
        })
    }
}

/// Keeps what each layer's rows chose.
struct Choices(Vec<(usize, Routing)>);

impl Choices {
    /// Different experts, by layer.
    fn distinct(&self) -> Vec<usize> {
        let count = |(_, routing): &(usize, Routing)| {
            let mut ids = routing.ids.clone();
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        self.0.iter().map(count).collect()
    }
}

impl Trace for Choices {
    fn routing(&mut self, layer: usize, routing: &Routing) {
        self.0.push((layer, routing.clone()));
    }
}

/// Measures `cell` with up to `rounds` rounds.
pub(super) fn measure(
    stream: &Stream,
    shared: &Shared,
    rates: &Rates,
    cell: Cell,
    rounds: (usize, Duration),
) -> anyhow::Result<Measured> {
    let pages = shared.lock().state.limits().pages_for(cell.context);
    let bucket = Bucket { rows: cell.rows(), streams: cell.streams, pages };
    let block = shared.lock().drafter.dims().block;
    let size = Size { bucket, kept: cell.kept(block) };
    let mut streams = Streams::new(cell.streams, cell.nodes, cell.context, size.kept / cell.streams);
    let mut choices = Choices(Vec::new());
    {
        let rank = &mut *shared.lock();
        streams.prepare(stream, rank, size)?;
        // What the driver loads at a first launch cannot be loaded inside a capture.
        rank.verify(stream, size)?;
        rank.commit_and_draft(stream, size)?;
        let Rank { target, state, .. } = rank;
        target.forward_traced(stream, state, bucket, &OneRank, &mut choices, bucket.rows)?;
        rank.choose(stream, &choices.0)?;
    }
    let verify = shared.capture(stream, size, Rank::verify)?;
    let draft = shared.capture(stream, size, Rank::commit_and_draft)?;
    let begin = Instant::now();
    while begin.elapsed() < WARM {
        verify.time_one()?;
        draft.time_one()?;
    }
    let mut whole = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        whole[0].push(verify.time_one()?);
        whole[1].push(draft.time_one()?);
    }
    let [verify_times, draft_times] = whole;
    let distinct = choices.distinct();
    let (floor, phases) = {
        let rank = shared.lock();
        let work = Work {
            dims: rank.target.dims(),
            draft: rank.drafter.dims(),
            rates,
            streams: cell.streams,
            rows: bucket.rows,
            kept: size.kept,
            context: cell.context,
            seen: streams.seen(),
            distinct: &distinct,
        };
        let all = Phase::VERIFY.iter().map(|(phase, _)| *phase).chain([Phase::Draft]);
        let floors: Vec<(Phase, f64)> = all.map(|phase| (phase, work.floor(phase))).collect();
        let step = Phase::VERIFY.iter().map(|(phase, _)| work.floor(*phase)).sum::<f64>();
        (step + work.floor(Phase::Draft), floors)
    };
    let phases = phases_of(stream, shared, size, &phases)?;
    let (count, most) = rounds;
    // Phases have walked over the inputs.
    streams.prepare(stream, &mut shared.lock(), size)?;
    shared.lock().round(stream, size)?;
    let round = shared.capture(stream, size, Rank::round)?;
    let rounds = streams.run(stream, shared, &round, size, count, most)?;
    let launches = round.nodes()?;
    Ok(Measured { cell, verify: verify_times, draft: draft_times, phases, distinct, floor, launches, rounds })
}

/// Times each phase in a graph of its launches alone.
fn phases_of(
    stream: &Stream,
    shared: &Shared,
    size: Size,
    floors: &[(Phase, f64)],
) -> anyhow::Result<Vec<Timed>> {
    let floor = |phase| floors.iter().find(|(of, _)| *of == phase).map_or(0.0, |(_, floor)| *floor);
    let time = |stream: &Stream, record: Record| -> anyhow::Result<(Vec<f64>, usize)> {
        let graph = shared.capture(stream, size, record)?;
        Ok((samples(&graph)?, graph.nodes()?))
    };
    let mut phases = Vec::new();
    for (phase, admits) in Phase::VERIFY {
        // The choices that a pass leaves behind are its last layer's.
        let record = if phase == Phase::Moe { Rank::experts as Record } else { Rank::verify };
        let (samples, launches) = time(&stream.admitting(admits), record)?;
        phases.push(Timed { phase, samples, floor: floor(phase), launches });
    }
    for (phase, record) in [(Phase::Commit, Rank::commit as Record), (Phase::Draft, Rank::draft)] {
        let (samples, launches) = time(stream, record)?;
        phases.push(Timed { phase, samples, floor: floor(phase), launches });
    }
    Ok(phases)
}

fn samples(graph: &Graph<Recording>) -> anyhow::Result<Vec<f64>> {
    for _ in 0..3 {
        graph.time_one()?;
    }
    Ok((0..PHASE_SAMPLES).map(|_| graph.time_one()).collect::<Result<_, _>>()?)
}
