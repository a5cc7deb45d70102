//! What every level must keep: rows stand alone, and levels agree.

use half::bf16;

use super::elementwise::{Exponentials, SiluMul};
use super::mix::{Start, mix_at};
use super::*;
use crate::{Bf16Matrix, Int4Matrix, RowList, WeightRows};

fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn bf16_weights(rows: usize, cols: usize) -> Bf16Matrix {
    let values: Vec<bf16> = numbers(7, rows * cols).into_iter().map(bf16::from_f32).collect();
    Bf16Matrix::new(rows, cols, values).unwrap()
}

fn int4_weights(rows: usize, cols: usize) -> Int4Matrix {
    let words: Vec<i32> =
        numbers(8, rows * cols / 8).into_iter().map(|x| x.to_bits().rotate_left(9) as i32).collect();
    let scales: Vec<bf16> = numbers(9, rows * cols / 32).into_iter().map(bf16::from_f32).collect();
    Int4Matrix::new(rows, cols, words, scales).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// `[x, rows of w]`.
fn all_products<W: WeightRows>(level: Level, w: &W, x: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut out = vec![vec![f32::NAN; w.rows()]; x.len()];
    let x: Vec<&[f32]> = x.iter().map(Vec::as_slice).collect();
    let mut rows: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    Inputs::at(level, w, &x).multiply_at(level, w, 0, &mut rows);
    out
}

/// Rows of the weights as f32: one product a column.
fn decoded<W: WeightRows>(w: &W) -> Vec<Vec<f64>> {
    let unit = |k: usize| (0..w.cols()).map(|i| f32::from(u8::from(i == k))).collect::<Vec<f32>>();
    let columns = all_products(Level::Portable, w, &(0..w.cols()).map(unit).collect::<Vec<_>>());
    (0..w.rows()).map(|r| columns.iter().map(|c| f64::from(c[r])).collect()).collect()
}

/// Design §5a: bitwise the same whatever the number of rows, the neighbours and the split of the columns; right at
/// every level, and the same bits at all levels with a fused multiply-add.
fn products_stand_alone<W: WeightRows>(w: &W) {
    let exact = decoded(w);
    let x: Vec<Vec<f32>> = (0..64).map(|m| numbers(100 + m, w.cols())).collect();
    let mut fused: Option<Vec<Vec<u32>>> = None;
    for level in Level::available() {
        let alone: Vec<Vec<u32>> =
            x.iter().map(|x| bits(&all_products(level, w, std::slice::from_ref(x))[0])).collect();
        for (x, alone) in x.iter().zip(&alone) {
            for (w, &got) in exact.iter().zip(alone) {
                let want: f64 = w.iter().zip(x).map(|(&w, &x)| w * f64::from(x)).sum();
                let size: f64 = w.iter().zip(x).map(|(&w, &x)| (w * f64::from(x)).abs()).sum();
                let error = (f64::from(f32::from_bits(got)) - want).abs();
                assert!(error <= 1e-6 * size + 1e-30, "{level:?}: off by {error} of {size}");
            }
        }
        for m in (1..=20).chain([33, 64]) {
            for first in [0, 64 - m] {
                let together = all_products(level, w, &x[first..first + m]);
                for (row, alone) in together.iter().zip(&alone[first..]) {
                    assert_eq!(&bits(row), alone, "{level:?}, {m} rows");
                }
            }
        }
        for (start, width) in [(1, 1), (2, 3), (w.rows() - 5, 5)] {
            let mut part = vec![0.0; width];
            Inputs::at(level, w, &[&x[3]]).multiply_at(level, w, start, &mut [&mut part]);
            assert_eq!(bits(&part), alone[3][start..start + width], "{level:?}, from row {start}");
        }
        if !matches!(level, Level::Portable) {
            assert_eq!(fused.get_or_insert(alone.clone()), &alone, "{level:?}");
        }
    }
}

#[test]
fn bf16_products_do_not_depend_on_their_neighbours() {
    // Shorter than a chunk, a chunk, a tail, several panels with a tail.
    for cols in [1, 20, 32, 96, 121, 2100] {
        products_stand_alone(&bf16_weights(11, cols));
    }
}

#[test]
fn int4_products_do_not_depend_on_their_neighbours() {
    for cols in [32, 128, 160, 2080] {
        products_stand_alone(&int4_weights(10, cols));
    }
}

/// Whole tiles of weights and the edges of others, rows that registers have room for at once and more, bit for bit.
#[test]
fn scaled_sums_are_those_of_products_that_were_stored_first() {
    let w = int4_weights(80, 64);
    let x: Vec<Vec<f32>> = (0..18).map(|m| numbers(200 + m, 64)).collect();
    let x: Vec<&[f32]> = x.iter().map(Vec::as_slice).collect();
    for level in Level::available() {
        let inputs = Inputs::at(level, &w, &x);
        for (rows, (start, width)) in [1, 2, 8, 9, 17]
            .into_iter()
            .flat_map(|rows| [(0, 80), (16, 32), (5, 40), (33, 7)].map(|at| (rows, at)))
        {
            let (factors, held) = (numbers(3, rows), numbers(4, rows * width));
            let (mut want, mut parts, mut got) = (held.clone(), vec![f32::NAN; rows * width], held);
            let mut out: Vec<&mut [f32]> = parts.chunks_mut(width).collect();
            inputs.select(1..1 + rows).multiply_at(level, &w, start, &mut out);
            for ((want, part), &factor) in want.chunks_mut(width).zip(parts.chunks(width)).zip(&factors) {
                add_scaled(want, factor, part);
            }
            let mut out: Vec<&mut [f32]> = got.chunks_mut(width).collect();
            inputs.add_scaled_at(level, 1..1 + rows, &w, start, &factors, &mut out);
            assert_eq!(bits(&got), bits(&want), "{level:?}, {rows} rows, {width} columns from {start}");
        }
    }
}

/// A stream without committed tokens has no keys to score.
#[test]
fn an_empty_list_of_rows_has_no_products() {
    crate::multiply_rows(&RowList(&[]), 0, &[&[1.0; 5]], &mut [&mut []]);
}

#[test]
fn inputs_for_another_form_of_weights_are_refused() {
    let x = numbers(1, 64);
    let inputs = Inputs::new(&int4_weights(4, 64), &[&x]);
    let wrong = || inputs.multiply(&bf16_weights(4, 64), 0, &mut [&mut [0.0; 4]]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(wrong)).is_err());
}

