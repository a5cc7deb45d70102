//! The DFlash drafter: a few Qwen3-style layers that draft a whole block in one pass.
//!
//! Its context is what the target computed: the tapped residuals of committed tokens, projected once and turned into
//! keys and values of every layer (arXiv 2602.06036). The block is the bonus token followed by masks; row `k` predicts
//! the token at its own position.

use kd_attn::{BlockSegment, CacheError, GqaConfig, PagedCache, Rope, RopeTable, attend_block};
use kd_moe::Mlp;
use kd_tensor::ops::{TokenOutOfRange, add_assign, embed, rms_norm_in_place, rms_norm_rows};
use kd_tensor::{Bf16Matrix, Matrix, Pool, View, linear};

use crate::config::DrafterConfig;
use crate::error::ConfigProblem;
use crate::target::Target;

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

/// A loaded drafter.
#[derive(Debug)]
pub struct Drafter {
    pub(crate) config: DrafterConfig,
    pub(crate) rope: Rope,
    pub(crate) fc: Bf16Matrix,
    pub(crate) hidden_norm: Vec<f32>,
    pub(crate) layers: Vec<DraftLayer>,
    pub(crate) norm: Vec<f32>,
    pub(crate) embed: Option<Bf16Matrix>,
    pub(crate) head: Option<Bf16Matrix>,
    /// Target id of each draft id, where the drafter has a vocabulary of its own.
    pub(crate) target_ids: Option<Vec<u32>>,
}

/// The target's embedding and head, for a drafter that has none of its own.
#[derive(Debug, Clone, Copy)]
pub struct Lent<'a> {
    /// `embed_tokens`, `[vocab, hidden]`.
    pub embed: Option<&'a Bf16Matrix>,
    /// `lm_head`, `[vocab, hidden]`.
    pub head: Option<&'a Bf16Matrix>,
}

impl<'a> From<&'a Target> for Lent<'a> {
    fn from(target: &'a Target) -> Self {
        Self { embed: Some(target.embedding()), head: Some(target.head()) }
    }
}

/// What one drafting pass computed.
#[derive(Debug)]
pub struct Draft {
    /// The residual stream of all block rows after each layer, the embedding first: `layers + 1` of
    /// `[streams · block, hidden]`.
    pub hidden: Vec<Matrix>,
    /// The input of the head, `[streams · block, hidden]`.
    pub final_norm: Matrix,
    /// Logits of rows 1 … block − 1 of every stream, `[streams · (block − 1), draft vocabulary]`.
    pub logits: Matrix,
}

impl Drafter {
    /// The configuration that the drafter was loaded with.
    pub fn config(&self) -> &DrafterConfig {
        &self.config
    }

    /// The rotary embedding of queries and keys.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Whether the drafter needs the target's embedding, and whether it needs the target's head.
    pub fn borrows(&self) -> (bool, bool) {
        (self.embed.is_none(), self.head.is_none())
    }

    /// Checks that this drafter can draft for `target`.
    ///
    /// # Errors
    /// [`ConfigProblem::Conflict`] naming both keys and values.
    pub fn check_target(&self, target: &Target) -> Result<(), ConfigProblem> {
        self.config.check_target(target.config())?;
        let (found, other) = (self.config.hidden_size, target.config().hidden_size);
        if found != other && (self.embed.is_none() || self.head.is_none()) {
            return Err(ConfigProblem::Conflict {
                key: "drafter hidden_size (it borrows the target's embedding or head)".to_owned(),
                found: found.to_string(),
                other_key: "target hidden_size".to_owned(),
                other: other.to_string(),
            });
        }
        Ok(())
    }

    /// The target's id of a draft id.
    ///
    /// # Panics
    /// If `draft_id` lies outside the draft vocabulary.
    pub fn target_id(&self, draft_id: u32) -> u32 {
        self.target_ids.as_ref().map_or(draft_id, |ids| ids[draft_id as usize])
    }

