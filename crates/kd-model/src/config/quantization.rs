//! `quantization_config`: compressed-tensors, packed symmetric INT4 in groups of 32, and nothing else.

use serde_json::{Value, json};

use super::section::Section;
use crate::error::ConfigProblem;

/// Columns that share one scale.
pub const GROUP_SIZE: usize = 32;

/// A `quantization_config` that this engine implements.
///
/// Which tensors are packed is decided by the tensors that a checkpoint holds, never by `ignore`: the list comes in
/// several spellings (literals, regular expressions, with and without a prefix) and leaves out the router, which is
/// not packed either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Modules that the writer left unpacked, as written.
    pub ignore: Vec<String>,
}

/// Reads the `quantization_config` of one object, if it has one.
pub(super) fn read(place: &Section<'_>) -> Result<Option<Quantization>, ConfigProblem> {
    let Some(config) = place.section("quantization_config")? else { return Ok(None) };
    required(&config, "quant_method", &json!("compressed-tensors"))?;
    required(&config, "format", &json!("pack-quantized"))?;
    config.only("quantization_status", &[json!("compressed")])?;
    for key in ["kv_cache_scheme", "sparsity_config", "transform_config"] {
        config.never(key)?;
    }
    let groups = config
        .section("config_groups")?
        .ok_or_else(|| config.missing("config_groups", "an object with at least one group"))?;
    if groups.keys().next().is_none() {
        return Err(config.invalid("config_groups", "at least one group"));
    }
    for name in groups.keys() {
        let group = groups.section(name)?.ok_or_else(|| groups.missing(name, "an object"))?;
        check_group(&group)?;
    }
    let strings = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|entry| entry.as_str().map(str::to_owned)).collect()
    };
    let ignore = config.read("ignore", "a list of names", strings)?.unwrap_or_default();
    Ok(Some(Quantization { ignore }))
}

fn check_group(group: &Section<'_>) -> Result<(), ConfigProblem> {
    group.only("format", &[json!("pack-quantized")])?;
    group.never("input_activations")?;
    group.never("output_activations")?;
    let weights = group.section("weights")?.ok_or_else(|| group.missing("weights", "an object"))?;
    required(&weights, "num_bits", &json!(4))?;
    required(&weights, "type", &json!("int"))?;
    required(&weights, "strategy", &json!("group"))?;
    required(&weights, "group_size", &json!(GROUP_SIZE))?;
    required(&weights, "symmetric", &json!(true))?;
    for key in ["dynamic", "actorder", "block_structure"] {
        weights.never(key)?;
    }
    Ok(())
}

fn required(section: &Section<'_>, key: &str, supported: &Value) -> Result<(), ConfigProblem> {
    if section.get(key).is_none() {
        return Err(section.missing(key, &supported.to_string()));
    }
    section.only(key, std::slice::from_ref(supported))
}
