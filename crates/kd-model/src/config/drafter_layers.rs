//! Which drafter layers look back through a window, and which are causal inside the block.

use serde_json::Value;

use super::limit;
use super::section::Section;
use crate::error::ConfigProblem;

/// Attention of one drafter layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrafterLayer {
    /// A row at position p sees the keys at positions above `p - window`; `None`: all of them.
    pub window: Option<usize>,
    /// Whether a row of the block is blind to the rows after it.
    pub causal: bool,
}

/// The rules, in this order:
///
/// * Causality: `is_causal`, else `dflash_config.causal`, for all layers; else exactly the layers that `layer_types`
///   calls `sliding_attention` are causal.
/// * Window: the layers that `layer_types` calls `sliding_attention`; if there is none, `dflash_config.use_swa` windows
///   every layer. Its width is `dflash_config.swa_window_size`, else `sliding_window`.
pub(super) fn read(
    top: &Section<'_>,
    dflash: &Section<'_>,
    num_layers: usize,
    block_size: usize,
) -> Result<Vec<DrafterLayer>, ConfigProblem> {
    let sliding = sliding_layers(top, num_layers)?;
    let any_sliding = sliding.as_ref().is_some_and(|sliding| sliding.contains(&true));
    let window_all = dflash.bool("use_swa")?.unwrap_or(false) && !any_sliding;
    if sliding.is_none() && !window_all {
        refuse_implied_window(top, num_layers)?;
    }
    let width = if any_sliding || window_all { Some(window_width(top, dflash, block_size)?) } else { None };
    let causal = top.bool("is_causal")?.or(dflash.bool("causal")?);
    let sliding = sliding.unwrap_or_else(|| vec![false; num_layers]);
    let layer = |sliding: bool| DrafterLayer {
        window: if sliding || window_all { width } else { None },
        causal: causal.unwrap_or(sliding),
    };
    Ok(sliding.into_iter().map(layer).collect())
}

/// Which layers `layer_types` calls sliding; `None` without the key.
fn sliding_layers(top: &Section<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, ConfigProblem> {
    const KEY: &str = "layer_types";
    let expected = format!("a list of {num_layers} names");
    let names = |value: &Value| -> Option<Vec<String>> {
        let names: Option<Vec<String>> =
            value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect();
        names.filter(|names| names.len() == num_layers)
    };
    let Some(names) = top.read(KEY, &expected, names)? else { return Ok(None) };
    let sliding = |name: &String| match name.as_str() {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        _ => Err(top.unsupported(KEY, "\"full_attention\" and \"sliding_attention\"")),
    };
    names.iter().map(sliding).collect::<Result<_, _>>().map(Some)
}

/// Qwen3 derives sliding layers from `max_window_layers` when `layer_types` is absent; the drafter contract does not,
/// so a file that relies on it must not be read as one without windows.
fn refuse_implied_window(top: &Section<'_>, num_layers: usize) -> Result<(), ConfigProblem> {
    let full_layers = top.size_or_none("max_window_layers", 0..=limit::LAYERS)?.unwrap_or(num_layers);
    if top.bool("use_sliding_window")?.unwrap_or(false) && full_layers < num_layers {
        return Err(top.unsupported("use_sliding_window", "true only together with `layer_types`"));
    }
    Ok(())
}

/// A window shorter than the block would also cut forward.
fn window_width(top: &Section<'_>, dflash: &Section<'_>, block_size: usize) -> Result<usize, ConfigProblem> {
    let range = block_size..=limit::POSITIONS;
    match dflash.size_or_none("swa_window_size", range.clone())? {
        Some(width) => Ok(width),
        None => top.size("sliding_window", range),
    }
}
