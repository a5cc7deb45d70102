//! The experts' kernels against [`Experts::forward`](crate::Experts::forward), in every form.

mod case;
mod forms;
mod layer;
mod noise;
mod replays;
mod routings;

use kd_kernels::bundle::Row;
use kd_kernels::selftest::{Failure, Outcome, Random, units, verify};
use kd_kernels::{Device, Kernels};

use case::Case;
pub(super) use forms::check as check_forms;
use layer::Layer;
pub(super) use replays::check as check_replays;
use routings::{PATTERNS, spread};

/// A unit of every form: its only one, or the first product.
fn forms(kernels: &Kernels) -> impl Iterator<Item = &Row> {
    ["moe_few", "moe_gate_up", "moe_gate_up_many", "moe_gate_up_wgmma"]
        .into_iter()
        .flat_map(|family| units(kernels, family))
}

/// Every form at `rows` rows that choose at random.
pub(super) fn check(
    device: &Device,
    kernels: &Kernels,
    rows: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in forms(kernels) {
        let layer = Layer::new(device, kernels, row, seed)?;
        let Some(form) = layer.form(row) else { continue };
        let rows: Vec<usize> = rows.iter().copied().filter(|rows| *rows <= form.most_rows()).collect();
        let Some(most) = rows.iter().copied().max() else { continue };
        let mut random = Random::new(seed ^ 1);
        let ids = spread(&mut random, &layer.kernels.shape(), most);
        let case = Case::new(layer, form, 0, random, ids)?;
        outcomes.extend(verify(&case, &rows)?);
    }
    Ok(outcomes)
}

/// Loads beyond [`check`]: whatever the routing puts on one expert or on other ranks, and row counts around the edges of slabs.
pub(super) fn check_routings(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    for row in forms(kernels) {
        for pattern in PATTERNS {
            let layer = Layer::new(device, kernels, row, seed)?;
            let Some(form) = layer.form(row) else { continue };
            let (mut random, shape) = (Random::new(seed ^ 2), layer.kernels.shape());
            let mut ids = (pattern.ids)(&mut random, &shape);
            ids.truncate(form.most_rows() * shape.top_k);
            let most = ids.len() / shape.top_k;
            let case = Case::new(layer, form, pattern.first_expert(&shape), random, ids)?;
            let named = |failure: Failure| match failure {
                Failure::Wrong { unit, rows, what } => {
                    Failure::Wrong { unit, rows, what: format!("{}: {what}", pattern.name) }
                }
                other => other,
            };
            let rows: Vec<usize> = [1, 3, 8, 40, most].into_iter().filter(|rows| *rows <= most).collect();
            outcomes.extend(verify(&case, &rows).map_err(named)?);
        }
    }
    Ok(outcomes)
}
