//! From checkpoint folders to models.

mod drafter;
mod target;

use half::bf16;
use kd_attn::Rope;
use kd_tensor::{Bf16Matrix, Int4Matrix, Storage};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::RopeConfig;
use crate::share::{Dimension, Part, Share};

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

/// Takes what one rank holds of each tensor.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    share: Share,
}

/// The side of a matrix that ranks share.
#[derive(Clone, Copy)]
enum Cut {
    Whole,
    Rows(Dimension),
    Columns(Dimension),
}

impl Reader<'_> {
    fn matrix(&self, name: &str, shape: [usize; 2], cut: Cut) -> Result<Bf16Matrix, CheckpointError> {
        let [rows, cols] = shape;
        let data: Storage<bf16> = self.checkpoint.take(name, &shape)?;
        let whole =
            Bf16Matrix::new(rows, cols, data).expect("a taken tensor has the shape that was asked for");
        Ok(match self.part(name, shape, cut)? {
            Part::Whole => whole,
            Part::Rows(rows) => whole.slice_rows(rows),
            Part::Columns(columns) => whole.slice_columns(columns),
        })
    }

    /// An embedding or a head. It is kept whole, in place in the file, so that a drafter can borrow it; a pass gives each
    /// rank its rows.
    fn table(&self, name: &str, vocabulary: Dimension, width: usize) -> Result<Bf16Matrix, CheckpointError> {
        let shape = [vocabulary.len, width];
        self.part(name, shape, Cut::Rows(vocabulary))?;
        self.matrix(name, shape, Cut::Whole)
    }

    fn int4(&self, module: &str, shape: [usize; 2], cut: Cut) -> Result<Int4Matrix, CheckpointError> {
        let part = self.part(&format!("{module}.weight_packed"), shape, cut)?;
        self.checkpoint.take_int4(module, shape, &part)
    }

    /// A vector of norm gains, widened: all finite. Matrices are not looked through (at K2.6's size that is most of a
    /// load); what a damaged one does to a row of logits ends that request.
    fn gains(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let data: Storage<bf16> = self.checkpoint.take(name, &[len])?;
        self.checkpoint.require_finite(name, data.iter().map(|gain| gain.to_f32()))?;
        Ok(data.iter().map(|gain| gain.to_f32()).collect())
    }

    fn part(&self, tensor: &str, [rows, cols]: [usize; 2], cut: Cut) -> Result<Part, CheckpointError> {
        let range = |side: usize, dimension: Dimension| match dimension.cut(self.share) {
            // Rows or columns of one head, or of one place of a width.
            Ok(part) => Ok(part.start * (side / dimension.len)..part.end * (side / dimension.len)),
            Err(problem) => {
                let (dir, tensor) = (self.checkpoint.dir().to_path_buf(), tensor.to_owned());
                Err(CheckpointError::Share { dir, tensor, problem })
            }
        };
        Ok(match cut {
            Cut::Whole => Part::Whole,
            Cut::Rows(dimension) => Part::Rows(range(rows, dimension)?),
            Cut::Columns(dimension) => Part::Columns(range(cols, dimension)?),
        })
    }
}
