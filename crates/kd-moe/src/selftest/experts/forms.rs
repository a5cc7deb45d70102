//! One layer in every form: the same bits.

use kd_kernels::selftest::{Failure, Outcome, Random, Subject, first_difference, units};
use kd_kernels::{Device, Kernels};

use super::case::Case;
use super::layer::Layer;
use super::routings::spread;
use crate::gpu::{Arithmetic, Form};

/// Rows at the edges of slabs, of what a few rows are, of one slab more, and so many that experts have several slabs and draws,
/// up to the most of a run.
const ROWS: [usize; 14] = [1, 2, 7, 8, 9, 33, 63, 64, 130, 300, 600, 1024, 4095, 4096];

/// Every form that a shape has against the first of its arithmetic that takes so many rows, with a row that holds a NaN and a padded
/// one among the others.
pub(in crate::selftest) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let Some(row) = units(kernels, "moe_gate_up").next() else { return Ok(outcomes) };
    let layer = Layer::new(device, kernels, row, seed)?;
    let (mut random, shape) = (Random::new(seed ^ 5), layer.kernels.shape());
    let forms: Vec<Form> = Form::ALL.into_iter().filter(|form| layer.kernels.has(*form)).collect();
    let ids = spread(&mut random, &shape, ROWS.into_iter().max().unwrap_or_default());
    let mut case = Case::new(layer, Form::Narrow, 0, random, ids)?;
    for (rows, arithmetic) in ROWS.into_iter().flat_map(|rows| Arithmetic::ALL.map(|one| (rows, one))) {
        let order: Vec<usize> = (0..rows).collect();
        let mut first = None;
        for form in forms.iter().filter(|form| form.arithmetic() == arithmetic && rows <= form.most_rows()) {
            case = case.in_form(*form);
            let wrong = |what| Failure::Wrong { unit: form.name().to_owned(), rows, what };
            let mut memory = case.memory(&order)?;
            case.launch(&mut memory)?;
            let now = case.written(&mut memory)?;
            let error = case.judge(&order, &now).map_err(wrong)?;
            outcomes.push(Outcome {
                unit: form.name().to_owned(),
                rows,
                error,
                micros: 0.0,
                bytes: case.bytes(rows),
            });
            let (name, first) = first.get_or_insert_with(|| (form.name(), now.clone()));
            for (first, now) in first.iter().zip(&now) {
                if let Some(byte) = first_difference(&first.bytes, &now.bytes) {
                    let (row, byte) = (byte / first.row_bytes, byte % first.row_bytes);
                    return Err(wrong(format!("row {row} differs from form {name}, from byte {byte}")));
                }
            }
        }
    }
    Ok(outcomes)
}
