//! Comparing an engine's arrays with golden ones.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// Largest absolute difference of float32 arithmetic from the float64 goldens.
pub const MAX_ABS: f64 = 2e-3;
/// Largest difference relative to the whole array (Frobenius).
pub const MAX_REL: f64 = 1e-4;

/// Inputs, and arrays that are only there to judge others.
const NOT_COMPARED: [&str; 13] = [
    "input_ids",
    "prompt_ids",
    "prefix_ids",
    "tokens",
    "parents",
    "steps",
    "router_margin",
    "top1_margin",
    "taps",
    "weight",
    "start",
    "bonus",
    "logits_bf16_dequant",
];

/// Compares every expected array of the file `golden` with the one of the same name in `engine`, and returns how many
/// there were.
///
/// # Errors
/// What is missing or differs, one line each; or that nothing was compared.
///
/// # Panics
/// If a file cannot be read.
pub fn files(golden: &Path, engine: &Path) -> Result<usize, String> {
    let read = |path: &Path| fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (golden, engine) = (read(golden), read(engine));
    let golden = SafeTensors::deserialize(&golden).expect("the golden file");
    let engine = SafeTensors::deserialize(&engine).expect("the engine's file");
    let mut faults = Vec::new();
    let mut compared = 0;
    for (name, expected) in golden.tensors() {
        if NOT_COMPARED.contains(&name.rsplit('.').next().unwrap_or_default()) {
            continue;
        }
        let Ok(found) = engine.tensor(&name) else {
            faults.push(format!("{name}: missing"));
            continue;
        };
        compared += 1;
        if let Err(fault) = array(&expected, &found) {
            faults.push(format!("{name}: {fault}"));
        }
    }
    match faults.as_slice() {
        [] if compared == 0 => Err("nothing was compared".to_owned()),
        [] => Ok(compared),
        faults => Err(faults.join("\n")),
    }
}

fn array(expected: &TensorView<'_>, found: &TensorView<'_>) -> Result<(), String> {
    if expected.shape() != found.shape() {
        return Err(format!("shape {:?}, expected {:?}", found.shape(), expected.shape()));
    }
    if is_integer(expected.dtype()) != is_integer(found.dtype()) {
        return Err(format!("{:?}, expected {:?}", found.dtype(), expected.dtype()));
    }
    if is_integer(expected.dtype()) {
        let (expected, found) = (integers(expected), integers(found));
        let at = expected.iter().zip(&found).position(|(e, f)| e != f);
        return at.map_or(Ok(()), |i| Err(format!("[{i}] is {}, expected {}", found[i], expected[i])));
    }
    floats(&float_values(expected), &float_values(found))
}

/// Compares float arrays within [`MAX_ABS`] and [`MAX_REL`].
///
/// # Errors
/// Another length, no values at all, a value that is not finite, or a difference over a limit.
pub fn floats(expected: &[f32], found: &[f32]) -> Result<(), String> {
    if expected.is_empty() || expected.len() != found.len() {
        return Err(format!("{} values, expected {}, at least one", found.len(), expected.len()));
    }
    if let Some(i) = found.iter().position(|x| !x.is_finite()) {
        return Err(format!("[{i}] is {}", found[i]));
    }
    let differences = expected.iter().zip(found).map(|(&e, &f)| f64::from(f) - f64::from(e));
    let max = differences.clone().fold(0.0, |max: f64, d| max.max(d.abs()));
    let norm = |squares: f64| squares.sqrt().max(1e-30);
    let rel =
        norm(differences.map(|d| d * d).sum()) / norm(expected.iter().map(|&e| f64::from(e).powi(2)).sum());
    if max > MAX_ABS || rel > MAX_REL {
        return Err(format!("max abs {max:.2e} (limit {MAX_ABS}), relative {rel:.2e} (limit {MAX_REL})"));
    }
    Ok(())
}

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::I32 | Dtype::I64)
}

fn integers(view: &TensorView<'_>) -> Vec<i64> {
    match view.dtype() {
        Dtype::I32 => words::<4>(view).map(|b| i64::from(i32::from_le_bytes(b))).collect(),
        Dtype::I64 => words::<8>(view).map(i64::from_le_bytes).collect(),
        other => panic!("{other:?} is no integer type"),
    }
}

/// The values of an F32 array.
///
/// # Panics
/// If it is of another type.
pub fn float_values(view: &TensorView<'_>) -> Vec<f32> {
    assert_eq!(view.dtype(), Dtype::F32);
    words::<4>(view).map(f32::from_le_bytes).collect()
}

fn words<const N: usize>(view: &TensorView<'_>) -> impl Iterator<Item = [u8; N]> {
    view.data().chunks_exact(N).map(|b| b.try_into().expect("N bytes"))
}
