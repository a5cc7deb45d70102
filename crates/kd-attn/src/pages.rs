//! Paged caches of committed tokens.

use std::ops::Range;

use bytemuck::allocation::try_zeroed_vec;
use kd_tensor::Matrix;
use thiserror::Error;

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
    *layers as f64 * *pages as f64 * (PAGE_TOKENS * 4) as f64 * *width as f64 / (1u64 << 30) as f64
)]
pub struct CacheError {
    /// Layers.
    pub layers: usize,
    /// Pages.
    pub pages: usize,
    /// Values a token and layer.
    pub width: usize,
}

/// f32 vectors of one width for every (layer, token), in pages of [`PAGE_TOKENS`] tokens.
///
/// It serves the target's latents (`kv_lora_rank + qk_rope_head_dim` wide) and the drafter's context keys and values
/// (`2 · kv_heads · head_dim` wide). It holds committed tokens only: what a draft produced stays in the rows of its
/// own pass until it is accepted.
#[derive(Debug, Clone)]
pub struct PagedCache {
    layers: usize,
    pages: usize,
    width: usize,
    data: Vec<f32>,
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
        let too_large = || CacheError { layers, pages, width };
        // Page ids are 32 bits wide.
        if u32::try_from(pages).is_err() {
            return Err(too_large());
        }
        let values = [pages, PAGE_TOKENS, width].into_iter().try_fold(layers, usize::checked_mul);
        let data = try_zeroed_vec(values.ok_or_else(too_large)?).map_err(|()| too_large())?;
        Ok(Self { layers, pages, width, data })
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

    fn offset(&self, layer: usize, table: &[PageId], position: usize) -> usize {
        let page = table[position / PAGE_TOKENS].0 as usize;
        debug_assert!(
            layer < self.layers && page < self.pages,
            "page {page} or layer {layer} outside the cache"
        );
        ((layer * self.pages + page) * PAGE_TOKENS + position % PAGE_TOKENS) * self.width
    }

    /// The vector at `position` of the sequence whose pages are `table`.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far.
    pub fn token(&self, layer: usize, table: &[PageId], position: usize) -> &[f32] {
        &self.data[self.offset(layer, table, position)..][..self.width]
    }

    /// The vectors at all of `positions`, in order.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far.
    pub fn tokens<'a>(
        &'a self,
        layer: usize,
        table: &'a [PageId],
        positions: Range<usize>,
    ) -> impl Iterator<Item = &'a [f32]> {
        let pages = positions.start / PAGE_TOKENS..positions.end.div_ceil(PAGE_TOKENS);
        pages.flat_map(move |page| {
            let first = page * PAGE_TOKENS;
            let own = positions.start.max(first)..positions.end.min(first + PAGE_TOKENS);
            let start = self.offset(layer, table, own.start);
            self.data[start..start + own.len() * self.width].chunks_exact(self.width)
        })
    }

    /// The vector at `position`, to be written.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far.
    pub fn token_mut(&mut self, layer: usize, table: &[PageId], position: usize) -> &mut [f32] {
        let offset = self.offset(layer, table, position);
        &mut self.data[offset..][..self.width]
    }

    /// Commits tokens: row `rows[i]` of every layer's matrix goes to position `start + i` of the sequence.
    ///
    /// # Panics
    /// If the table or the cache does not reach that far, or a matrix has another width.
    pub fn commit(&mut self, layers: &[Matrix], rows: &[usize], table: &[PageId], start: usize) {
        for (layer, values) in layers.iter().enumerate() {
            for (i, &row) in rows.iter().enumerate() {
                self.token_mut(layer, table, start + i).copy_from_slice(values.row(row));
            }
        }
    }

    /// Fills one page of every layer, so that a test can see whether anything reads what was not committed.
    pub fn fill_page(&mut self, page: PageId, value: f32) {
        for layer in 0..self.layers {
            let start = self.offset(layer, &[page], 0);
            self.data[start..start + PAGE_TOKENS * self.width].fill(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_at_their_positions() {
        let mut cache = PagedCache::new(2, 4, 3);
        let table = [PageId(2), PageId(0), PageId(3)];
        for position in 0..3 * PAGE_TOKENS {
            cache.token_mut(1, &table, position).fill(position as f32);
        }
        for range in [0..0, 5..5, 0..1, 3..64, 63..66, 0..192, 64..64, 100..150] {
            let tokens: Vec<&[f32]> = cache.tokens(1, &table, range.clone()).collect();
            let each: Vec<&[f32]> = range.map(|position| cache.token(1, &table, position)).collect();
            assert_eq!(tokens, each);
        }
    }
}
