//! `kd bench dense`: products with bf16 weights of Kimi K2.6's sizes.

use std::hint::black_box;

use half::bf16;
use kd_tensor::{Bf16Matrix, Matrix, linear};

use super::floors::Floors;
use super::operation::{Operation, measure};
use super::record::Record;
use super::work::Work;
use crate::args::{BenchOperationArgs, RankArgs};
use crate::models;

/// Name, inputs, outputs: query and key/value down, query up, attention output, shared expert's down.
const SHAPES: [(&str, usize, usize); 4] = [
    ("q_a + kv_a 7168 → 2112", 7168, 2112),
    ("q_b 1536 → 12288", 1536, 12288),
    ("o 8192 → 7168", 8192, 7168),
    ("down 2048 → 7168", 2048, 7168),
];
/// Weights of all copies of one shape together, in bytes: far more than a cache.
const WORKING_SET: usize = 256 << 20;

pub(super) fn run(args: &BenchOperationArgs) -> anyhow::Result<()> {
    let pool = models::pool(args.threads, RankArgs::ONE)?;
    let record =
        Record::new("dense products with bf16 weights at Kimi K2.6's sizes, weights from memory", &pool);
    let floors = Floors::measure(&pool, WORKING_SET);
    let weights: Vec<Vec<Bf16Matrix>> = SHAPES
        .iter()
        .map(|&(_, inputs, outputs)| {
            let copies = WORKING_SET.div_ceil(2 * inputs * outputs);
            (0..copies as u32).map(|copy| weight(outputs, inputs, copy)).collect()
        })
        .collect::<Result<_, _>>()?;
    let mut operations = Vec::new();
    for (&(name, inputs, outputs), copies) in SHAPES.iter().zip(&weights) {
        for rows in args.rows.iter().map(|rows| rows.get()) {
            let x = super::moe::inputs(rows, inputs)?;
            let pool = &pool;
            let size = (inputs * outputs) as f64;
            operations.push(Operation {
                name: name.to_owned(),
                rows,
                work: Work { multiply_adds: rows as f64 * size, bytes: 2.0 * size },
                copies: copies.len(),
                run: Box::new(move |n| {
                    black_box::<Matrix>(linear(pool, x.view(), &copies[n % copies.len()]));
                }),
            });
        }
    }
    measure(args, &pool, &floors, record, operations)
}

fn weight(rows: usize, cols: usize, seed: u32) -> Result<Bf16Matrix, kd_tensor::ShapeError> {
    let mut next = super::moe::noise(seed);
    let values: Vec<bf16> = (0..rows * cols).map(|_| bf16::from_f32(next() * 0.02)).collect();
    Bf16Matrix::new(rows, cols, values)
}
