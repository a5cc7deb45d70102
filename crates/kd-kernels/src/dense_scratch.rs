//! Memory in which the CTAs of a product with bf16 weights meet.

use cudarc::driver::CudaSlice;

use crate::{DenseProduct, KernelError, Stream, TensorMut};

/// What products with bf16 weights need beside their operands. Launches in stream order may share it; launches that may run at
/// the same time may not.
///
/// One memory serves all families: `dense` and `dense_mid` see sums by tile of the result, and what there is no room for takes
/// a variant without; `dense_many` sees sums by CTA.
#[derive(Debug)]
pub struct DenseScratch {
    sums: CudaSlice<f32>,
    /// A count for each tile of sums; zero between launches.
    arrived: CudaSlice<i32>,
    /// Whether there is room for what `dense_many` may need.
    many: bool,
}

/// Most rows for which a variant of `dense` needs sums by tile.
const FEW_ROWS: usize = 64;
/// Most segments of K whose sums lie apart.
const SEGMENTS: usize = 4;
/// Rows and columns of a tile of the tensor core.
const TILE: [usize; 2] = [8, 16];
/// Sums of a tile of all segments.
const TILE_SUMS: usize = SEGMENTS * TILE[0] * TILE[1];
/// CTAs of `dense_many` that there is room for: two on each SM of the largest device.
const CTAS: usize = 2 * 192;
/// Sums and counters of such a CTA (its declaration).
const CTA_SUMS: usize = 67_584;
const CTA_COUNTERS: usize = 4;

/// `parts` and `arrived` of `dense` and `dense_mid`.
pub(crate) type Parts<'a> = (TensorMut<'a, f32, 4>, TensorMut<'a, i32, 2>);
/// `partial` and `arrived` of `dense_many`.
pub(crate) type Runs<'a> = (TensorMut<'a, f32, 1>, TensorMut<'a, i32, 1>);

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

    /// With room for sums of so many rows, and with or without that for many.
    pub(crate) fn sized(
        stream: &Stream,
        rows: usize,
        columns: usize,
        many: bool,
    ) -> Result<Self, KernelError> {
        let failed = |error| KernelError::driver("allocating room for sums of segments", error);
        let tiles = tiles(rows, columns, many);
        Ok(Self {
            sums: stream.cuda().alloc_zeros(tiles * TILE_SUMS).map_err(failed)?,
            arrived: stream.cuda().alloc_zeros(tiles).map_err(failed)?,
            many,
        })
    }

    /// Whether there is room for kernels for more than [`FEW_ROWS`] rows.
    pub(crate) fn many(&self) -> bool {
        self.many
    }

    /// Blocks of eight rows of `columns` columns that [`Self::parts`] has room for.
    pub(crate) fn blocks(&self, columns: usize) -> usize {
        self.arrived.len() / columns.div_ceil(TILE[1]).max(1)
    }

    /// For `columns` columns, with room for as many rows as there is.
    ///
    /// # Errors
    /// Memory of another device.
    pub(crate) fn parts(&mut self, stream: &Stream, columns: usize) -> Result<Parts<'_>, KernelError> {
        let tiles = columns.div_ceil(TILE[1]).max(1);
        let blocks = self.blocks(columns);
        let sums = [SEGMENTS, blocks, tiles, TILE[0] * TILE[1]];
        Ok((
            TensorMut::new(stream, self.sums.slice_mut(..sums.iter().product::<usize>()), sums)?,
            TensorMut::new(stream, self.arrived.slice_mut(..blocks * tiles), [blocks, tiles])?,
        ))
    }

    /// For `dense_many`, if there is room.
    ///
    /// # Errors
    /// Memory of another device.
    pub(crate) fn runs(&mut self, stream: &Stream) -> Result<Option<Runs<'_>>, KernelError> {
        let (sums, counts) = (CTAS * CTA_SUMS, CTAS * CTA_COUNTERS);
        if !self.many {
            return Ok(None);
        }
        Ok(Some((
            TensorMut::new(stream, self.sums.slice_mut(..sums), [sums])?,
            TensorMut::new(stream, self.arrived.slice_mut(..counts), [counts])?,
        )))
    }

    /// Whether all counts are zero again, as they must be between launches.
    pub(crate) fn settled(&self, stream: &Stream) -> Result<bool, KernelError> {
        let counts = stream.cuda().clone_dtoh(&self.arrived);
        let counts = counts.map_err(|error| KernelError::driver("reading counts of segments", error))?;
        stream.synchronize()?;
        Ok(counts.iter().all(|count| *count == 0))
    }

    /// Bytes of [`DenseScratch::new`].
    pub fn bytes(rows: usize, columns: usize) -> usize {
        bytes(rows, columns, DenseProduct::has_many(rows))
    }

    /// Bytes of [`DenseScratch::few`].
    pub fn few_bytes(rows: usize, columns: usize) -> usize {
        bytes(rows, columns, false)
    }
}

fn bytes(rows: usize, columns: usize, many: bool) -> usize {
    tiles(rows.min(FEW_ROWS), columns, many) * (TILE_SUMS * size_of::<f32>() + size_of::<i32>())
}

/// Tiles that there is room for.
fn tiles(rows: usize, columns: usize, many: bool) -> usize {
    let runs = if many { (CTAS * CTA_SUMS).div_ceil(TILE_SUMS).max(CTAS * CTA_COUNTERS) } else { 0 };
    (rows.div_ceil(TILE[0]) * columns.div_ceil(TILE[1])).max(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_counted_in_whole_tiles() {
        assert_eq!(bytes(8, 16, false), 4 * 8 * 16 * 4 + 4);
        assert_eq!(DenseScratch::few_bytes(33, 2100), DenseScratch::few_bytes(40, 2112));
    }

    #[test]
    fn room_for_many_suffices_for_every_family() {
        let tiles = tiles(64, 7168, true);
        assert!(tiles * TILE_SUMS >= CTAS * CTA_SUMS && tiles >= CTAS * CTA_COUNTERS);
        for (rows, columns) in [(144, 20_480), (288, 4096), (132, 7168)] {
            assert!(tiles / (columns / TILE[1]) * TILE[0] >= rows, "{rows} rows, {columns} columns");
        }
    }
}