#[test]
fn f32_products_equal_the_dot_product_of_the_rows() {
    for len in [1, 15, 16, 17, 31, 33, 576] {
        let rows: Vec<Vec<f32>> = (0..9).map(|i| numbers(i, len)).collect();
        let keys: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        products_stand_alone(&RowList(&keys));
        let x = numbers(50, len);
        let products = all_products(Level::best(), &RowList(&keys), std::slice::from_ref(&x));
        for (key, product) in keys.iter().zip(&products[0]) {
            assert_eq!(dot(key, &x).to_bits(), product.to_bits(), "length {len}");
        }
    }
}

#[test]
fn mixtures_do_not_depend_on_their_neighbours_and_can_be_continued() {
    for (count, cols, width) in [(1, 40, 33), (7, 160, 128), (40, 64, 64), (3, 5, 4)] {
        let w = bf16_weights(count, cols);
        let a: Vec<Vec<f32>> = (0..25).map(|m| numbers(m, count)).collect();
        let a: Vec<&[f32]> = a.iter().map(Vec::as_slice).collect();
        for level in Level::available() {
            let alone: Vec<Vec<f32>> = a
                .iter()
                .map(|a| {
                    let mut out = vec![0.25; width];
                    // In two calls: the rows so far, then the rest.
                    let half = count / 2;
                    let (first, second) = (w.slice_rows(0..half), w.slice_rows(half..count));
                    mix_at(level, &[&a[..half]], &first, &mut [&mut out], Start::Out);
                    mix_at(level, &[&a[half..]], &second, &mut [&mut out], Start::Out);
                    out
                })
                .collect();
            for m in (1..=13).chain([17, 25]) {
                let mixed = |value, start| {
                    let mut out = vec![vec![value; width]; m];
                    let mut rows: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                    mix_at(level, &a[..m], &w, &mut rows, start);
                    out
                };
                for (out, alone) in mixed(0.25, Start::Out).iter().zip(&alone) {
                    assert_eq!(bits(out), bits(alone), "{level:?}, {m} rows");
                }
                for (new, out) in mixed(f32::NAN, Start::Zero).iter().zip(mixed(0.0, Start::Out)) {
                    assert_eq!(bits(new), bits(&out), "{level:?}, {m} new rows");
                }
            }
            for (a, alone) in a.iter().zip(&alone) {
                for (c, &got) in alone.iter().enumerate() {
                    let term = |(j, &a): (usize, &f32)| f64::from(a) * w.row(j)[c].to_f64();
                    let want = 0.25 + a.iter().enumerate().map(term).sum::<f64>();
                    assert!((f64::from(got) - want).abs() < 1e-5, "{level:?}, column {c}");
                }
            }
        }
    }
}

