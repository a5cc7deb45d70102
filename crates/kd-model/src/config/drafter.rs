//! The DFlash drafter's configuration. Everything that shapes a draft comes from here, nothing is assumed.

use std::path::Path;

use serde_json::{Value, json};

use super::drafter_layers::{self, DrafterLayer};
use super::rope::{self, RopeConfig};
use super::section::{Section, agreed, load_required};
use super::{CONFIG_FILE, TargetConfig, limit};
use crate::error::{ConfigError, ConfigProblem};

/// Longest block: a tree as deep as that has no use, and positions of a block stay small numbers.
const MAX_BLOCK: usize = 256;

/// A DFlash drafter: Qwen3-style layers that denoise one block of masks at once. Fields bear the published keys' names.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of the MLPs.
    pub intermediate_size: usize,
    /// Query heads; a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Values of one head, all of them rotated; even.
    pub head_dim: usize,
    /// Token ids of the target.
    pub vocab_size: usize,
    /// Rows of the output head: `vocab_size`, or fewer when the drafter knows only some of the target's ids.
    pub draft_vocab_size: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f64,
    /// Longest context in tokens.
    pub max_position_embeddings: usize,
    /// Rotary positions, of the pairs `(i, i + head_dim / 2)`.
    pub rope: RopeConfig,
    /// Rows of a block: the bonus token and `block_size - 1` masks. Their number conditions every prediction.
    pub block_size: usize,
    /// Id that fills the rows to be predicted.
    pub mask_token_id: u32,
    /// Target layers (from 0) whose outputs are fused, in the order in which they are concatenated.
    pub target_layer_ids: Vec<usize>,
    /// Layers of the target that the drafter was trained for, if the file says so.
    pub num_target_layers: Option<usize>,
    /// Width of the target's residual stream.
    pub target_hidden_size: usize,
    /// Attention of each layer.
    pub layers: Vec<DrafterLayer>,
    /// Keys of `dflash_config` that this engine does not know and does without: worth a notice.
    pub ignored_keys: Vec<String>,
}

