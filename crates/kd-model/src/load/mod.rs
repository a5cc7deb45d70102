//! From checkpoint folders to models.

mod drafter;
mod target;

use half::bf16;
use kd_attn::Rope;
use kd_tensor::{Bf16Matrix, Storage};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::RopeConfig;

impl RopeConfig {
    /// The rotary embedding of these settings.
    pub fn embedding(&self) -> Rope {
        let yarn = self.yarn.as_ref();
        let frequencies = yarn.map(|yarn| kd_attn::Yarn {
            factor: yarn.factor,
            original_max_position: yarn.original_max_position as f64,
            beta_fast: yarn.beta_fast,
            beta_slow: yarn.beta_slow,
        });
        Rope::new(self.dim, self.theta, frequencies, yarn.map_or(1.0, |yarn| yarn.attention_factor))
    }
}

fn matrix(
    checkpoint: &Checkpoint,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<Bf16Matrix, CheckpointError> {
    let data: Storage<bf16> = checkpoint.take(name, &[rows, cols])?;
    Ok(Bf16Matrix::new(rows, cols, data).expect("a taken tensor has the shape that was asked for"))
}

/// A vector of norm gains, widened: all finite. Matrices are not looked through (at K2.6's size that is most of a load);
/// what a damaged one does to a row of logits ends that request.
fn gains(checkpoint: &Checkpoint, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
    let data: Storage<bf16> = checkpoint.take(name, &[len])?;
    checkpoint.require_finite(name, data.iter().map(|gain| gain.to_f32()))?;
    Ok(data.iter().map(|gain| gain.to_f32()).collect())
}
