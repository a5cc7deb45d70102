//! One rank's part of the drafter.

use std::iter::repeat_n;
use std::ops::Range;

use kd_attn::{BlockPass, BlockSegment, GqaConfig, PagedCache, RopeTable, attend_block};
use kd_moe::Mlp;
use kd_tensor::ops::{embed_part, rms_norm_in_place, rms_norm_rows};
use kd_tensor::{
    Alone, Bf16Matrix, Collective, CollectiveError, Matrix, Pool, View, linear, linears, multiply_all,
};

use super::Draft;
use crate::seam::{Place, reduce_add_norm, row_parts, succeeded};
use crate::share::Share;

/// What one rank holds of a layer.
#[derive(Debug)]
pub(crate) struct DraftLayer {
    pub(crate) shape: GqaConfig,
    pub(crate) input_norm: Vec<f32>,
    pub(crate) query: Bf16Matrix,
    pub(crate) key: Bf16Matrix,
    pub(crate) value: Bf16Matrix,
    pub(crate) output: Bf16Matrix,
    pub(crate) query_norm: Vec<f32>,
    pub(crate) key_norm: Vec<f32>,
    pub(crate) post_norm: Vec<f32>,
    pub(crate) mlp: Mlp,
}

/// What one rank holds of a drafter.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) eps: f32,
    /// Some rows of `fc`.
    pub(crate) fc: Bf16Matrix,
    pub(crate) hidden_norm: Vec<f32>,
    pub(crate) layers: Vec<DraftLayer>,
    pub(crate) norm: Vec<f32>,
}

/// What all ranks of one drafting pass are given.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) ids: &'a [u32],
    /// Rows of a stream.
    pub(super) block: usize,
    pub(super) embed: &'a Bf16Matrix,
    pub(super) head: &'a Bf16Matrix,
    pub(super) rope: &'a RopeTable,
    pub(super) segments: &'a [BlockSegment<'a>],
    pub(super) context: &'a PagedCache,
}

impl Shard {
    /// Context keys and values of this rank's heads: a matrix `[tokens, row_width]` a layer.
    pub(super) fn context(
        &self,
        group: &dyn Collective,
        pool: &Pool,
        taps: View<'_>,
        rope: &RopeTable,
    ) -> Result<Vec<Matrix>, CollectiveError> {
        let fused = group.all_gather(linear(pool, taps, &self.fc))?;
        let fused = rms_norm_rows(&fused, &self.hidden_norm, self.eps);
        let weights: Vec<&Bf16Matrix> =
            self.layers.iter().flat_map(|layer| [&layer.key, &layer.value]).collect();
        let mut all: Vec<Matrix> =
            weights.iter().map(|w| Matrix::unwritten(fused.rows(), w.rows())).collect();
        multiply_all(pool, fused.view(), &weights, &mut all);
        let pairs = all.as_chunks_mut().0.iter_mut().zip(&self.layers);
        Ok(pairs.map(|([keys, values], layer)| self.keys_values(layer, keys, values, rope, 0)).collect())
    }

    /// Keys of rows `first ..`, normed and rotated, beside their values.
    fn keys_values(
        &self,
        layer: &DraftLayer,
        keys: &mut Matrix,
        values: &Matrix,
        rope: &RopeTable,
        first: usize,
    ) -> Matrix {
        self.norm_and_rotate(keys, &layer.key_norm, rope, first);
        Matrix::beside(&[&*keys, values])
    }

    fn norm_and_rotate(&self, heads: &mut Matrix, gain: &[f32], rope: &RopeTable, first: usize) {
        for (row, heads) in heads.iter_rows_mut().enumerate() {
            for head in heads.chunks_exact_mut(gain.len()) {
                rms_norm_in_place(head, gain, self.eps);
                rope.rotate_half_split(first + row, head);
            }
        }
    }

    /// One rank's part of a pass. All ranks compute the same residuals, and the first returns them; each has the logits of
    /// its own span of the vocabulary.
    pub(super) fn draft(
        &self,
        group: &dyn Collective,
        pool: &Pool,
        pass: &Block<'_>,
    ) -> Result<Draft, CollectiveError> {
        let Block { ids, block, head, .. } = *pass;
        let parts = if group.ranks() > 1 { vec![] } else { self.row_parts(pool, block, pass.segments) };
        let (hidden, final_norm) = if parts.len() <= 1 {
            self.residuals(Place { group, parts: &Alone, rows: 0..ids.len() }, pool, pass)?
        } else {
            let parts = pool.in_parts(parts, |parts, pool, rows| {
                self.residuals(Place { group: &Alone, parts, rows }, pool, pass)
            });
            succeeded(parts).swap_remove(0)
        };
        let drafted: Vec<usize> = (0..ids.len()).filter(|row| row % block != 0).collect();
        let rows = final_norm.gather(drafted.into_iter());
        let logits = linear(pool, rows.view(), &head.slice_rows(Share::of(group).span(head.rows())));
        Ok(Draft { hidden, final_norm, logits })
    }

