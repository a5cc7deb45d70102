//! `kd plan`: what passes cost on this machine, and which budgets are worth it.

mod measure;
mod report;

use kd_engine::budget::CostModel;

use crate::args::PlanArgs;
use crate::bench::floors::Floors;
use crate::bench::generate::prompts;
use crate::bench::record::Record;
use crate::bench::work;
use crate::{UsageError, calibration, interrupt, models, place};
use measure::{Measured, Meter};

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    if loaded.models.drafter.is_none() {
        let message = "there is no drafter, so there is nothing to plan; name one with --drafter DIR";
        return Err(UsageError(message.to_owned()).into());
    }
    let prompts = prompts(&args.prompts, &loaded)?;
    let pool = place::cpu("kd plan", &args.common)?;
    let floors = Floors::measure(&pool, work::weight_bytes(&loaded.models) as usize);
    if !args.common.quiet {
        say!("kd: {} on the CPU with {} threads", models::describe(&loaded.models), pool.threads());
        say!("kd: {}", floors.describe());
    }
    let mut record = Record::new("seconds of verify and draft passes, and what budgets gain", &pool);
    interrupt::heed();
    let meter = Meter::new(&loaded.models, &prompts, args)?;
    let measured: Measured = meter.run()?;
    let costs = CostModel::seeded(&measured.stored());
    report::print(args, &loaded.models, &floors, &measured, &costs)?;
    if let Some(path) = &args.plot {
        report::plot(path, &measured)?;
    }
    if let Some(path) = &args.calibrate {
        calibration::write(path, &loaded.models, pool.threads(), &measured.stored())?;
    }
    record.set("floors", floors.json());
    report::fill(args, &measured, &costs, &mut record);
    record.write(args.out.out.as_deref())
}
