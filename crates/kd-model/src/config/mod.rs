//! Model configurations: every key with a meaning is read, and what is not implemented is refused by name.

mod drafter;
mod drafter_layers;
mod generation;
mod quantization;
mod rope;
mod section;
mod target;

pub use self::drafter::DrafterConfig;
pub use self::drafter_layers::DrafterLayer;
pub use self::generation::GenerationConfig;
pub use self::quantization::{GROUP_SIZE, Quantization};
pub use self::rope::{RopeConfig, Yarn};
pub use self::target::TargetConfig;

/// The name of the file that every model directory holds.
pub const CONFIG_FILE: &str = "config.json";

/// Epsilon of the norms on the query and key/value latents (`q_a_layernorm`, `kv_a_layernorm`).
///
/// The published model code builds these two norms without passing an epsilon, so they run with that class's default,
/// 1e-6, whatever `rms_norm_eps` says (K2.6: 1e-5).
pub const LATENT_NORM_EPS: f32 = 1e-6;

/// Upper limits of the dimensions. No real model comes near them, and below them the byte size of any weight, as a
/// product of its dimensions, fits an `isize`: 2^16 experts × 2^20 × 2^20, or 2^16 heads × 2^17 × 2^20, times 4 bytes.
mod limit {
    pub(super) const LAYERS: usize = 1 << 10;
    pub(super) const HEADS: usize = 1 << 16;
    pub(super) const HEAD_DIM: usize = 1 << 16;
    pub(super) const WIDTH: usize = 1 << 20;
    pub(super) const VOCAB: usize = 1 << 24;
    pub(super) const EXPERTS: usize = 1 << 16;
    pub(super) const SHARED_EXPERTS: usize = 1 << 6;
    pub(super) const POSITIONS: usize = 1 << 31;

    /// Reals that multiply or divide activations: inside these bounds nothing derived from one leaves f32.
    pub(super) const SMALLEST: f64 = 1e-12;
    pub(super) const LARGEST: f64 = 1e12;
    /// Strength of a YaRN temperature; published files say 1 or less.
    pub(super) const STRENGTH: f64 = 100.0;
}
