//! Memory in which the CTAs of a product with bf16 weights meet.

use cudarc::driver::CudaSlice;

use crate::{DenseProduct, KernelError, Stream, TensorMut};

/// What products with bf16 weights need beside their operands. Launches in stream order may share it; launches that may run at
/// the same time may not.
#[derive(Debug)]
pub struct DenseScratch {
    pub(crate) few: Partials,
    pub(crate) many: Option<Runs>,
}

/// Most rows for which there is a variant of `dense` that needs [`Partials`].
const FEW_ROWS: usize = 64;

impl DenseScratch {
    /// Scratch of products of up to `rows` rows and `columns` columns.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn new(stream: &Stream, rows: usize, columns: usize) -> Result<Self, KernelError> {
        Self::sized(stream, rows.min(FEW_ROWS), columns, DenseProduct::has_many(rows))
    }

    /// The same without the part that the kernels for many rows need.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn few(stream: &Stream, rows: usize, columns: usize) -> Result<Self, KernelError> {
        Self::sized(stream, rows.min(FEW_ROWS), columns, false)
    }

    /// With room for sums of exactly so many rows, and with or without the part for many.
    pub(crate) fn sized(
        stream: &Stream,
        rows: usize,
        columns: usize,
        many: bool,
    ) -> Result<Self, KernelError> {
        let many = many.then(|| Runs::new(stream)).transpose()?;
        Ok(Self { few: Partials::new(stream, rows, columns)?, many })
    }

    /// Whether all counts are zero again, as they must be between launches.
    pub(crate) fn settled(&self, stream: &Stream) -> Result<bool, KernelError> {
        let many = self.many.iter().map(|runs| &runs.arrived);
        for counts in many.chain([&self.few.arrived]) {
            let counts = stream.cuda().clone_dtoh(counts);
            let counts = counts.map_err(|error| KernelError::driver("reading counts of segments", error))?;
            stream.synchronize()?;
            if counts.iter().any(|count| *count != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes of [`DenseScratch::new`].
    pub fn bytes(rows: usize, columns: usize) -> usize {
        let many = if DenseProduct::has_many(rows) { Runs::BYTES } else { 0 };
        Self::few_bytes(rows, columns) + many
    }

    /// Bytes of [`DenseScratch::few`].
    pub fn few_bytes(rows: usize, columns: usize) -> usize {
        Partials::bytes(rows.min(FEW_ROWS), columns)
    }
}

/// Sums on their way between CTAs, for the variants of `dense` that spread K over CTAs of their own. A launch that there is no
/// room for takes another variant, whose results are the same.
#[derive(Debug)]
pub(crate) struct Partials {
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
    fn new(stream: &Stream, rows: usize, columns: usize) -> Result<Self, KernelError> {
        let failed = |error| KernelError::driver("allocating room for sums of segments", error);
        let tiles = Self::tiles(rows, columns);
        Ok(Self {
            sums: stream.cuda().alloc_zeros(tiles * SEGMENTS * TILE[0] * TILE[1]).map_err(failed)?,
            arrived: stream.cuda().alloc_zeros(tiles).map_err(failed)?,
        })
    }

    /// Bytes of [`Partials::new`].
    fn bytes(rows: usize, columns: usize) -> usize {
        Self::tiles(rows, columns) * (SEGMENTS * TILE[0] * TILE[1] * size_of::<f32>() + size_of::<i32>())
    }

    fn tiles(rows: usize, columns: usize) -> usize {
        rows.div_ceil(TILE[0]) * columns.div_ceil(TILE[1])
    }

    /// The operands of a launch with `columns` columns, with room for as many rows as there is.
    ///
    /// # Errors
    /// Memory of another device.
    pub(crate) fn operands(&mut self, stream: &Stream, columns: usize) -> Result<Operands<'_>, KernelError> {
        let tiles = columns.div_ceil(TILE[1]).max(1);
        let blocks = self.arrived.len() / tiles;
        let sums = [SEGMENTS, blocks, tiles, TILE[0] * TILE[1]];
        Ok((
            TensorMut::new(stream, self.sums.slice_mut(..sums.iter().product::<usize>()), sums)?,
            TensorMut::new(stream, self.arrived.slice_mut(..blocks * tiles), [blocks, tiles])?,
        ))
    }
}

/// `parts` and `arrived` of `dense`.
pub(crate) type Operands<'a> = (TensorMut<'a, f32, 4>, TensorMut<'a, i32, 2>);

/// Sums of the CTAs of `dense_many`, each with a run of segments.
#[derive(Debug)]
pub(crate) struct Runs {
    partial: CudaSlice<f32>,
    /// Zero between launches.
    arrived: CudaSlice<i32>,
}

/// CTAs that there is room for: two on each SM of the largest device.
const CTAS: usize = 2 * 192;
/// Sums and counters of a CTA (the declaration of `dense_many`).
const SUMS: usize = 67_584;
const COUNTERS: usize = 4;

impl Runs {
    const BYTES: usize = CTAS * 4 * (SUMS + COUNTERS);

    fn new(stream: &Stream) -> Result<Self, KernelError> {
        let failed = |error| KernelError::driver("allocating room for sums of many rows", error);
        Ok(Self {
            partial: stream.cuda().alloc_zeros(CTAS * SUMS).map_err(failed)?,
            arrived: stream.cuda().alloc_zeros(CTAS * COUNTERS).map_err(failed)?,
        })
    }

    /// `partial` and `arrived` of `dense_many`.
    pub(crate) fn operands(
        &mut self,
        stream: &Stream,
    ) -> Result<(TensorMut<'_, f32, 1>, TensorMut<'_, i32, 1>), KernelError> {
        Ok((
            TensorMut::new(stream, self.partial.as_view_mut(), [CTAS * SUMS])?,
            TensorMut::new(stream, self.arrived.as_view_mut(), [CTAS * COUNTERS])?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_counted_in_whole_tiles() {
        assert_eq!(Partials::bytes(8, 16), 4 * 8 * 16 * 4 + 4);
        assert_eq!(Partials::bytes(33, 2100), Partials::bytes(40, 2112));
    }
}