    /// A cache for `pages` pages of this drafter's context.
    ///
    /// # Panics
    /// If they do not fit in memory; [`Self::try_new_cache`] for a number of pages that comes from outside.
    pub fn new_cache(&self, pages: usize) -> PagedCache {
        self.try_new_cache(pages).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Self::new_cache`].
    ///
    /// # Errors
    /// [`CacheError`] if they do not fit in memory.
    pub fn try_new_cache(&self, pages: usize) -> Result<PagedCache, CacheError> {
        let width = self.layers.first().map_or(0, |layer| layer.shape.cache_width());
        PagedCache::try_new(self.layers.len(), pages, width)
    }

    /// Context keys and values of committed tokens from their taps `[tokens, taps · hidden]`: a matrix
    /// `[tokens, 2 · kv_heads · head_dim]` a layer, keys (normed and rotated) first.
    ///
    /// A row depends on its own taps and position alone, so tokens may come at once or one by one.
    pub fn context(
        &self,
        pool: &Pool,
        taps: &Matrix,
        positions: impl IntoIterator<Item = usize>,
    ) -> Vec<Matrix> {
        let eps = self.config.rms_norm_eps as f32;
        let fused = rms_norm_rows(&linear(pool, taps.view(), &self.fc), &self.hidden_norm, eps);
        let rope = self.rope.table(positions);
        self.layers.iter().map(|layer| self.keys_values(pool, layer, fused.view(), &rope)).collect()
    }

    fn keys_values(&self, pool: &Pool, layer: &DraftLayer, x: View<'_>, rope: &RopeTable) -> Matrix {
        let mut keys = linear(pool, x, &layer.key);
        self.norm_and_rotate(&mut keys, &layer.key_norm, rope);
        let values = linear(pool, x, &layer.value);
        let mut both = Matrix::zeros(x.rows(), layer.shape.cache_width());
        for (both, (key, value)) in both.iter_rows_mut().zip(keys.iter_rows().zip(values.iter_rows())) {
            let (to_key, to_value) = both.split_at_mut(key.len());
            to_key.copy_from_slice(key);
            to_value.copy_from_slice(value);
        }
        both
    }

    fn norm_and_rotate(&self, heads: &mut Matrix, gain: &[f32], rope: &RopeTable) {
        for (row, heads) in heads.iter_rows_mut().enumerate() {
            for head in heads.chunks_exact_mut(gain.len()) {
                rms_norm_in_place(head, gain, self.config.rms_norm_eps as f32);
                rope.rotate_half_split(row, head);
            }
        }
    }

    /// Drafts one block for every stream in one pass. `bonus[i]` is the newest token of stream `i`, which takes
    /// position `segments[i].start`; `context` holds the keys and values of all positions before.
    ///
    /// # Errors
    /// A bonus token outside the embedding table.
    ///
    /// # Panics
    /// If `lent` lacks what [`Drafter::borrows`], or there are not as many tokens as segments.
    pub fn draft(
        &self,
        pool: &Pool,
        lent: Lent<'_>,
        bonus: &[u32],
        segments: &[BlockSegment<'_>],
        context: &PagedCache,
    ) -> Result<Draft, TokenOutOfRange> {
        assert_eq!(bonus.len(), segments.len(), "one bonus token a stream");
        let block = self.config.block_size;
        let eps = self.config.rms_norm_eps as f32;
        let mut ids = vec![self.config.mask_token_id; bonus.len() * block];
        ids.iter_mut().step_by(block).zip(bonus).for_each(|(id, &bonus)| *id = bonus);
        let table = self.embed.as_ref().or(lent.embed).expect("the target lends its embedding");
        let head = self.head.as_ref().or(lent.head).expect("the target lends its head");
        let rope = self.rope.table(segments.iter().flat_map(|s| s.start..s.start + block));

        let mut x = embed(table, &ids)?;
        let mut hidden = vec![x.clone()];
        for (i, layer) in self.layers.iter().enumerate() {
            let normed = rms_norm_rows(&x, &layer.input_norm, eps);
            let mut queries = linear(pool, normed.view(), &layer.query);
            self.norm_and_rotate(&mut queries, &layer.query_norm, &rope);
            let own = self.keys_values(pool, layer, normed.view(), &rope);
            let mixed = attend_block(pool, &layer.shape, &queries, &own, segments, context, i);
            add_assign(&mut x, &linear(pool, mixed.view(), &layer.output));
            let normed = rms_norm_rows(&x, &layer.post_norm, eps);
            add_assign(&mut x, &layer.mlp.forward(pool, normed.view()));
            hidden.push(x.clone());
        }
        let final_norm = rms_norm_rows(&x, &self.norm, eps);
        let drafted: Vec<usize> = (0..ids.len()).filter(|row| row % block != 0).collect();
        let logits = linear(pool, final_norm.gather(drafted.into_iter()).view(), head);
        Ok(Draft { hidden, final_norm, logits })
    }
}
