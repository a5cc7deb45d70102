//! The drafter's attention: grouped-query attention of a block over committed context and the block itself.

use kd_tensor::ops::{self, exponentials};
use kd_tensor::{Matrix, Pool, RowList, mix, multiply_rows};

use crate::{PageId, PagedCache};

/// Shape and visibility of one drafter layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GqaConfig {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `h` uses `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Key and value heads of a cached token: `kv_heads`, or those of all ranks.
    pub cached_heads: usize,
    /// The first of them that is one of `kv_heads`.
    pub first_cached: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// A row at position `p` sees the key at `j` if `p − j < window`; `None` sees everything.
    pub window: Option<usize>,
    /// Whether a row sees only rows of its block at or before its own position.
    pub causal: bool,
}

impl GqaConfig {
    /// Keys and values of a row: keys of all kv heads, then values.
    pub fn row_width(&self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// The same of a cached token.
    pub fn cache_width(&self) -> usize {
        2 * self.cached_heads * self.head_dim
    }

    /// Values of a row's query heads that use one kv head.
    fn group_width(&self) -> usize {
        self.heads / self.kv_heads * self.head_dim
    }
}

/// The block of one stream: its rows follow those of the stream before.
#[derive(Debug, Clone, Copy)]
pub struct BlockSegment<'a> {
    /// The stream's page table, reaching at least `start` tokens.
    pub pages: &'a [PageId],
    /// Committed tokens; the block's rows take the positions from here on.
    pub start: usize,
}

/// What all rows of a pass share in one layer.
#[derive(Debug, Clone, Copy)]
pub struct BlockPass<'a> {
    /// Their keys and values, `[streams · block, row_width]`.
    pub own: &'a Matrix,
    /// The block of each stream.
    pub segments: &'a [BlockSegment<'a>],
    /// Keys and values of committed tokens.
    pub context: &'a PagedCache,
    /// The layer, counted from 0.
    pub layer: usize,
}

/// Attention of normed and rotated queries `[rows, heads · head_dim]`, rows `first ..` of a pass, over the context and all rows'
/// own keys and values, in order of position. Returns a matrix shaped like `queries`.
pub fn attend_block(
    pool: &Pool,
    config: &GqaConfig,
    queries: &Matrix,
    first: usize,
    pass: &BlockPass<'_>,
) -> Matrix {
    let BlockPass { own, segments, context, layer } = *pass;
    let block = own.rows() / segments.len().max(1);
    let mut out = Matrix::zeros(queries.rows(), queries.cols());
    let mut rows = out.iter_rows_mut();
    let mut tasks = Vec::new();
    let (mut row, end) = (first, first + queries.rows());
    while row < end {
        // Rows that see the same keys read them together.
        let alone = config.causal || config.window.is_some();
        let together = if alone { 1 } else { (block - row % block).min(end - row) };
        let rows = rows.by_ref().take(together);
        let mut groups: Vec<_> = rows.map(|row| row.chunks_exact_mut(config.group_width())).collect();
        for kv in 0..config.kv_heads {
            let part = groups.iter_mut().map(|row| row.next().expect("a part for each key head"));
            let out: Vec<&mut [f32]> = part.collect();
            tasks.push((row, kv, out));
        }
        row += together;
    }
    pool.for_each(tasks, |(row, kv, out)| {
        let (segment, k) = (&segments[row / block], row % block);
        let position = segment.start + k;
        let oldest = config.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let newest = if config.causal { k } else { block - 1 };
        // W >= block is required of the configuration, so the window never cuts into the block.
        let cached = oldest.min(segment.start)..segment.start;
        let part = |cached_head: usize, own_head: usize| -> Vec<&[f32]> {
            let cached = cached.clone().map(|j| (context.token(layer, segment.pages, j), cached_head));
            let own = (0..=newest).map(|j| (own.row(row - k + j), own_head));
            cached.chain(own).map(|(row, head)| &row[head * config.head_dim..][..config.head_dim]).collect()
        };
        let keys = part(config.first_cached + kv, kv);
        let values = part(config.cached_heads + config.first_cached + kv, config.kv_heads + kv);
        let width = config.group_width();
        let queries: Vec<&[f32]> = (row - first..row - first + out.len())
            .flat_map(|row| queries.row(row)[kv * width..][..width].chunks_exact(config.head_dim))
            .collect();
        attend_heads(config.head_dim, &queries, &keys, &values, out);
    });
    out
}

/// The query heads of one kv head, of rows that see the same keys.
fn attend_heads(dim: usize, queries: &[&[f32]], keys: &[&[f32]], values: &[&[f32]], out: Vec<&mut [f32]>) {
    let scale = 1.0 / (dim as f32).sqrt();
    let mut scores = Matrix::unwritten(queries.len(), keys.len());
    multiply_rows(&RowList(keys), 0, queries, &mut scores.iter_rows_mut().collect::<Vec<_>>());
    let sums: Vec<f32> = scores.iter_rows_mut().map(|row| exponentials(row, scale)).collect();
    let mut heads: Vec<&mut [f32]> = out.into_iter().flat_map(|out| out.chunks_exact_mut(dim)).collect();
    mix(&scores.iter_rows().collect::<Vec<_>>(), &RowList(values), &mut heads);
    for (out, sum) in heads.into_iter().zip(sums) {
        ops::scale(out, 1.0 / sum);
    }
}
