//! Routed experts: packed INT4 with one scale for 32 columns.

use half::bf16;
use kd_tensor::storage::Storage;

use super::{Checkpoint, CheckpointError};
use crate::config::GROUP_SIZE;

/// Four-bit values in one I32 word.
const PER_WORD: usize = 8;

/// One INT4 matrix `[out, in]` as it is stored.
#[derive(Clone, Debug)]
pub struct Int4Tensor {
    /// Output rows.
    pub out: usize,
    /// Input columns; a multiple of 32.
    pub columns: usize,
    /// `[out, in / 8]`: nibble `i` (bits `4i..4i+3`) of word `j` is column `8j + i`, stored with an offset of 8.
    pub packed: Storage<i32>,
    /// `[out, in / 32]`, all finite: `w[o][c] = (nibble - 8) * scale[o][c / 32]`.
    pub scales: Storage<bf16>,
}

impl Checkpoint {
    /// Takes `module.weight_packed`, `.weight_scale` and `.weight_shape` (I32 or I64) of an `[out, columns]` matrix.
    ///
    /// # Errors
    /// [`CheckpointError::Unquantized`] if only a plain `module.weight` is there; [`CheckpointError::Value`] if
    /// `weight_shape` is another shape or a scale is not finite; those of [`Checkpoint::take`].
    pub fn take_int4(&self, module: &str, out: usize, columns: usize) -> Result<Int4Tensor, CheckpointError> {
        if !columns.is_multiple_of(GROUP_SIZE) {
            return Err(CheckpointError::GroupWidth { module: module.to_owned(), columns });
        }
        self.refuse_unquantized(module)?;
        self.check_weight_shape(&format!("{module}.weight_shape"), [out, columns])?;
        let packed = self.take(&format!("{module}.weight_packed"), &[out, columns / PER_WORD])?;
        let scale_name = format!("{module}.weight_scale");
        let scales: Storage<bf16> = self.take(&scale_name, &[out, columns / GROUP_SIZE])?;
        self.require_finite(&scale_name, scales.iter().map(|scale| scale.to_f32()))?;
        Ok(Int4Tensor { out, columns, packed, scales })
    }

    fn refuse_unquantized(&self, module: &str) -> Result<(), CheckpointError> {
        let plain = format!("{module}.weight");
        if self.contains(&format!("{module}.weight_packed")) || !self.contains(&plain) {
            return Ok(());
        }
        let shard = self.shard(&plain, String::new)?;
        let found = shard.tensor(&plain)?.dtype;
        Err(CheckpointError::Unquantized { file: shard.path().to_path_buf(), tensor: plain, found })
    }

    /// `weight_shape` repeats the shape of the unpacked matrix; one that disagrees means a stale or sharded file.
    fn check_weight_shape(&self, name: &str, expected: [usize; 2]) -> Result<(), CheckpointError> {
        let found = self.take_integers(name, &[2])?;
        for (index, (&found, expected)) in found.iter().zip(expected).enumerate() {
            if usize::try_from(found) != Ok(expected) {
                return Err(self.bad_value(name, index, found.to_string(), &expected.to_string()));
            }
        }
        Ok(())
    }

    /// Refuses NaN and infinities among the values of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Value`] naming the first of them.
    pub fn require_finite(
        &self,
        name: &str,
        values: impl IntoIterator<Item = f32>,
    ) -> Result<(), CheckpointError> {
        match values.into_iter().enumerate().find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((index, value)) => Err(self.bad_value(name, index, value.to_string(), "a finite number")),
        }
    }

    pub(super) fn bad_value(
        &self,
        name: &str,
        index: usize,
        found: String,
        expected: &str,
    ) -> CheckpointError {
        let file = match self.tensors.get(name) {
            Some(slot) => self.shards[slot.shard].path().to_path_buf(),
            None => self.dir.clone(),
        };
        CheckpointError::Value { file, tensor: name.to_owned(), index, found, expected: expected.to_owned() }
    }
}
