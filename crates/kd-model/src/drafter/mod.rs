//! The DFlash drafter: a few Qwen3-style layers that draft a whole block in one pass.
//!
//! Its context is what the target computed: the tapped residuals of committed tokens, projected once and turned into
//! keys and values of every layer (arXiv 2602.06036). The block is the bonus token followed by masks; row `k` predicts
//! the token at its own position.

mod shard;

use kd_attn::{BlockSegment, CacheError, PagedCache, Rope};
use kd_ddtree::DraftRow;
use kd_tensor::ops::{TokenOutOfRange, check_ids};
use kd_tensor::{Bf16Matrix, Matrix, Pool};

use crate::config::DrafterConfig;
use crate::error::ConfigProblem;
use crate::seam::{side_by_side, succeeded};
use crate::target::Target;
use shard::Block;
pub(crate) use shard::{DraftLayer, Shard};

/// A loaded drafter, whole or shared by several ranks of this process.
#[derive(Debug)]
pub struct Drafter {
    pub(crate) config: DrafterConfig,
    pub(crate) rope: Rope,
    /// What each rank holds.
    pub(crate) ranks: Vec<Shard>,
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

    /// Ranks that share the drafter. A pool that runs it is divided among as many ([`Pool::with_ranks`]).
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The rotary embedding of queries and keys.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Whether the drafter needs the target's embedding, and whether it needs the target's head.
    pub fn borrows(&self) -> (bool, bool) {
        (self.embed.is_none(), self.head.is_none())
    }

    /// Bytes of an embedding and a head of its own, over all ranks.
    pub fn table_bytes(&self) -> usize {
        [&self.embed, &self.head].into_iter().flatten().map(|table| 2 * table.rows() * table.cols()).sum()
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

    /// A row of draft ids as one of target ids.
    pub fn in_target_ids(&self, row: DraftRow) -> Option<DraftRow> {
        in_target_ids(self.target_ids.as_deref(), row)
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
        let width = 2 * self.config.num_key_value_heads * self.config.head_dim;
        PagedCache::try_new(self.config.layers.len(), pages, width)
    }

    /// Context keys and values of committed tokens from their taps `[tokens, taps · hidden]`: a matrix
    /// `[tokens, 2 · kv_heads · head_dim]` a layer, keys (normed and rotated) first.
    ///
    /// A row depends on its own taps and position alone, so tokens may come at once or one by one.
    ///
    /// # Panics
    /// If the pool is divided among other ranks.
    pub fn context(
        &self,
        pool: &Pool,
        taps: &Matrix,
        positions: impl IntoIterator<Item = usize>,
    ) -> Vec<Matrix> {
        let rope = self.rope.table(positions);
        let ranks = pool.each_rank(self.ranks.iter().collect(), |group, pool, shard| {
            shard.context(group, pool, taps.view(), &rope)
        });
        self.all_heads(succeeded(ranks))
    }

    /// The ranks' keys and values as the cache holds them, a layer at a time: keys of all heads, then values.
    fn all_heads(&self, mut ranks: Vec<Vec<Matrix>>) -> Vec<Matrix> {
        if ranks.len() == 1 {
            return ranks.remove(0);
        }
        let layer = |i: usize| {
            let width = self.config.num_key_value_heads * self.config.head_dim;
            let mut all = Matrix::zeros(ranks[0][i].rows(), 2 * width);
            for (own, shard) in ranks.iter().map(|layers| &layers[i]).zip(&self.ranks) {
                let start = shard.layers[i].shape.first_cached * self.config.head_dim;
                for (all, own) in all.iter_rows_mut().zip(own.iter_rows()) {
                    let (keys, values) = own.split_at(own.len() / 2);
                    all[start..][..keys.len()].copy_from_slice(keys);
                    all[width + start..][..values.len()].copy_from_slice(values);
                }
            }
            all
        };
        (0..self.config.layers.len()).map(layer).collect()
    }

    /// Drafts one block for every stream in one pass. `bonus[i]` is the newest token of stream `i`, which takes
    /// position `segments[i].start`; `context` holds the keys and values of all positions before.
    ///
    /// # Errors
    /// A bonus token outside the embedding table.
    ///
    /// # Panics
    /// If `lent` lacks what [`Drafter::borrows`], there are not as many tokens as segments, or the pool is divided among
    /// other ranks.
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
        let mut ids = vec![self.config.mask_token_id; bonus.len() * block];
        ids.iter_mut().step_by(block).zip(bonus).for_each(|(id, &bonus)| *id = bonus);
        let embed = self.embed.as_ref().or(lent.embed).expect("the target lends its embedding");
        let head = self.head.as_ref().or(lent.head).expect("the target lends its head");
        check_ids(&ids, embed.rows())?;
        let rope = &self.rope.table(segments.iter().flat_map(|s| s.start..s.start + block));
        let pass = Block { ids: &ids, block, embed, head, rope, segments, context };

        let ranks =
            pool.each_rank(self.ranks.iter().collect(), |group, pool, shard| shard.draft(group, pool, &pass));
        let mut ranks = succeeded(ranks);
        let logits = ranks.iter_mut().map(|draft| std::mem::take(&mut draft.logits)).collect();
        Ok(Draft { logits: side_by_side(logits), ..ranks.swap_remove(0) })
    }
}

/// A row of draft ids as one of target ids: `ids` has the target's for each, where they differ. `None` if an id has none.
pub(crate) fn in_target_ids(ids: Option<&[u32]>, row: DraftRow) -> Option<DraftRow> {
    let Some(ids) = ids else { return Some(row) };
    let child = |child: &kd_ddtree::Child| Some((*ids.get(child.token as usize)?, child.logprob));
    let (tokens, logprobs): (Vec<u32>, Vec<f32>) =
        row.children().iter().map(child).collect::<Option<Vec<_>>>()?.into_iter().unzip();
    DraftRow::from_top_k(&tokens, &logprobs).ok()
}
