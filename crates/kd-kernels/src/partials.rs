//! Memory in which the CTAs of a `dense` launch meet.

use cudarc::driver::CudaSlice;

use crate::{KernelError, Stream, TensorMut};

/// Sums on their way between CTAs, for the variants of `dense` that spread K over CTAs of their own. A launch that there is no
/// room for takes another variant, whose results are the same. Launches in stream order may share it; launches that may run at
/// the same time may not.
#[derive(Debug)]
pub struct Partials {
    sums: CudaSlice<f32>,
    /// Zero between launches.
    arrived: CudaSlice<i32>,
}

/// Most segments of K that such a variant has.
const SEGMENTS: usize = 4;
/// Rows and columns of which a warp holds the sums, and counts that they are there: a tile of the tensor core.
const TILE: [usize; 2] = [8, 16];

impl Partials {
    /// Allocates room for products of up to `rows` rows and `columns` columns.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn new(stream: &Stream, rows: usize, columns: usize) -> Result<Self, KernelError> {
        let failed = |error| KernelError::driver("allocating room for sums of segments", error);
        let tiles = Self::tiles(rows, columns);
        Ok(Self {
            sums: stream.cuda().alloc_zeros(tiles * SEGMENTS * TILE[0] * TILE[1]).map_err(failed)?,
            arrived: stream.cuda().alloc_zeros(tiles).map_err(failed)?,
        })
    }

    /// Bytes of [`Partials::new`].
    pub fn bytes(rows: usize, columns: usize) -> usize {
        Self::tiles(rows, columns) * (SEGMENTS * TILE[0] * TILE[1] * size_of::<f32>() + size_of::<i32>())
    }

    fn tiles(rows: usize, columns: usize) -> usize {
        rows.div_ceil(TILE[0]) * columns.div_ceil(TILE[1])
    }

    /// The operands of a launch with `columns` columns, with room for as many rows as there is.
    ///
    /// # Errors
    /// Memory of another device.
    pub fn operands(&mut self, stream: &Stream, columns: usize) -> Result<Operands<'_>, KernelError> {
        let tiles = columns.div_ceil(TILE[1]).max(1);
        let blocks = self.arrived.len() / tiles;
        let sums = [SEGMENTS, blocks, tiles, TILE[0] * TILE[1]];
        Ok((
            TensorMut::new(stream, self.sums.slice_mut(..sums.iter().product::<usize>()), sums)?,
            TensorMut::new(stream, self.arrived.slice_mut(..blocks * tiles), [blocks, tiles])?,
        ))
    }

    /// Whether all counts are zero again, as they must be between launches.
    pub(crate) fn settled(&self, stream: &Stream) -> Result<bool, KernelError> {
        let arrived = stream.cuda().clone_dtoh(&self.arrived);
        let arrived = arrived.map_err(|error| KernelError::driver("reading counts of segments", error))?;
        stream.synchronize()?;
        Ok(arrived.iter().all(|count| *count == 0))
    }
}

/// `parts` and `arrived` of `dense`.
type Operands<'a> = (TensorMut<'a, f32, 4>, TensorMut<'a, i32, 2>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_counted_in_whole_tiles() {
        assert_eq!(Partials::bytes(8, 16), 4 * 8 * 16 * 4 + 4);
        assert_eq!(Partials::bytes(33, 2100), Partials::bytes(40, 2112));
    }
}
