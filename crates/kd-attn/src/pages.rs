//! Paged caches of committed tokens.

use std::ops::Range;

use bytemuck::allocation::try_zeroed_vec;
use kd_tensor::Matrix;
use thiserror::Error;

use crate::Fp8Entry;

/// Tokens in one page.
pub const PAGE_TOKENS: usize = 64;

/// Index of a page in its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A cache that the memory does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "out of memory: a cache of {pages} pages of {PAGE_TOKENS} tokens, {layers} layers and {width} values needs {:.1} GiB; \
     ask for a shorter context or fewer streams",
    *layers as f64 * *pages as f64 * PAGE_TOKENS as f64 * *bytes as f64 / (1u64 << 30) as f64
)]
pub struct CacheError {
    /// Layers.
    pub layers: usize,
    /// Pages.
    pub pages: usize,
    /// Values a token and layer.
    pub width: usize,
    /// Bytes a token and layer.
    pub bytes: usize,
}

/// How the pages of latents hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCacheDtype {
    /// As the device computes: f32 on a CPU, bf16 on a GPU.
    #[default]
    Auto,
    /// e4m3 latents with a scale a token, rotated keys in bf16: [`Fp8Entry`].
    Fp8,
}

impl KvCacheDtype {
    /// Bytes of an entry on a GPU.
    pub fn entry_bytes(self, entry: Fp8Entry) -> usize {
        match self {
            Self::Auto => 2 * entry.width(),
            Self::Fp8 => entry.bytes(),
        }
    }
}

/// The values of a cache.
#[derive(Debug, Clone)]
enum Values {
    F32(Vec<f32>),
    Fp8(Fp8Entry, Vec<u8>),
}

/// Vectors of a cache.
#[derive(Debug)]
pub enum Tokens<'a> {
    /// As they are stored.
    Stored(Vec<&'a [f32]>),
    /// Of a cache that stores something else.
    Decoded(Matrix),
}

impl Tokens<'_> {
    /// One slice a token.
    pub fn rows(&self) -> Vec<&[f32]> {
        match self {
            Self::Stored(rows) => rows.clone(),
            Self::Decoded(rows) => rows.iter_rows().collect(),
        }
    }
}

/// f32 vectors of one width for every (layer, token), in pages of [`PAGE_TOKENS`] tokens.
///
/// It serves the target's latents (`kv_lora_rank + qk_rope_head_dim` wide) and the drafter's context keys and values
/// (`2 · kv_heads · head_dim` wide). Latents may be kept as [`Fp8Entry`]s; those of a pass are then what a page would give back
/// ([`PagedCache::round`]), so that no row can tell where a key came from.
/// It holds committed tokens only: what a draft produced stays in the rows of its
/// own pass until it is accepted.
#[derive(Debug, Clone)]
pub struct PagedCache {
    layers: usize,
    pages: usize,
    width: usize,
    values: Values,
}

impl PagedCache {
    /// A cache of `pages` pages. The memory is taken as pages are first written.
    ///
    /// # Panics
    /// If the system has no such memory to give; where the sizes come from outside, use [`PagedCache::try_new`].
    pub fn new(layers: usize, pages: usize, width: usize) -> Self {
        Self::try_new(layers, pages, width).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`PagedCache::new`].
    ///
    /// # Errors
    /// [`CacheError`] if the system has no such memory to give.
    pub fn try_new(layers: usize, pages: usize, width: usize) -> Result<Self, CacheError> {
        let values = zeroed(layers, pages, width, 4, width)?;
        Ok(Self { layers, pages, width, values: Values::F32(values) })
    }

