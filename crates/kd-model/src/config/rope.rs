//! Rotary position settings in either spelling: `rope_scaling` beside `rope_theta`, or `rope_parameters`.

use serde_json::json;

use super::limit;
use super::section::{Section, agreed};
use crate::error::ConfigProblem;

/// What a rotary embedding is built from. The rotation itself lives in `kd-attn`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies `theta^(-2i/dim)`.
    pub theta: f64,
    /// Rotated values of a head; even.
    pub dim: usize,
    /// Context extension; `None` leaves the frequencies as they are.
    pub yarn: Option<Yarn>,
}

/// YaRN context extension (Peng et al., arXiv 2309.00071, with the `mscale` pair of DeepSeek-V2).
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// How much longer the context becomes; at least 1.
    pub factor: f64,
    /// Context length in tokens before the extension.
    pub original_max_position: usize,
    /// Turns over the original context above which a frequency is left alone.
    pub beta_fast: f64,
    /// Turns over the original context below which a frequency is divided by `factor`.
    pub beta_slow: f64,
    /// Strength of the attention temperature in the cosines and sines.
    pub mscale: Option<f64>,
    /// Strength of the attention temperature in the softmax scale of MLA.
    pub mscale_all_dim: Option<f64>,
    /// What the cosines and sines are multiplied by, resolved from the three keys that may set it.
    pub attention_factor: f64,
}

impl Yarn {
    /// `0.1 · strength · ln factor + 1`, the attention temperature of YaRN (equation 22 of the paper).
    pub fn temperature(&self, strength: f64) -> f64 {
        temperature(self.factor, strength)
    }

    /// What MLA's softmax scale is multiplied by: the square of the temperature of `mscale_all_dim`, 1 without it.
    pub fn softmax_gain(&self) -> f64 {
        self.mscale_all_dim.map_or(1.0, |strength| self.temperature(strength).powi(2))
    }
}

fn temperature(factor: f64, strength: f64) -> f64 {
    0.1 * strength * factor.ln() + 1.0
}

/// Reads the settings from all `places` that may hold them, which must agree.
///
/// There is no default for theta: a nested theta that is overlooked and replaced by a default is a known fault of loaders.
pub(super) fn read(places: &[&Section<'_>], dim: usize) -> Result<RopeConfig, ConfigProblem> {
    let mut thetas = Vec::new();
    let mut scalings = Vec::new();
    for place in places {
        thetas.push((place.key("rope_theta"), theta(place)?));
        for key in ["rope_scaling", "rope_parameters"] {
            if let Some(section) = place.section(key)? {
                thetas.push((section.key("rope_theta"), theta(&section)?));
                scalings.push((place.key(key), Some(scaling(&section)?)));
            }
        }
    }
    let theta = agreed(thetas, f64::to_string)?.ok_or_else(|| ConfigProblem::Missing {
        key: places.first().map_or_else(|| "rope_theta".to_owned(), |place| place.key("rope_theta")),
        expected: "the rotary base, here or in `rope_parameters`".to_owned(),
    })?;
    let yarn = agreed(scalings, |yarn| format!("{yarn:?}"))?.flatten();
    Ok(RopeConfig { theta, dim, yarn })
}

fn theta(section: &Section<'_>) -> Result<Option<f64>, ConfigProblem> {
    let expected = format!("a number above 1, at most {:e}", limit::LARGEST);
    section.real("rope_theta", &expected, |theta| theta > 1.0 + limit::SMALLEST && theta <= limit::LARGEST)
}

/// `None` for the type `default`, which scales nothing.
fn scaling(section: &Section<'_>) -> Result<Option<Yarn>, ConfigProblem> {
    const KNOWN: [&str; 12] = [
        "type",
        "rope_type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
        "partial_rotary_factor",
    ];
    // Any further key changes the rotation in a way that is not implemented.
    if let Some(key) = section.keys().find(|key| !KNOWN.contains(key)) {
        return Err(section.unsupported(key, &KNOWN.join(", ")));
    }
    section.only("truncate", &[json!(true)])?;
    section.only("partial_rotary_factor", &[json!(1.0), json!(1)])?;
    let kinds = ["rope_type", "type"].map(|key| (section.key(key), section.get(key)));
    let kind = agreed(kinds, |kind| kind.to_string())?;
    match kind {
        Some(kind) if kind == "yarn" => yarn(section).map(Some),
        Some(kind) if kind == "default" => Ok(None),
        None if section.keys().all(|key| key == "rope_theta") => Ok(None),
        None => Err(section.missing("rope_type", "\"yarn\" or \"default\"")),
        Some(_) => {
            let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
            Err(section.unsupported(key, "\"yarn\" or \"default\""))
        }
    }
}

fn yarn(section: &Section<'_>) -> Result<Yarn, ConfigProblem> {
    let (smallest, largest) = (limit::SMALLEST, limit::LARGEST);
    let expected = format!("a number from 1 to {largest:e}");
    let factor = section
        .real("factor", &expected, |factor| (1.0..=largest).contains(&factor))?
        .ok_or_else(|| section.missing("factor", &expected))?;
    let original_max_position = section.size("original_max_position_embeddings", 1..=limit::POSITIONS)?;
    let expected = format!("a number from {smallest:e} to {largest:e}");
    let positive = |key| section.real(key, &expected, |value| (smallest..=largest).contains(&value));
    // The defaults of the YaRN paper and of the published model code.
    let beta_fast = positive("beta_fast")?.unwrap_or(32.0);
    let beta_slow = positive("beta_slow")?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(section.invalid("beta_fast", &format!("at least `beta_slow` = {beta_slow}")));
    }
    let expected = format!("a number from 0 to {}", limit::STRENGTH);
    let strength = |key| section.real(key, &expected, |value| (0.0..=limit::STRENGTH).contains(&value));
    let mscale = strength("mscale")?;
    let mscale_all_dim = strength("mscale_all_dim")?;
    let attention_factor = match (positive("attention_factor")?, mscale, mscale_all_dim) {
        (Some(given), ..) => given,
        (None, Some(mscale), Some(all_dim)) => temperature(factor, mscale) / temperature(factor, all_dim),
        (None, ..) => temperature(factor, 1.0),
    };
    Ok(Yarn { factor, original_max_position, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor })
}