    /// The rows that each thread takes through all layers; a single part if threads share all rows.
    fn row_parts(&self, pool: &Pool, block: usize, segments: &[BlockSegment<'_>]) -> Vec<Range<usize>> {
        let cost = |segment: &BlockSegment<'_>| self.row_cost(segment.start + block);
        let costs = segments.iter().flat_map(|segment| repeat_n(cost(segment), block));
        row_parts(pool, self.mlp_bytes(), segments.len() * block, costs)
    }

    /// Multiply-adds of all layers for a row that sees so many keys, its window aside.
    fn row_cost(&self, keys: usize) -> f64 {
        let weights = |m: &Bf16Matrix| (m.rows() * m.cols()) as f64;
        let layers = self.layers.iter().map(|layer| {
            let outer = [&layer.query, &layer.key, &layer.value, &layer.output].map(weights);
            let seen = layer.shape.window.map_or(keys, |window| keys.min(window));
            let attention = 2 * layer.shape.heads * layer.shape.head_dim;
            outer.iter().sum::<f64>() + 3.0 * weights(&layer.mlp.gate) + attention as f64 * seen as f64
        });
        layers.sum()
    }

    /// Bytes of feed-forward weights, most of a drafter.
    fn mlp_bytes(&self) -> usize {
        self.layers.iter().map(|layer| 6 * layer.mlp.gate.rows() * layer.mlp.gate.cols()).sum()
    }

    /// The residual stream of all rows after each layer, the embedding first, and the input of the head, of which a part of the rows
    /// computes its own. Other ranks than the first have the latter alone.
    fn residuals(
        &self,
        Place { group, parts, rows }: Place<'_>,
        pool: &Pool,
        pass: &Block<'_>,
    ) -> Result<(Vec<Matrix>, Matrix), CollectiveError> {
        let Block { ids, embed, rope, segments, context, .. } = *pass;
        let (share, eps) = (Share::of(group), self.eps);
        let span = share.span(embed.rows());
        let start = rows.start;
        let mut x = group.all_reduce(embed_part(&embed.slice_rows(span.clone()), span.start, &ids[rows]))?;
        let first = share.rank == 0;
        let mut hidden: Vec<Matrix> = first.then(|| x.clone()).into_iter().collect();
        let mut normed = rms_norm_rows(&x, &self.layers[0].input_norm, eps);
        for (i, layer) in self.layers.iter().enumerate() {
            let [mut queries, mut keys, values] =
                linears(pool, normed.view(), [&layer.query, &layer.key, &layer.value]);
            self.norm_and_rotate(&mut queries, &layer.query_norm, rope, start);
            let own = parts.all_gather_rows(self.keys_values(layer, &mut keys, &values, rope, start))?;
            let seen = BlockPass { own: &own, segments, context, layer: i };
            let mixed = attend_block(pool, &layer.shape, &queries, start, &seen);
            let out = linear(pool, mixed.view(), &layer.output);
            normed = reduce_add_norm(group, out, &mut x, &layer.post_norm, eps)?;
            let out = layer.mlp.forward(pool, normed.view());
            let gain = self.layers.get(i + 1).map_or(&self.norm, |next| &next.input_norm);
            normed = reduce_add_norm(group, out, &mut x, gain, eps)?;
            hidden.extend(first.then(|| x.clone()));
        }
        let hidden = hidden.into_iter().map(|part| parts.all_gather_rows(part)).collect::<Result<_, _>>()?;
        Ok((hidden, parts.all_gather_rows(normed)?))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;

    use kd_attn::PageId;

    use crate::Drafter;

    use super::*;

    /// Blocks of 8 rows, one stream each, on as many threads as they have rows for.
    #[test]
    fn the_demo_has_a_part_for_each_thread() {
        let drafter = Drafter::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/drafter"));
        let (drafter, pages) = (drafter.unwrap(), [PageId(0)]);
        let parts = |threads, starts: &[usize]| {
            let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let segments: Vec<_> =
                starts.iter().map(|&start| BlockSegment { pages: &pages, start }).collect();
            drafter.ranks[0].row_parts(&pool, 8, &segments)
        };
        assert_eq!(parts(2, &[100]).len(), 1);
        assert_eq!(parts(2, &[100, 100]), [0..8, 8..16]);
        assert_eq!([2, 3, 4].map(|threads| parts(threads, &[70, 33, 64, 1]).len()), [2, 3, 4]);
        let [long, short] = [[1900, 100], [100, 1900]].map(|starts| parts(2, &starts)[0].end);
        assert!(long < 8 && short > 8, "the long context is the smaller part: {long}, {short}");
    }
}
