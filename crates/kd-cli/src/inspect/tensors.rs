//! The tensors of a checkpoint: gathered by kind, and compared with what the configuration calls for.

use std::collections::{BTreeMap, HashMap};

use kd_model::TensorSpec;
use kd_model::checkpoint::{Checkpoint, VISION_PREFIXES};

use super::report::{Group, Report};

/// How many problems of one kind are listed one by one.
const LISTED: usize = 8;

/// Gathers tensors whose names differ in numbers only.
pub(super) fn groups(checkpoint: &Checkpoint) -> Vec<Group> {
    let mut groups: BTreeMap<(String, &str, &[usize]), (u64, u64)> = BTreeMap::new();
    for (_, tensor) in checkpoint.iter() {
        let key = (pattern(tensor.name), tensor.dtype.name(), tensor.shape);
        let (count, bytes) = groups.entry(key).or_default();
        *count += 1;
        *bytes += tensor.bytes.len() as u64;
    }
    let group = |((name, dtype, shape), (count, bytes)): ((String, &str, &[usize]), (u64, u64))| Group {
        name,
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        count,
        bytes,
    };
    groups.into_iter().map(group).collect()
}

/// A name with `*` for every part that is a number.
fn pattern(name: &str) -> String {
    let numbered = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if numbered(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Adds what is missing, mis-shaped or left over to `report`.
pub(super) fn compare(checkpoint: &Checkpoint, specs: &[TensorSpec], report: &mut Report) {
    let expected: HashMap<&str, &TensorSpec> = specs.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    let (mut wrong, mut left) = (Vec::new(), Vec::new());
    for (file, tensor) in checkpoint.iter() {
        let file = file.display();
        match expected.get(tensor.name) {
            Some(spec) if spec.dtypes.contains(&tensor.dtype) && spec.shape == tensor.shape => {}
            Some(spec) => wrong.push(format!(
                "{file}: tensor `{}` is {} {:?}, expected {} {:?}",
                tensor.name, tensor.dtype, tensor.shape, spec.dtypes[0], spec.shape
            )),
            None if VISION_PREFIXES.iter().any(|prefix| tensor.name.starts_with(prefix)) => {
                report.skipped += 1
            }
            None => left.push(format!("{file}: tensor `{}` has no place in this model", tensor.name)),
        }
    }
    let dir = checkpoint.dir().display();
    let missing = specs.iter().filter(|spec| !checkpoint.contains(&spec.name)).map(|spec| {
        format!("{dir}: tensor `{}` is missing, expected {} {:?}", spec.name, spec.dtypes[0], spec.shape)
    });
    for problems in [missing.collect(), wrong, left] {
        list(problems, &mut report.refused);
    }
}

fn list(problems: Vec<String>, refused: &mut Vec<String>) {
    let more = problems.len().saturating_sub(LISTED);
    refused.extend(problems.into_iter().take(LISTED));
    if more > 0 {
        refused.push(format!("… and {more} more of this kind"));
    }
}
