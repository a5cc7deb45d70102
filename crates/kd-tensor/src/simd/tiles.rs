//! Weights in the order in which products read them: tiles of sixteen rows, a row a lane.

use half::bf16;

pub(crate) use super::lanes::LANES;
use super::lanes::Words;
use crate::int4::{CODES_PER_WORD, GROUP};
use crate::lasting::Lasting;

/// bf16 weights: for each pair of columns a vector of words, a word a row. Missing rows and columns are zero.
#[derive(Debug)]
pub(crate) struct DenseTiles {
    pub(super) cols: usize,
    /// `[tiles][pairs of columns]` vectors.
    words: Lasting,
}

impl DenseTiles {
    /// Of `rows` rows of `cols` weights.
    pub(crate) fn new<'a>(rows: usize, cols: usize, row: impl Fn(usize) -> &'a [bf16]) -> Self {
        let pairs = cols.div_ceil(2);
        let mut words = Lasting::zeros(rows.div_ceil(LANES) * pairs * LANES);
        for (tile, out) in vectors_mut(&mut words).chunks_exact_mut(pairs.max(1)).enumerate() {
            for (lane, r) in (tile * LANES..rows.min((tile + 1) * LANES)).enumerate() {
                for (out, pair) in out.iter_mut().zip(row(r).chunks(2)) {
                    let high = pair.get(1).map_or(0, |w| w.to_bits());
                    out[lane] = u32::from(pair[0].to_bits()) | u32::from(high) << 16;
                }
            }
        }
        Self { cols, words }
    }

    /// The pairs of columns of a tile.
    #[inline(always)]
    pub(super) fn tile(&self, tile: usize) -> &[Words] {
        let pairs = self.cols.div_ceil(2);
        &vectors(&self.words)[tile * pairs..][..pairs]
    }
}

/// INT4 weights: for each group of 32 columns four vectors of eight codes a row, and a vector of bf16 scales.
///
/// Byte `t` of word `i` holds column `8 i + t` of its group in its low half and column `8 i + 4 + t` in its high half, so
/// that bytes of codes meet bytes of neighbouring columns.
#[derive(Debug)]
pub(crate) struct CodeTiles {
    pub(super) groups: usize,
    /// `[tiles][groups][4]` vectors.
    words: Lasting,
    /// `[tiles][groups][16]`.
    scales: Lasting,
}

impl CodeTiles {
    /// Of rows of so many groups of 32 codes. `row` gives the words of a row and its scales.
    pub(crate) fn new<'a>(
        rows: usize,
        groups: usize,
        row: impl Fn(usize) -> (&'a [i32], &'a [bf16]),
    ) -> Self {
        const WORDS: usize = GROUP / CODES_PER_WORD;
        let tiles = rows.div_ceil(LANES);
        let mut words = Lasting::zeros(tiles * groups * WORDS * LANES);
        let mut scales = Lasting::zeros(tiles * groups * LANES / 2);
        let out = vectors_mut(&mut words).chunks_exact_mut((WORDS * groups).max(1));
        for (tile, (words, scales)) in
            out.zip(scale_lines_mut(&mut scales).chunks_exact_mut(groups.max(1))).enumerate()
        {
            for (lane, r) in (tile * LANES..rows.min((tile + 1) * LANES)).enumerate() {
                let (codes, own) = row(r);
                words.iter_mut().zip(codes).for_each(|(out, &codes)| out[lane] = by_bytes(codes as u32));
                scales.iter_mut().zip(own).for_each(|(out, &scale)| out[lane] = scale);
            }
        }
        Self { groups, words, scales }
    }

    /// The words and scales of the groups of a tile.
    #[inline(always)]
    pub(super) fn tile(&self, tile: usize) -> (&[[Words; 4]], &[[bf16; LANES]]) {
        let groups = vectors(&self.words).as_chunks().0;
        let scales: &[[bf16; LANES]] = bytemuck::cast_slice(&self.scales);
        (&groups[tile * self.groups..][..self.groups], &scales[tile * self.groups..][..self.groups])
    }
}

/// Codes 0 … 3 to the low halves of the bytes, codes 4 … 7 to the high halves.
fn by_bytes(codes: u32) -> u32 {
    let spread = |four: u32| {
        let two = (four | four << 8) & 0x00ff_00ff;
        (two | two << 4) & 0x0f0f_0f0f
    };
    spread(codes & 0xffff) | spread(codes >> 16) << 4
}

fn vectors(memory: &[f32]) -> &[Words] {
    bytemuck::cast_slice(memory)
}

fn vectors_mut(memory: &mut [f32]) -> &mut [[u32; LANES]] {
    bytemuck::cast_slice_mut(memory)
}

fn scale_lines_mut(memory: &mut [f32]) -> &mut [[bf16; LANES]] {
    bytemuck::cast_slice_mut(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_go_to_the_bytes_of_their_columns() {
        assert_eq!(by_bytes(0x7654_3210), 0x7362_5140);
    }
}
