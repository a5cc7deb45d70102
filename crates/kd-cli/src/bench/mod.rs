//! `kd bench`: measurements. Each prints a table, names the floor measured in the same run, and can write a result file.

pub(crate) mod chart;
mod dense;
pub(crate) mod floors;
pub(crate) mod generate;
mod moe;
mod operation;
pub(crate) mod record;
pub(crate) mod samples;
pub(crate) mod table;
pub(crate) mod work;

use crate::args::Bench;

pub(crate) fn run(what: &Bench) -> anyhow::Result<()> {
    match what {
        Bench::Generate(args) => generate::run(args),
        Bench::Dense(args) => dense::run(args),
        Bench::Moe(args) => moe::run(args),
    }
}
