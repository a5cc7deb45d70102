//! `kd bench moe`: grouped INT4 products of routed experts of Kimi K2.6's size.

use std::hint::black_box;

use half::bf16;
use kd_moe::{Expert, Experts, Groups, Hidden, Routing};
use kd_tensor::{Int4Matrix, Matrix, ShapeError};

use super::floors::Floors;
use super::operation::{Operation, measure};
use super::record::Record;
use super::work::Work;
use crate::args::{BenchOperationArgs, RankArgs};
use crate::models;

const EXPERTS: usize = 8;
const HIDDEN: usize = 7168;
const WIDTH: usize = 2048;
/// Layers that take turns, so that weights come from memory.
const LAYERS: usize = 3;
/// Bytes of an INT4 weight with its share of a scale.
const INT4: f64 = 9.0 / 16.0;

pub(super) fn run(args: &BenchOperationArgs) -> anyhow::Result<()> {
    let pool = models::pool(args.threads, RankArgs::ONE)?;
    let record = Record::new(
        "grouped INT4 products of eight experts of Kimi K2.6's size, each with so many rows, weights from memory",
        &pool,
    );
    let size = (EXPERTS * WIDTH * HIDDEN) as f64;
    let floors = Floors::measure(&pool, (LAYERS as f64 * 3.0 * size * INT4) as usize);
    let layers: Vec<Experts> = (0..LAYERS as u32).map(layer).collect::<anyhow::Result<_>>()?;
    let mut operations = Vec::new();
    for rows in args.rows.iter().map(|rows| rows.get()) {
        // Every row goes through all eight, so each expert has as many rows.
        let ids: Vec<u32> = (0..rows).flat_map(|_| 0..EXPERTS as u32).collect();
        let weights = vec![1.0; ids.len()];
        let routing = Routing { top_k: EXPERTS, ids, weights, scores: Matrix::zeros(rows, EXPERTS) };
        let groups = Groups::new(&routing, EXPERTS);
        let x = inputs(rows, HIDDEN)?;
        let (pool, layers, down_groups) = (&pool, &layers, groups.clone());
        let hidden = layers[0].gate_up(pool, x.view(), &groups);
        let work = |matrices: f64| Work {
            multiply_adds: matrices * rows as f64 * size,
            bytes: matrices * size * INT4,
        };
        operations.push(Operation {
            name: "gate_up 7168 → 2 × 2048".to_owned(),
            rows,
            work: work(2.0),
            copies: LAYERS,
            run: Box::new(move |n| {
                black_box::<Hidden>(layers[n % LAYERS].gate_up(pool, x.view(), &groups));
            }),
        });
        operations.push(Operation {
            name: "down 2048 → 7168".to_owned(),
            rows,
            work: work(1.0),
            copies: LAYERS,
            run: Box::new(move |n| {
                black_box::<Matrix>(layers[n % LAYERS].down(pool, rows, &hidden, &routing, &down_groups));
            }),
        });
    }
    measure(args, &pool, &floors, record, operations)
}

fn layer(seed: u32) -> anyhow::Result<Experts> {
    let expert = |e: u32| -> anyhow::Result<Expert> {
        let seed = 100 * seed + 3 * e;
        Ok(Expert {
            gate: int4(WIDTH, HIDDEN, seed)?,
            up: int4(WIDTH, HIDDEN, seed + 1)?,
            down: int4(HIDDEN, WIDTH, seed + 2)?,
        })
    };
    Ok(Experts((0..EXPERTS as u32).map(expert).collect::<anyhow::Result<_>>()?))
}

fn int4(rows: usize, cols: usize, seed: u32) -> anyhow::Result<Int4Matrix> {
    let mut next = noise(seed);
    let words: Vec<i32> = (0..rows * cols / 8).map(|_| next().to_bits().rotate_left(9) as i32).collect();
    Ok(Int4Matrix::new(rows, cols, words, vec![bf16::from_f32(0.01); rows * cols / 32])?)
}

/// Rows of noise in −1 … 1.
pub(super) fn inputs(rows: usize, cols: usize) -> Result<Matrix, ShapeError> {
    let mut next = noise(99);
    Matrix::from_vec(rows, cols, (0..rows * cols).map(|_| next()).collect())
}

/// Uniform numbers in −1 … 1, the same for the same seed.
pub(super) fn noise(seed: u32) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
}
