//! `kd bench moe` on a GPU: one layer of routed INT4 experts, from grouping to combine.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Context;
use kd_moe::bench::{Options, Peer, ROWS, RoutingKind, peers, run as measure, shape, svg};

use super::{Gpu, draw, machine};
use crate::args::BenchMoeArgs;
use crate::bench::record::Record;
use crate::{UsageError, input};

/// The profile unless another is asked for.
pub(in crate::bench) const PROFILE: &str = "k26-tp1";
/// Replays of each graph at steady state.
const REPLAYS: usize = 15;
/// Seed of weights, rows and routings.
const SEED: u64 = 1;

pub(in crate::bench) fn run(args: &BenchMoeArgs, gpu: &Gpu, peers: &[Peer]) -> anyhow::Result<()> {
    let shape = shape(&gpu.kernels)?;
    let experts = args.experts.map(|experts| experts.get());
    if let Some(experts) = experts.filter(|experts| !(shape.top_k..=shape.experts).contains(experts)) {
        return Err(UsageError(format!(
            "--experts {experts}: a layer of {} has {} to {} experts",
            gpu.profile, shape.top_k, shape.experts
        ))
        .into());
    }
    let rows = args.m.as_ref().map_or(ROWS.to_vec(), |rows| rows.iter().map(|rows| rows.get()).collect());
    let routing = args.routing.map_or(RoutingKind::Uniform, RoutingKind::from);
    let options = Options { rows, routing, experts, replays: REPLAYS, seed: SEED };
    let report = measure(&gpu.device, &gpu.kernels, shape, &options)?;
    write!(stdout(), "{}", report.table(peers))?;
    let mut record =
        Record::on("one layer of INT4 experts, grouping to combine", machine(&gpu.device, &gpu.kernels));
    record.set("profile", gpu.profile.as_str());
    report.fields(peers).into_iter().for_each(|(key, value)| record.set(key, value));
    let out = args.on.out.out.as_deref();
    record.write(out)?;
    draw(out, &svg(&report, peers))
}

/// The peers of `--peer-json`, read before anything is measured.
pub(in crate::bench) fn read_peers(path: Option<&Path>) -> anyhow::Result<Vec<Peer>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let form = || format!("{} is not {{\"name\": {{\"rows\": microseconds}}}}", path.display());
    peers(&input::text(path)?).with_context(form)
}
