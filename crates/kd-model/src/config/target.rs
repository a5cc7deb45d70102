//! The target model's configuration: nested as K2.5 and K2.6 write it, or flat as K2 and K2-Thinking do.

use std::path::Path;

use serde_json::{Value, json};

use super::quantization::{self, GROUP_SIZE, Quantization};
use super::rope::{self, RopeConfig};
use super::section::{Section, agreed, load_required};
use super::{CONFIG_FILE, GenerationConfig, limit};
use crate::error::{ConfigError, ConfigProblem};

/// A mixture-of-experts model with latent attention of the K2 family. Fields bear the names of the published keys.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetConfig {
    /// Width of the residual stream; a multiple of 32.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// The first so many layers have a dense MLP.
    pub first_k_dense_replace: usize,
    /// Of the others, those whose index is a multiple of this have experts.
    pub moe_layer_freq: usize,
    /// Inner width of a dense MLP.
    pub intermediate_size: usize,
    /// Inner width of one expert; a multiple of 32.
    pub moe_intermediate_size: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Width of the query latent; `None`: one plain query projection.
    pub q_lora_rank: Option<usize>,
    /// Width of the key/value latent.
    pub kv_lora_rank: usize,
    /// Values of a query or key head that are not rotated.
    pub qk_nope_head_dim: usize,
    /// Values of a query head, and of the one shared key, that are rotated; even.
    pub qk_rope_head_dim: usize,
    /// Values of a value head.
    pub v_head_dim: usize,
    /// Token ids, control ids included.
    pub vocab_size: usize,
    /// Routed experts of a layer.
    pub n_routed_experts: usize,
    /// Routed experts that a token goes through.
    pub num_experts_per_tok: usize,
    /// Experts that every token goes through, stored as one MLP of so many times `moe_intermediate_size`.
    pub n_shared_experts: usize,
    /// Groups that the routed experts are divided into.
    pub n_group: usize,
    /// Groups that a token may choose from.
    pub topk_group: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// What the weights of the chosen experts are multiplied by.
    pub routed_scaling_factor: f64,
    /// Epsilon of the block norms and the final norm; the latent norms have [`super::LATENT_NORM_EPS`].
    pub rms_norm_eps: f64,
    /// Rotary positions of the `qk_rope_head_dim` values.
    pub rope: RopeConfig,
    /// Longest context in tokens.
    pub max_position_embeddings: usize,
    /// Ids that end a generation, from every place that may name some; ascending.
    pub eos_token_ids: Vec<u32>,
    /// Id that begins a text; `text_config` before the top level.
    pub bos_token_id: Option<u32>,
    /// Id that fills unused places; `text_config` before the top level.
    pub pad_token_id: Option<u32>,
    /// How the routed experts are stored.
    pub quantization: Quantization,
}