#[test]
fn exponentials_are_right_at_every_level_and_place() {
    for level in Level::available() {
        let lengths = [1, 15, 16, 17, 100];
        let scores: Vec<Vec<f32>> =
            lengths.map(|len| numbers(3, len).iter().map(|x| x * 30.0).collect()).into();
        let (mut got, mut sums) = (scores.clone(), [0.0; 5]);
        let rows = &mut got.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>();
        level.run(Exponentials { rows, scale: 0.5, sums: &mut sums });
        for ((scores, got), sum) in scores.iter().zip(&got).zip(sums) {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0.0;
            for (&score, &got) in scores.iter().zip(got) {
                let want = f64::from(0.5 * score - 0.5 * max).exp();
                assert!((f64::from(got) / want - 1.0).abs() < 2.5e-7, "{level:?}: e^{}", score - max);
                total += want;
            }
            assert!((f64::from(sum) / total - 1.0).abs() < 1e-6, "{level:?}");
        }
        let (mut scores, mut whole) = (numbers(1, 20), numbers(1, 20));
        scores[17] = f32::NAN;
        let rows = &mut [&mut scores[..], &mut whole];
        level.run(Exponentials { rows, scale: 1.0, sums: &mut sums });
        assert!(sums[0].is_nan(), "{level:?}: NaN must not be dropped");
        assert!(sums[1].is_finite(), "{level:?}: NaN stays in its row");
    }
}

#[test]
fn silu_is_right_at_every_level_and_keeps_nan() {
    for level in Level::available() {
        let gate: Vec<f32> = numbers(5, 77).iter().map(|x| x * 120.0).collect();
        let up = numbers(6, 77);
        let mut got = gate.clone();
        level.run(SiluMul(&mut got, &up));
        for ((&z, &up), &got) in gate.iter().zip(&up).zip(&got) {
            let want = f64::from(z) / (1.0 + f64::from(-z).exp()) * f64::from(up);
            assert!(
                (f64::from(got) - want).abs() <= 1e-6 * want.abs() + 1e-35,
                "{level:?}: silu({z}) · {up}"
            );
        }
        let mut gate = [1.0, f32::NAN, -200.0, 200.0];
        level.run(SiluMul(&mut gate, &[1.0; 4]));
        assert!(gate[1].is_nan() && gate[3] == 200.0 && gate[2].abs() < 1e-30, "{level:?}: {gate:?}");
    }
}
