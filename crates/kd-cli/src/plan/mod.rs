//! `kd plan`: what passes cost on this machine, and which budgets are worth it.

mod measure;
mod report;

use kd_engine::budget::CostModel;

use crate::args::PlanArgs;
use crate::bench::generate::prompts;
use crate::bench::work;
use crate::place::Place;
use crate::{UsageError, calibration, interrupt, models};
use measure::{Measured, Meter};

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let loaded = models::load(&args.common)?;
    if loaded.models.drafter.is_none() {
        let message = "there is no drafter, so there is nothing to plan; name one with --drafter DIR";
        return Err(UsageError(message.to_owned()).into());
    }
    let prompts = prompts(&args.prompts, &loaded)?;
    let place = Place::of(&args.common, &loaded.models)?;
    let floors = place.floors(work::weight_bytes(&loaded.models) as usize)?;
    if !args.common.quiet {
        say!("kd: {} {}", models::describe(&loaded.models), place.describe());
        say!("kd: {}", floors.describe());
    }
    let mut record = place.record("seconds of verify and draft passes, and what budgets gain");
    interrupt::heed();
    let meter = Meter::new(&loaded.models, &place, &prompts, args)?;
    let measured: Measured = meter.run()?;
    let costs = CostModel::seeded(&measured.stored());
    report::print(args, &loaded.models, &floors, &measured, &costs)?;
    if let Some(path) = &args.plot {
        report::plot(path, &measured)?;
    }
    if let Some(path) = &args.calibrate {
        calibration::write(path, &loaded.models, &place.calibrated(), &measured.stored())?;
    }
    record.set("floors", floors.json());
    report::fill(args, &measured, &costs, &mut record);
    record.write(args.out.out.as_deref())
}