impl DrafterConfig {
    /// Reads `config.json` of `dir`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the file, the key, its value and what was expected.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let file = dir.join(CONFIG_FILE);
        Self::parse(&load_required(&file)?).map_err(|problem| ConfigError::Key { file, problem })
    }

    /// Reads a parsed `config.json`.
    ///
    /// # Errors
    /// [`ConfigProblem`] naming the key, its value and what was expected.
    pub fn parse(value: &Value) -> Result<Self, ConfigProblem> {
        let top = Section::root(value)?;
        refuse_other_architectures(&top)?;
        let dflash =
            top.section("dflash_config")?.ok_or_else(|| top.missing("dflash_config", "an object"))?;
        refuse_variants(&top, &dflash)?;

        let hidden_size = top.size("hidden_size", 1..=limit::WIDTH)?;
        let num_attention_heads = top.size("num_attention_heads", 1..=limit::HEADS)?;
        let num_key_value_heads =
            top.size_or_none("num_key_value_heads", 1..=limit::HEADS)?.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of `num_attention_heads` = {num_attention_heads}");
            return Err(top.invalid("num_key_value_heads", &expected));
        }
        let head_dim =
            top.size_or_none("head_dim", 2..=limit::HEAD_DIM)?.unwrap_or(hidden_size / num_attention_heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(top.invalid("head_dim", "an even number: rotation turns pairs"));
        }
        let vocab_size = top.size("vocab_size", 1..=limit::VOCAB)?;
        let draft_vocab_size = top.size_or_none("draft_vocab_size", 1..=vocab_size)?.unwrap_or(vocab_size);

        let both = [&dflash, &top];
        let block_size = in_either(both, "block_size", |place, key| place.size_or_none(key, 2..=MAX_BLOCK))?
            .ok_or_else(|| top.missing("block_size", "a whole number, here or in `dflash_config`"))?;
        let mask_token_id = in_either(both, "mask_token_id", |place, key| place.token(key, vocab_size))?
            .ok_or_else(|| dflash.missing("mask_token_id", "a token id"))?;
        let num_target_layers =
            in_either(both, "num_target_layers", |place, key| place.size_or_none(key, 1..=limit::LAYERS))?;
        let num_hidden_layers = top.size("num_hidden_layers", 1..=limit::LAYERS)?;
        let eps = format!("a number from {:e} to 1, 1 excluded", limit::SMALLEST);
        Ok(Self {
            hidden_size,
            intermediate_size: top.size("intermediate_size", 1..=limit::WIDTH)?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size,
            draft_vocab_size,
            rms_norm_eps: top
                .real("rms_norm_eps", &eps, |eps| (limit::SMALLEST..1.0).contains(&eps))?
                .ok_or_else(|| top.missing("rms_norm_eps", &eps))?,
            max_position_embeddings: top.size("max_position_embeddings", 1..=limit::POSITIONS)?,
            rope: rope::read(&[&top], head_dim)?,
            block_size,
            mask_token_id,
            target_layer_ids: target_layer_ids(&dflash, &top, num_target_layers, num_hidden_layers)?,
            num_target_layers,
            target_hidden_size: top
                .size_or_none("target_hidden_size", 1..=limit::WIDTH)?
                .unwrap_or(hidden_size),
            layers: drafter_layers::read(&top, &dflash, num_hidden_layers, block_size)?,
            ignored_keys: ignored_keys(&dflash),
        })
    }

    /// Whether the target's ids are a strict superset of those that the drafter can propose.
    pub fn has_reduced_vocabulary(&self) -> bool {
        self.draft_vocab_size < self.vocab_size
    }

    /// Width of the fused features before `fc`: one residual of the target for each tapped layer.
    pub fn tap_width(&self) -> usize {
        self.target_layer_ids.len() * self.target_hidden_size
    }

    /// Checks that the drafter was made for a target of these dimensions.
    ///
    /// # Errors
    /// [`ConfigProblem::Conflict`] naming the key of the drafter and that of the target.
    pub fn check_target(&self, target: &TargetConfig) -> Result<(), ConfigProblem> {
        let conflict = |key: &str, found: usize, other_key: &str, other: usize| ConfigProblem::Conflict {
            key: format!("drafter {key}"),
            found: found.to_string(),
            other_key: format!("target {other_key}"),
            other: other.to_string(),
        };
        let layers = target.num_hidden_layers;
        let pairs = [
            ("vocab_size", self.vocab_size, "vocab_size", target.vocab_size),
            ("target_hidden_size", self.target_hidden_size, "hidden_size", target.hidden_size),
            ("num_target_layers", self.num_target_layers.unwrap_or(layers), "num_hidden_layers", layers),
        ];
        if let Some((key, found, other_key, other)) = pairs.into_iter().find(|pair| pair.1 != pair.3) {
            return Err(conflict(key, found, other_key, other));
        }
        match self.target_layer_ids.iter().find(|&&id| id >= layers) {
            Some(&id) => Err(conflict("dflash_config.target_layer_ids", id, "num_hidden_layers", layers)),
            None => Ok(()),
        }
    }
}

fn refuse_other_architectures(top: &Section<'_>) -> Result<(), ConfigProblem> {
    if top.get("architectures").is_none() {
        return Err(top.missing("architectures", "[\"DFlashDraftModel\"]"));
    }
    top.only("architectures", &[json!(["DFlashDraftModel"])])?;
    top.only("model_type", &[json!("qwen3")])?;
    top.only("hidden_act", &[json!("silu")])
}

/// Relatives of DFlash that shift, convolve, chain or rescale their predictions.
fn refuse_variants(top: &Section<'_>, dflash: &Section<'_>) -> Result<(), ConfigProblem> {
    const VARIANT_KEYS: [&str; 16] = [
        "attention_bias",
        "mlp_bias",
        "sample_from_anchor",
        "selector_rank",
        "selector_top_k",
        "conv_kernel_size",
        "conv_group_size",
        "input_embedding_scale",
        "output_multiplier",
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "projector_type",
        "quantization_config",
    ];
    for place in [top, dflash] {
        for key in VARIANT_KEYS {
            place.never(key)?;
        }
    }
    dflash.only("use_aux_hidden_state", &[json!(true)])
}

