//! `kd bench`: measurements. Each prints a table, names the floor measured in the same run, and can write a result file.

pub(crate) mod chart;
mod cuda;
mod dense;
pub(crate) mod floors;
pub(crate) mod generate;
mod moe;
mod operation;
pub(crate) mod record;
pub(crate) mod samples;
pub(crate) mod table;
pub(crate) mod work;

pub(crate) use cuda::machine;

use cuda::Gpu;

use crate::args::{Bench, BenchDenseArgs, BenchMoeArgs};

pub(crate) fn run(what: &Bench) -> anyhow::Result<()> {
    match what {
        Bench::Generate(args) => generate::run(args),
        Bench::Dense(args) => products(args),
        Bench::Moe(args) => experts(args),
        Bench::Attn(args) => cuda::attn::run(args),
        Bench::Step(args) => cuda::step::run(args),
    }
}

fn products(args: &BenchDenseArgs) -> anyhow::Result<()> {
    match Gpu::choose(&args.on, cuda::dense::PROFILE)? {
        Some(gpu) => args.cpu.none().map_err(Into::into).and_then(|()| cuda::dense::run(args, &gpu)),
        None => dense::run(&args.cpu.resolve(&args.on, args.m.as_deref(), &[])?),
    }
}

fn experts(args: &BenchMoeArgs) -> anyhow::Result<()> {
    let peers = cuda::moe::read_peers(args.peer_json.as_deref())?;
    let for_a_gpu = [
        ("--experts", args.experts.is_some()),
        ("--routing", args.routing.is_some()),
        ("--arithmetic", args.arithmetic.is_some()),
        ("--peer-json", args.peer_json.is_some()),
    ];
    match Gpu::choose(&args.on, cuda::moe::PROFILE)? {
        Some(gpu) => args.cpu.none().map_err(Into::into).and_then(|()| cuda::moe::run(args, &gpu, &peers)),
        None => moe::run(&args.cpu.resolve(&args.on, args.m.as_deref(), &for_a_gpu)?),
    }
}
