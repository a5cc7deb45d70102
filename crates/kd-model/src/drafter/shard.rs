//! One rank's part of the drafter.

use kd_attn::{BlockSegment, GqaConfig, PagedCache, RopeTable, attend_block};
use kd_moe::Mlp;
use kd_tensor::ops::{embed_part, rms_norm_in_place, rms_norm_rows};
use kd_tensor::{Bf16Matrix, Collective, CollectiveError, Matrix, Pool, View, linear, linears, multiply_all};

use super::Draft;
use crate::seam::reduce_add_norm;
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
        Ok(pairs.map(|([keys, values], layer)| self.keys_values(layer, keys, values, rope)).collect())
    }

    /// Keys, normed and rotated, beside their values.
    fn keys_values(
        &self,
        layer: &DraftLayer,
        keys: &mut Matrix,
        values: &Matrix,
        rope: &RopeTable,
    ) -> Matrix {
        self.norm_and_rotate(keys, &layer.key_norm, rope);
        Matrix::beside(&[&*keys, values])
    }

    fn norm_and_rotate(&self, heads: &mut Matrix, gain: &[f32], rope: &RopeTable) {
        for (row, heads) in heads.iter_rows_mut().enumerate() {
            for head in heads.chunks_exact_mut(gain.len()) {
                rms_norm_in_place(head, gain, self.eps);
                rope.rotate_half_split(row, head);
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
        let Block { ids, block, embed, head, rope, segments, context } = *pass;
        let (share, eps) = (Share::of(group), self.eps);
        let span = share.span(embed.rows());
        let mut x = group.all_reduce(embed_part(&embed.slice_rows(span.clone()), span.start, ids))?;
        let first = share.rank == 0;
        let mut hidden: Vec<Matrix> = first.then(|| x.clone()).into_iter().collect();
        let mut normed = rms_norm_rows(&x, &self.layers[0].input_norm, eps);
        for (i, layer) in self.layers.iter().enumerate() {
            let [mut queries, mut keys, values] =
                linears(pool, normed.view(), [&layer.query, &layer.key, &layer.value]);
            self.norm_and_rotate(&mut queries, &layer.query_norm, rope);
            let own = self.keys_values(layer, &mut keys, &values, rope);
            let mixed = attend_block(pool, &layer.shape, &queries, &own, segments, context, i);
            let out = linear(pool, mixed.view(), &layer.output);
            normed = reduce_add_norm(group, out, &mut x, &layer.post_norm, eps)?;
            let out = layer.mlp.forward(pool, normed.view());
            let gain = self.layers.get(i + 1).map_or(&self.norm, |next| &next.input_norm);
            normed = reduce_add_norm(group, out, &mut x, gain, eps)?;
            hidden.extend(first.then(|| x.clone()));
        }
        let drafted: Vec<usize> = (0..ids.len()).filter(|row| row % block != 0).collect();
        let rows = normed.gather(drafted.into_iter());
        let logits = linear(pool, rows.view(), &head.slice_rows(share.span(head.rows())));
        Ok(Draft { hidden, final_norm: normed, logits })
    }
}