fn in_either<T: PartialEq + ToString>(
    places: [&Section<'_>; 2],
    key: &str,
    read: impl Fn(&Section<'_>, &str) -> Result<Option<T>, ConfigProblem>,
) -> Result<Option<T>, ConfigProblem> {
    let [first, second] = places;
    agreed([(first.key(key), read(first, key)?), (second.key(key), read(second, key)?)], T::to_string)
}

fn target_layer_ids(
    dflash: &Section<'_>,
    top: &Section<'_>,
    num_target_layers: Option<usize>,
    num_draft_layers: usize,
) -> Result<Vec<usize>, ConfigProblem> {
    const KEY: &str = "target_layer_ids";
    let end = num_target_layers.unwrap_or(limit::LAYERS);
    let expected = format!("a list of distinct layers, each from 0 to {}", end - 1);
    let layers = |value: &Value| -> Option<Vec<usize>> {
        let ids: Option<Vec<usize>> = value
            .as_array()?
            .iter()
            .map(|id| usize::try_from(id.as_u64()?).ok().filter(|&id| id < end))
            .collect();
        ids.filter(|ids| !ids.is_empty() && distinct(ids))
    };
    if let Some(ids) = dflash.read(KEY, &expected, layers)? {
        return Ok(ids);
    }
    let Some(target_layers) = num_target_layers else {
        return Err(dflash.missing(KEY, "a list of layers, or `num_target_layers` to derive it from"));
    };
    default_target_layer_ids(target_layers, num_draft_layers)
        .ok_or_else(|| top.invalid("num_target_layers", "enough layers to tap one for each draft layer"))
}

/// One tap for each draft layer, evenly spaced from layer 1 to the last but two; a single layer taps the middle.
///
/// Halves round to even, as in the Python of the published class.
fn default_target_layer_ids(target_layers: usize, draft_layers: usize) -> Option<Vec<usize>> {
    if draft_layers == 1 {
        return Some(vec![target_layers / 2]);
    }
    let span = target_layers.checked_sub(4)? as f64;
    let steps = (draft_layers - 1) as f64;
    let ids: Vec<usize> =
        (0..draft_layers).map(|i| (1.0 + i as f64 * span / steps).round_ties_even() as usize).collect();
    distinct(&ids).then_some(ids)
}

fn distinct(ids: &[usize]) -> bool {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

fn ignored_keys(dflash: &Section<'_>) -> Vec<String> {
    const KNOWN: [&str; 9] = [
        "mask_token_id",
        "mask_token",
        "target_layer_ids",
        "block_size",
        "num_target_layers",
        "use_aux_hidden_state",
        "causal",
        "use_swa",
        "swa_window_size",
    ];
    dflash.keys().filter(|key| !KNOWN.contains(key)).map(|key| dflash.key(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_taps_are_those_of_the_published_rule() {
        // K2.6's own list (61 layers, 6 draft layers) is what the rule gives.
        assert_eq!(default_target_layer_ids(61, 6), Some(vec![1, 12, 24, 35, 47, 58]));
        assert_eq!(default_target_layer_ids(36, 5), Some(vec![1, 9, 17, 25, 33]));
        assert_eq!(default_target_layer_ids(28, 1), Some(vec![14]));
        // 1, 3.5, 6: a half goes to the even neighbour; and 1, 2.5, 4.
        assert_eq!(default_target_layer_ids(9, 3), Some(vec![1, 4, 6]));
        assert_eq!(default_target_layer_ids(7, 3), Some(vec![1, 2, 4]));
        assert_eq!(default_target_layer_ids(3, 2), None);
        assert_eq!(default_target_layer_ids(4, 2), None, "both would tap layer 1");
    }
}