impl TargetConfig {
    /// Reads `config.json` and, if it is there, `generation_config.json` of `dir`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the file, the key, its value and what was expected.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let file = dir.join(CONFIG_FILE);
        let value = load_required(&file)?;
        let mut config = Self::parse(&value).map_err(|problem| ConfigError::Key { file, problem })?;
        let generation = GenerationConfig::from_dir(dir, config.vocab_size)?;
        config.add_eos(generation.eos_token_ids);
        Ok(config)
    }

    /// Reads a parsed `config.json` alone.
    ///
    /// # Errors
    /// [`ConfigProblem`] naming the key, its value and what was expected.
    pub fn parse(value: &Value) -> Result<Self, ConfigProblem> {
        let top = Section::root(value)?;
        let text = text_section(&top)?;
        let places = [&text, &top];
        refuse_unimplemented(&places)?;

        let qk_rope_head_dim = text.size("qk_rope_head_dim", 2..=limit::HEAD_DIM)?;
        if !qk_rope_head_dim.is_multiple_of(2) {
            return Err(text.invalid("qk_rope_head_dim", "an even number: rotation turns pairs"));
        }
        let vocab_size = text.size("vocab_size", 1..=limit::VOCAB)?;
        let id = |key: &str| -> Result<Option<u32>, ConfigProblem> {
            Ok(text.token(key, vocab_size)?.or(top.token(key, vocab_size)?))
        };
        let bounds = limit::SMALLEST..=limit::LARGEST;
        let positive = format!("a number from {:e} to {:e}", bounds.start(), bounds.end());
        let small = format!("a number from {:e} to 1, 1 excluded", bounds.start());
        let mut config = Self {
            hidden_size: text.size("hidden_size", 1..=limit::WIDTH)?,
            num_hidden_layers: text.size("num_hidden_layers", 1..=limit::LAYERS)?,
            first_k_dense_replace: text.size("first_k_dense_replace", 0..=limit::LAYERS)?,
            moe_layer_freq: text.size_or_none("moe_layer_freq", 1..=limit::LAYERS)?.unwrap_or(1),
            intermediate_size: text.size("intermediate_size", 1..=limit::WIDTH)?,
            moe_intermediate_size: text.size("moe_intermediate_size", 1..=limit::WIDTH)?,
            num_attention_heads: text.size("num_attention_heads", 1..=limit::HEADS)?,
            q_lora_rank: text.size_or_none("q_lora_rank", 1..=limit::WIDTH)?,
            kv_lora_rank: text.size("kv_lora_rank", 1..=limit::WIDTH)?,
            qk_nope_head_dim: text.size("qk_nope_head_dim", 1..=limit::HEAD_DIM)?,
            qk_rope_head_dim,
            v_head_dim: text.size("v_head_dim", 1..=limit::HEAD_DIM)?,
            vocab_size,
            n_routed_experts: text.size("n_routed_experts", 1..=limit::EXPERTS)?,
            num_experts_per_tok: text.size("num_experts_per_tok", 1..=limit::EXPERTS)?,
            n_shared_experts: text.size("n_shared_experts", 1..=limit::SHARED_EXPERTS)?,
            n_group: text.size("n_group", 1..=limit::EXPERTS)?,
            topk_group: text.size("topk_group", 1..=limit::EXPERTS)?,
            norm_topk_prob: text.require("norm_topk_prob", "true or false", Value::as_bool)?,
            routed_scaling_factor: text
                .real("routed_scaling_factor", &positive, |factor| bounds.contains(&factor))?
                .ok_or_else(|| text.missing("routed_scaling_factor", &positive))?,
            rms_norm_eps: text
                .real("rms_norm_eps", &small, |eps| bounds.contains(&eps) && eps < 1.0)?
                .ok_or_else(|| text.missing("rms_norm_eps", &small))?,
            rope: rope::read(&places, qk_rope_head_dim)?,
            max_position_embeddings: text.size("max_position_embeddings", 1..=limit::POSITIONS)?,
            eos_token_ids: Vec::new(),
            bos_token_id: id("bos_token_id")?,
            pad_token_id: id("pad_token_id")?,
            quantization: quantization(&places)?,
        };
        for place in places {
            config.add_eos(place.tokens("eos_token_id", vocab_size)?);
        }
        config.check_relations(&text)?;
        config.check_temperatures(&text)?;
        Ok(config)
    }

    /// Whether layer `layer` has routed experts instead of a dense MLP.
    pub fn is_moe(&self, layer: usize) -> bool {
        layer >= self.first_k_dense_replace && layer.is_multiple_of(self.moe_layer_freq)
    }

    /// Values of a query or key head: `qk_nope_head_dim + qk_rope_head_dim`.
    pub fn qk_head_dim(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// Values cached a token and layer: `kv_lora_rank + qk_rope_head_dim`.
    pub fn cache_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// What attention scores are multiplied by: `qk_head_dim^-0.5`, times YaRN's temperature squared.
    pub fn softmax_scale(&self) -> f64 {
        let gain = self.rope.yarn.as_ref().map_or(1.0, |yarn| yarn.softmax_gain());
        (self.qk_head_dim() as f64).powf(-0.5) * gain
    }

    fn add_eos(&mut self, ids: Vec<u32>) {
        self.eos_token_ids.extend(ids);
        self.eos_token_ids.sort_unstable();
        self.eos_token_ids.dedup();
    }

    /// Published implementations disagree on what one of the two strengths means alone.
    fn check_temperatures(&self, text: &Section<'_>) -> Result<(), ConfigProblem> {
        let Some(yarn) = &self.rope.yarn else { return Ok(()) };
        match (yarn.mscale, yarn.mscale_all_dim) {
            (Some(_), None) => {
                Err(text.missing("rope_scaling.mscale_all_dim", "a number, because `mscale` is given"))
            }
            (None, Some(_)) => {
                Err(text.missing("rope_scaling.mscale", "a number, because `mscale_all_dim` is given"))
            }
            _ => Ok(()),
        }
    }

    fn check_relations(&self, text: &Section<'_>) -> Result<(), ConfigProblem> {
        let require = |holds: bool, key: &str, expected: String| {
            if holds { Ok(()) } else { Err(text.invalid(key, &expected)) }
        };
        for (key, width) in
            [("hidden_size", self.hidden_size), ("moe_intermediate_size", self.moe_intermediate_size)]
        {
            let expected = format!("a multiple of {GROUP_SIZE}, the width of a quantization group");
            require(width.is_multiple_of(GROUP_SIZE), key, expected)?;
        }
        let heads = self.num_attention_heads;
        if text
            .size_or_none("num_key_value_heads", 1..=limit::HEADS)?
            .is_some_and(|kv_heads| kv_heads != heads)
        {
            let supported =
                format!("`num_attention_heads` = {heads}: MLA has a key and a value for every head");
            return Err(text.unsupported("num_key_value_heads", &supported));
        }
        let layers = self.num_hidden_layers;
        let expected = format!("at most `num_hidden_layers` = {layers}");
        require(self.first_k_dense_replace <= layers, "first_k_dense_replace", expected)?;

        let (experts, groups) = (self.n_routed_experts, self.n_group);
        let expected = format!("a divisor of `n_routed_experts` = {experts}");
        require(experts.is_multiple_of(groups), "n_group", expected)?;
        let group = experts / groups;
        let expected = "groups of at least two experts: a group scores by its two best".to_owned();
        require(groups == 1 || group >= 2, "n_group", expected)?;
        require(self.topk_group <= groups, "topk_group", format!("at most `n_group` = {groups}"))?;
        let eligible = group * self.topk_group;
        let expected = format!("at most {eligible}, the experts of `topk_group` groups");
        require(self.num_experts_per_tok <= eligible, "num_experts_per_tok", expected)
    }
}

