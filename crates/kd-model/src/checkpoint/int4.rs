//! Routed experts: packed INT4 with one scale for 32 columns.

use half::bf16;
use kd_tensor::storage::Storage;
use kd_tensor::{Int4Matrix, WeightRows, int4};

use super::{Checkpoint, CheckpointError};
use crate::config::GROUP_SIZE;
use crate::share::Part;

impl Checkpoint {
    /// Takes `module.weight_packed`, `.weight_scale` and `.weight_shape` (I32 or I64) of an `[out, columns]` matrix, and
    /// returns a part of it: words `[out, columns / 8]` together with scales `[out, columns / 32]`, all finite.
    ///
    /// # Errors
    /// [`CheckpointError::Unquantized`] if only a plain `module.weight` is there; [`CheckpointError::Value`] if
    /// `weight_shape` is another shape or a scale of the part is not finite; those of [`Checkpoint::take`].
    ///
    /// # Panics
    /// If the part lies outside the matrix, or cuts a group.
    pub fn take_int4(
        &self,
        module: &str,
        [out, columns]: [usize; 2],
        part: &Part,
    ) -> Result<Int4Matrix, CheckpointError> {
        if !columns.is_multiple_of(GROUP_SIZE) {
            return Err(CheckpointError::GroupWidth { module: module.to_owned(), columns });
        }
        self.refuse_unquantized(module)?;
        self.check_weight_shape(&format!("{module}.weight_shape"), [out, columns])?;
        let words: Storage<i32> =
            self.take(&format!("{module}.weight_packed"), &[out, columns / int4::CODES_PER_WORD])?;
        let scale_name = format!("{module}.weight_scale");
        let groups = columns / GROUP_SIZE;
        let scales: Storage<bf16> = self.take(&scale_name, &[out, groups])?;
        let whole = Int4Matrix::new(out, columns, words, scales);
        let whole = whole.expect("taken tensors have the shapes that were asked for");
        let (part, first_row, first_group) = match part {
            Part::Whole => (whole, 0, 0),
            Part::Rows(rows) => (whole.slice_rows(rows.clone()), rows.start, 0),
            Part::Columns(columns) => (whole.slice_columns(columns.clone()), 0, columns.start / GROUP_SIZE),
        };
        for row in 0..part.rows() {
            let scales = part.scales(row);
            if let Some(group) = scales.iter().position(|scale| !scale.is_finite()) {
                let index = (first_row + row) * groups + first_group + group;
                let found = scales[group].to_string();
                return Err(self.bad_value(&scale_name, index, found, "a finite number"));
            }
        }
        Ok(part)
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
