//! Packed experts: shapes, scales and the repeated shape are checked, and an unpacked expert is refused.

use std::path::Path;

use half::bf16;
use kd_model::Part;
use kd_model::checkpoint::{Checkpoint, CheckpointError};
use kd_tensor::dtype::DType;
use kd_tensor::{Int4Matrix, WeightRows};
use tempfile::TempDir;

use crate::checkpoint::{Edited, assert_says, copy, rewrite};
use crate::common::golden;

/// In noqlora, 96 wide experts on a hidden size of 128.
const MODULE: &str = "language_model.model.layers.2.mlp.experts.0.up_proj";
const SHARD: &str = "model-00003-of-000007.safetensors";

fn take(dir: &Path) -> Result<Int4Matrix, CheckpointError> {
    take_part(dir, &Part::Whole)
}

fn take_part(dir: &Path, part: &Part) -> Result<Int4Matrix, CheckpointError> {
    Checkpoint::open(dir).expect("opens").take_int4(MODULE, [96, 128], part)
}

/// A noqlora checkpoint with one tensor of the module changed.
fn spoilt(suffix: &str, mut edit: impl FnMut(&mut Edited)) -> TempDir {
    let dir = copy("noqlora/checkpoint");
    let tensor = format!("{MODULE}.{suffix}");
    let mut seen = false;
    rewrite(&dir.path().join(SHARD), |name, mut at| {
        if name == tensor {
            seen = true;
            edit(&mut at);
        }
        Some((name.to_owned(), at))
    });
    assert!(seen, "{tensor} is not in {SHARD}");
    dir
}

fn refusal(dir: &TempDir, words: &[&str]) -> CheckpointError {
    let error = take(dir.path()).expect_err("must be refused");
    assert_says(&error, words);
    assert_says(&error, &[SHARD]);
    error
}

#[test]
fn golden_experts_have_packed_words_and_scales() {
    let int4 = take(&golden("noqlora/checkpoint")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((int4.rows(), int4.cols()), (96, 128));
    // Row 1 of expert 0 begins with a group whose scale is 0.
    assert_eq!((int4.scales(1).len(), int4.scales(1)[0]), (4, bf16::ZERO));
}

#[test]
fn weight_shape_as_i64_is_the_same() {
    let dir = spoilt("weight_shape", |at| {
        at.dtype = DType::I64;
        at.bytes = [96i64, 128].iter().flat_map(|dim| dim.to_le_bytes()).collect();
    });
    assert_eq!(take(dir.path()).unwrap_or_else(|error| panic!("{error}")).cols(), 128);
}

#[test]
fn a_stale_weight_shape_is_refused() {
    // Fault 4: `weight_shape` of a sharded weight that still speaks of another one.
    let dir = spoilt("weight_shape", |at| {
        at.bytes = [96i32, 64].iter().flat_map(|dim| dim.to_le_bytes()).collect()
    });
    refusal(&dir, &["weight_shape` element 1 is 64, expected 128"]);
    let dir = spoilt("weight_shape", |at| {
        at.bytes = [-96i32, 128].iter().flat_map(|dim| dim.to_le_bytes()).collect()
    });
    refusal(&dir, &["weight_shape` element 0 is -96, expected 96"]);
    let dir = spoilt("weight_shape", |at| (at.dtype, at.bytes) = (DType::F32, vec![0; 8]));
    refusal(&dir, &["weight_shape` is F32 [2], expected I32 or I64 [2]"]);
}

#[test]
fn scales_of_another_group_size_are_refused() {
    // Fault 3: a kernel that infers the group from the scale's shape takes a wrong one.
    let dir = spoilt("weight_scale", |at| {
        at.shape = vec![96, 2];
        at.bytes.truncate(96 * 2 * 2);
    });
    let error = refusal(&dir, &["weight_scale` is BF16 [96, 2], expected BF16 [96, 4]"]);
    assert!(matches!(error, CheckpointError::Mismatch { .. }));
    let dir = spoilt("weight_scale", |at| at.shape = vec![4, 96]);
    refusal(&dir, &["weight_scale` is BF16 [4, 96], expected BF16 [96, 4]"]);
}

#[test]
fn scales_of_another_type_are_refused() {
    // Fault 5: BF16 scales read as F16.
    let dir = spoilt("weight_scale", |at| at.dtype = DType::F16);
    refusal(&dir, &["weight_scale` is F16 [96, 4], expected BF16 [96, 4]"]);
}

#[test]
fn packed_words_of_another_shape_or_type_are_refused() {
    let dir = spoilt("weight_packed", |at| at.shape = vec![16, 96]);
    refusal(&dir, &["weight_packed` is I32 [16, 96], expected I32 [96, 16]"]);
    let dir = spoilt("weight_packed", |at| at.dtype = DType::U32);
    refusal(&dir, &["weight_packed` is U32 [96, 16], expected I32 [96, 16]"]);
}

#[test]
fn scales_that_are_not_finite_are_refused() {
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        let dir = spoilt("weight_scale", |at| at.bytes[2 * 7..][..2].copy_from_slice(&bad.to_le_bytes()));
        let error = refusal(&dir, &["weight_scale` element 7", "finite"]);
        assert!(matches!(error, CheckpointError::Value { index: 7, .. }));
    }
}

/// Element 7 is the last scale of row 1. A rank answers for its own part, under the index of the whole tensor.
#[test]
fn scales_are_looked_at_by_the_rank_that_uses_them() {
    let nan = bf16::NAN.to_le_bytes();
    let dir = spoilt("weight_scale", |at| at.bytes[2 * 7..][..2].copy_from_slice(&nan));
    for part in [Part::Rows(0..32), Part::Columns(96..128)] {
        let error = take_part(dir.path(), &part).expect_err("this rank uses it");
        assert_says(&error, &["weight_scale` element 7 is NaN"]);
    }
    for part in [Part::Rows(32..64), Part::Columns(0..96)] {
        let int4 = take_part(dir.path(), &part).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(int4.rows() * int4.cols(), if int4.rows() == 32 { 32 * 128 } else { 96 * 96 });
    }
}

#[test]
fn an_unquantised_expert_is_refused_by_name() {
    let dir = copy("noqlora/checkpoint");
    let index = dir.path().join("model.safetensors.index.json");
    rewrite(&dir.path().join(SHARD), |name, at| {
        let packed = name.strip_prefix(MODULE).is_some_and(|rest| rest.starts_with(".weight_packed"));
        if packed {
            let plain = Edited { dtype: DType::BF16, shape: vec![96, 128], bytes: vec![0; 96 * 128 * 2] };
            return Some((format!("{MODULE}.weight"), plain));
        }
        Some((name.to_owned(), at))
    });
    let text = std::fs::read_to_string(&index).expect("index");
    std::fs::write(&index, text.replace(&format!("{MODULE}.weight_packed"), &format!("{MODULE}.weight")))
        .expect("written");
    let error = refusal(&dir, &[&format!("`{MODULE}.weight`"), "unquantised as BF16", "weight_packed"]);
    assert!(matches!(error, CheckpointError::Unquantized { .. }));
}

#[test]
fn widths_that_split_a_group_are_refused() {
    let checkpoint = Checkpoint::open(golden("noqlora/checkpoint")).expect("opens");
    let error = checkpoint.take_int4(MODULE, [96, 48], &Part::Whole).expect_err("one and a half groups");
    assert_says(&error, &[MODULE, "48", "32"]);
}
