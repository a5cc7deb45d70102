//! One layer again and again beside other work: the same bits every time, and an end.

use kd_kernels::selftest::{Failure, Outcome, Random, Subject, first_difference, timed};
use kd_kernels::{Device, Graph, KernelError, Kernels, Stream};

use super::case::Case;
use super::layer::Layer;
use super::routings::{ladder, spread};
use crate::gpu::Ones;

/// Rows of a layer whose graph launch faulted elsewhere beside a second stream (marlin.md §9, row 20).
const FEW: usize = 9;
/// Replays of [`FEW`] rows.
const REPLAYS: usize = 10_000;
/// Replays of the load whose slabs read the same weights one after another, which is where a stage that is filled while lanes
/// still read it shows.
const LONG_REPLAYS: usize = 100;
/// Rows of the work beside.
const BESIDE: usize = 16;
/// Replays between two looks at the result.
const LOOKS: usize = 10;

/// Each form of each unit, replayed beside a busy stream. `KD_TIMING=0` replays a thousandth, since a sanitizer is slow.
pub(in crate::selftest) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let few = !timed();
    let mut outcomes = Vec::new();
    // The load that shows a stage filled too early comes first: it takes a second, the replays of few rows take ten.
    for (rows, replays) in [(None, LONG_REPLAYS), (Some(FEW), REPLAYS)] {
        for row in super::forms(kernels) {
            let case = |seed: u64, rows: Option<usize>| {
                let layer = Layer::new(device, kernels, row, seed)?;
                let Some(form) = layer.form(row) else { return Ok(None) };
                let (mut random, shape) = (Random::new(seed ^ 3), layer.kernels.shape());
                let mut ids = rows.map_or_else(|| ladder(&shape), |rows| spread(&mut random, &shape, rows));
                ids.truncate(form.most_rows() * shape.top_k);
                Case::new(layer, form, 0, random, ids).map(Some)
            };
            let (Some(own), Some(beside)) = (case(seed, rows)?, case(seed ^ 4, Some(BESIDE))?) else {
                continue;
            };
            let replays = if few { replays.div_ceil(1000) } else { replays };
            outcomes.push(replay(&own, &beside, replays)?);
        }
    }
    Ok(outcomes)
}

/// Replays `own` while `beside` runs on a stream of its own.
fn replay(own: &Case, beside: &Case, replays: usize) -> Result<Outcome, Failure> {
    let rows = own.rows();
    let wrong = |what: String| Failure::Wrong { unit: own.unit().to_owned(), rows, what };
    let order: Vec<usize> = (0..rows).collect();
    let mut memory = own.memory(&order)?;
    own.launch(&mut memory)?;
    let first = own.written(&mut memory)?;
    let error = own.judge(&order, &first).map_err(wrong)?;
    let (graph, busy) = (capture(own)?, capture(beside)?);
    for look in 0..LOOKS.min(replays) {
        for _ in 0..replays.div_ceil(LOOKS) {
            busy.launch()?;
            graph.launch()?;
        }
        let (case, memory, _) = graph.resources();
        for (first, now) in first.iter().zip(case.results(memory)?) {
            if let Some(byte) = first_difference(&first.bytes, &now.bytes) {
                let row = byte / first.row_bytes;
                return Err(wrong(format!(
                    "`{}` of row {row} is another in look {look} at {replays} replays beside a busy stream, from byte {}",
                    first.name,
                    byte % first.row_bytes
                )));
            }
        }
    }
    beside.stream().synchronize()?;
    Ok(Outcome { unit: own.unit().to_owned(), rows, error, micros: graph.time(1)?, bytes: own.bytes(rows) })
}

type Running<'a> = Graph<(&'a Case, <Case as Subject>::Memory, Ones)>;

fn capture(case: &Case) -> Result<Running<'_>, KernelError> {
    fn record(
        _: &Stream,
        (case, memory, ones): &mut (&Case, <Case as Subject>::Memory, Ones),
    ) -> Result<(), KernelError> {
        case.launch_afresh(ones, memory)
    }
    let order: Vec<usize> = (0..case.rows()).collect();
    case.stream().capture((case, case.memory(&order)?, case.ones()?), record)
}