/// The object that describes the text model, after a check of every `model_type`.
fn text_section<'a>(top: &Section<'a>) -> Result<Section<'a>, ConfigProblem> {
    let text_types = [json!("kimi_k2"), json!("deepseek_v3")];
    let expected = "\"kimi_k25\", \"kimi_k2\" or \"deepseek_v3\"";
    let outer = top.get("model_type").ok_or_else(|| top.missing("model_type", expected))?;
    match top.section("text_config")? {
        Some(text) => {
            top.only("model_type", &[json!("kimi_k25")])?;
            if text.get("model_type").is_none() {
                return Err(text.missing("model_type", "\"kimi_k2\" or \"deepseek_v3\""));
            }
            text.only("model_type", &text_types)?;
            Ok(text)
        }
        None if text_types.contains(outer) => Ok(top.clone()),
        None if *outer == json!("kimi_k25") => {
            Err(top.missing("text_config", "the text model's configuration"))
        }
        None => Err(top.unsupported("model_type", expected)),
    }
}

fn refuse_unimplemented(places: &[&Section<'_>; 2]) -> Result<(), ConfigProblem> {
    for place in places {
        place.only("tie_word_embeddings", &[json!(false)])?;
        place.only("num_nextn_predict_layers", &[json!(0)])?;
        place.only("scoring_func", &[json!("sigmoid")])?;
        place.only("topk_method", &[json!("noaux_tc")])?;
        place.only("hidden_act", &[json!("silu")])?;
        place.only("rope_interleave", &[json!(true)])?;
        for key in [
            "attention_bias",
            "mlp_bias",
            "sliding_window",
            "final_logit_softcapping",
            "attn_logit_softcapping",
        ] {
            place.never(key)?;
        }
    }
    Ok(())
}

/// Read from `text_config`, the top level, or both.
fn quantization(places: &[&Section<'_>; 2]) -> Result<Quantization, ConfigProblem> {
    let key = "quantization_config";
    let found = [
        (places[0].key(key), quantization::read(places[0])?),
        (places[1].key(key), quantization::read(places[1])?),
    ];
    agreed(found, |quantization| format!("{quantization:?}"))?.ok_or_else(|| {
        let expected = "compressed-tensors pack-quantized INT4 with groups of 32, the only storage of routed experts \
                        that is implemented";
        places[1].missing(key, expected)
    })
}
