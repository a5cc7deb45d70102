//! Rows of values and of weights at both ends of what numbers can be: what folded scales must bring to f16 and back.

use half::bf16;
use kd_kernels::selftest::{Failure, Outcome, Random, units, verify};
use kd_kernels::{Device, Kernels};
use kd_tensor::Int4Matrix;

use super::case::Case;
use super::layer::Layer;
use super::routings::spread;
use crate::Expert;
use crate::gpu::Shape;

/// Rows of a launch.
const ROWS: [usize; 4] = [1, 3, 8, 40];

/// All folded forms with experts and rows of all sizes, each row's error on its own.
pub(in crate::selftest) fn check(
    device: &Device,
    kernels: &Kernels,
    _: &[usize],
    seed: u64,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::new();
    let families = ["moe_gate_up_folded", "moe_gate_up_folded_wgmma"];
    for row in families.into_iter().flat_map(|family| units(kernels, family)) {
        let layer = Layer::of(device, kernels, row, seed, expert)?;
        let Some(form) = layer.form(row) else { continue };
        let mut random = Random::new(seed ^ 6);
        let ids = spread(&mut random, &layer.kernels.shape(), ROWS.into_iter().max().unwrap_or_default());
        outcomes.extend(verify(&Case::extreme(layer, form, random, ids, value)?, &ROWS)?);
    }
    Ok(outcomes)
}

/// What value `column` of input row `row` is multiplied by: rows of 2^-50 and of 2^40, a value far above the others of its row, a row
/// of zeros, neighbours of very different size.
fn value(row: usize, column: usize) -> f32 {
    match row {
        0 => 2f32.powi(-50),
        1 => 2f32.powi(40),
        2 if column == 7 => 2f32.powi(12),
        4 => 0.0,
        6 if column % 2 == 1 => 2f32.powi(-20),
        31 => 2f32.powi(-30),
        _ => 1.0,
    }
}

/// An expert whose rows differ by up to 2^12 and have groups of scales far below the others, negative ones and zeros; one row in
/// 31 is all zeros.
fn expert(random: &mut Random, shape: &Shape) -> Result<Expert, kd_tensor::ShapeError> {
    let mut matrix = |rows: usize, cols: usize| {
        let words: Vec<i32> = (0..rows * cols / 8).map(|_| random.bits() as i32).collect();
        let mut scale = |row: usize, group: usize| {
            let sign = if group % 3 == 1 { -1.0 } else { 1.0 };
            let binades = match group % 13 {
                _ if row % 31 == 30 => return bf16::ZERO,
                4 => return bf16::ZERO,
                6 => -12,
                9 => -7,
                _ => 0,
            };
            let of_row = (row * 7 % 13) as i32 - 6;
            let digits = 0.25 / (cols as f32).sqrt() * (1.0 + 0.5 * random.unit());
            bf16::from_f32(sign * digits * 2f32.powi(binades + of_row))
        };
        let scales: Vec<bf16> =
            (0..rows * cols / 32).map(|i| scale(i / (cols / 32), i % (cols / 32))).collect();
        Int4Matrix::new(rows, cols, words, scales)
    };
    let (hidden, width) = (shape.hidden, shape.width);
    Ok(Expert { gate: matrix(width, hidden)?, up: matrix(width, hidden)?, down: matrix(hidden, width)? })
}