    /// A cache of entries in FP8.
    ///
    /// # Errors
    /// [`CacheError`] if the system has no such memory to give.
    pub fn try_new_fp8(layers: usize, pages: usize, entry: Fp8Entry) -> Result<Self, CacheError> {
        let values = zeroed(layers, pages, entry.bytes(), 1, entry.width())?;
        Ok(Self { layers, pages, width: entry.width(), values: Values::Fp8(entry, values) })
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Values a token and layer.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Which of the cache's vectors it is.
    fn index(&self, layer: usize, table: &[PageId], position: usize) -> usize {
        let page = table[position / PAGE_TOKENS].0 as usize;
        debug_assert!(
            layer < self.layers && page < self.pages,
            "page {page} or layer {layer} outside the cache"
        );
        (layer * self.pages + page) * PAGE_TOKENS + position % PAGE_TOKENS
    }

    /// Writes the vector at `position`.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far, or the vector has another width.
    pub fn write(&mut self, layer: usize, table: &[PageId], position: usize, vector: &[f32]) {
        let index = self.index(layer, table, position);
        match &mut self.values {
            Values::F32(values) => values[index * self.width..][..self.width].copy_from_slice(vector),
            Values::Fp8(entry, bytes) => {
                entry.encode(vector, &mut bytes[index * entry.bytes()..][..entry.bytes()]);
            }
        }
    }

    /// The vectors at `positions`.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far.
    pub fn tokens(&self, layer: usize, table: &[PageId], positions: Range<usize>) -> Tokens<'_> {
        match &self.values {
            Values::F32(values) => {
                let mut vectors = Vec::with_capacity(positions.len());
                for page in positions.start / PAGE_TOKENS..positions.end.div_ceil(PAGE_TOKENS) {
                    let first = page * PAGE_TOKENS;
                    let own = positions.start.max(first)..positions.end.min(first + PAGE_TOKENS);
                    let start = self.index(layer, table, own.start) * self.width;
                    vectors.extend(values[start..][..own.len() * self.width].chunks_exact(self.width));
                }
                Tokens::Stored(vectors)
            }
            Values::Fp8(entry, bytes) => {
                let mut vectors = Matrix::unwritten(positions.len(), self.width);
                for (vector, position) in vectors.iter_rows_mut().zip(positions) {
                    let index = self.index(layer, table, position);
                    entry.decode(&bytes[index * entry.bytes()..][..entry.bytes()], vector);
                }
                Tokens::Decoded(vectors)
            }
        }
    }

    /// The vector at `position` of the sequence whose pages are `table`.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far.
    pub fn token(&self, layer: usize, table: &[PageId], position: usize) -> Vec<f32> {
        self.tokens(layer, table, position..position + 1).rows().concat()
    }

    /// Makes of a vector what the cache would give back of it.
    ///
    /// # Panics
    /// If the vector has another width.
    pub fn round(&self, vector: &mut [f32]) {
        if let Values::Fp8(entry, _) = &self.values {
            entry.round(vector);
        }
    }

    /// Commits tokens: row `rows[i]` of every layer's matrix goes to position `start + i` of the sequence.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far, or a matrix has another width.
    pub fn commit(&mut self, layers: &[Matrix], rows: &[usize], table: &[PageId], start: usize) {
        for (layer, values) in layers.iter().enumerate() {
            for (i, &row) in rows.iter().enumerate() {
                self.write(layer, table, start + i, values.row(row));
            }
        }
    }

    /// Fills one page of every layer, so that a test can see whether anything reads what was not committed.
    pub fn fill_page(&mut self, page: PageId, value: f32) {
        let vector = vec![value; self.width];
        for layer in 0..self.layers {
            (0..PAGE_TOKENS).for_each(|position| self.write(layer, &[page], position, &vector));
        }
    }
}

/// `width` elements of `size` bytes for each token and layer; `values` is how many values they are.
fn zeroed<T: bytemuck::Zeroable>(
    layers: usize,
    pages: usize,
    width: usize,
    size: usize,
    values: usize,
) -> Result<Vec<T>, CacheError> {
    let too_large = || CacheError { layers, pages, width: values, bytes: width.saturating_mul(size) };
    // Page ids are 32 bits wide.
    if u32::try_from(pages).is_err() {
        return Err(too_large());
    }
    let elements = [pages, PAGE_TOKENS, width].into_iter().try_fold(layers, usize::checked_mul);
    try_zeroed_vec(elements.ok_or_else(too_large)?).map_err(|()| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_at_their_positions() {
        let mut cache = PagedCache::new(2, 4, 3);
        let table = [PageId(2), PageId(0), PageId(3)];
        for position in 0..3 * PAGE_TOKENS {
            cache.write(1, &table, position, &[position as f32; 3]);
        }
        for range in [0..0, 5..5, 0..1, 3..64, 63..66, 0..192, 64..64, 100..150] {
            let tokens = cache.tokens(1, &table, range.clone());
            let expected: Vec<[f32; 3]> = range.map(|position| [position as f32; 3]).collect();
            assert_eq!(tokens.rows(), expected.iter().map(<[f32; 3]>::as_slice).collect::<Vec<_>>());
        }
    }
}
