//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1) in its absorbed form.
//!
//! A token is cached as one latent and one rotated key that all heads share. Instead of expanding the latent into keys
//! and values, the key half of `kv_b_proj` is folded into the query and the value half into the output:
//! `q_nope · (K_h c) = (K_hᵀ q_nope) · c` and `Σ p (V_h c) = V_h Σ p c`.

use kd_tensor::{Bf16Matrix, Matrix, Pool, View, axpy, dot, dot4, linear, ops};

use crate::{PagedCache, RopeTable, Segment};

/// Sizes of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaConfig {
    /// Query heads.
    pub heads: usize,
    /// Width of the part of a query or key without position (`qk_nope_head_dim`).
    pub nope: usize,
    /// Width of the rotated part (`qk_rope_head_dim`).
    pub rope: usize,
    /// Width of a value (`v_head_dim`).
    pub value: usize,
    /// Width of the latent (`kv_lora_rank`).
    pub latent: usize,
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// Epsilon of the norms inside the attention.
    pub latent_eps: f32,
}

impl MlaConfig {
    /// Values cached a token: the latent, then the rotated key.
    pub fn cache_width(&self) -> usize {
        self.latent + self.rope
    }
}

/// How queries are made.
#[derive(Debug, Clone)]
pub enum QueryProjection {
    /// `q_proj`: `[heads · (nope + rope), hidden]`.
    Direct(Bf16Matrix),
    /// `q_b_proj(rms(q_a_proj(x)))`.
    LowRank {
        /// `[rank, hidden]`.
        a: Bf16Matrix,
        /// `[rank]`.
        norm: Vec<f32>,
        /// `[heads · (nope + rope), rank]`.
        b: Bf16Matrix,
    },
}

/// One attention layer.
#[derive(Debug, Clone)]
pub struct Mla {
    config: MlaConfig,
    query: QueryProjection,
    /// `kv_a_proj_with_mqa`, `[latent + rope, hidden]`.
    kv_a: Bf16Matrix,
    kv_norm: Vec<f32>,
    /// `K_hᵀ` of each head, `[latent, nope]`.
    key_up: Vec<Bf16Matrix>,
    /// `V_h` of each head, `[value, latent]`.
    value_up: Vec<Bf16Matrix>,
    /// `o_proj`, `[hidden, heads · value]`.
    output: Bf16Matrix,
}

/// Heads that one task handles together, so that a key is read once for all of them.
const HEADS_PER_TASK: usize = 4;

impl Mla {
    /// Takes the checkpoint's tensors; `kv_b` is `[heads · (nope + value), latent]`, per head keys, then values.
    ///
    /// # Panics
    /// If a tensor has another shape than `config` says; the loader has checked them against the file.
    pub fn new(
        config: MlaConfig,
        query: QueryProjection,
        kv_a: Bf16Matrix,
        kv_norm: Vec<f32>,
        kv_b: &Bf16Matrix,
        output: Bf16Matrix,
    ) -> Self {
        let MlaConfig { heads, nope, value, latent, .. } = config;
        assert_eq!((kv_b.rows(), kv_b.cols()), (heads * (nope + value), latent), "kv_b_proj");
        assert_eq!((kv_a.rows(), kv_norm.len()), (config.cache_width(), latent), "kv_a_proj_with_mqa");
        assert_eq!(output.cols(), heads * value, "o_proj");
        let start = |head: usize| head * (nope + value);
        Self {
            key_up: (0..heads).map(|h| kv_b.transpose_rows(start(h)..start(h) + nope)).collect(),
            value_up: (0..heads).map(|h| kv_b.copy_rows(start(h) + nope..start(h + 1))).collect(),
            config,
            query,
            kv_a,
            kv_norm,
            output,
        }
    }

    /// The layer's sizes.
    pub fn config(&self) -> &MlaConfig {
        &self.config
    }

    /// Attention of normed rows `x` `[rows, hidden]`: their latents `[rows, latent + rope]` and the output
    /// `[rows, hidden]`. Committed keys come from `cache`, those of the pass from the rows themselves.
    pub fn forward(
        &self,
        pool: &Pool,
        x: View<'_>,
        rope: &RopeTable,
        segments: &[Segment<'_>],
        cache: &PagedCache,
        layer: usize,
    ) -> (Matrix, Matrix) {
        let latents = self.latents(pool, x, rope);
        let queries = self.queries(pool, x, rope);
        let mixed = self.attend(pool, &queries, &latents, segments, cache, layer);
        (latents, self.project(pool, &mixed))
    }

    /// What the cache holds for each row: the normed latent, then the rotated key (one for all heads, not normed).
    pub fn latents(&self, pool: &Pool, x: View<'_>, rope: &RopeTable) -> Matrix {
        let mut kv = linear(pool, x, &self.kv_a);
        for (row, kv) in kv.iter_rows_mut().enumerate() {
            let (latent, key) = kv.split_at_mut(self.config.latent);
            ops::rms_norm_in_place(latent, &self.kv_norm, self.config.latent_eps);
            rope.rotate_interleaved(row, key);
        }
        kv
    }

    /// Absorbed queries `[rows, heads · (latent + rope)]`: per head `K_hᵀ q_nope`, then the rotated part.
    pub fn queries(&self, pool: &Pool, x: View<'_>, rope: &RopeTable) -> Matrix {
        let MlaConfig { heads, nope, latent, .. } = self.config;
        let (head, wide) = (nope + self.config.rope, self.config.cache_width());
        let mut q = match &self.query {
            QueryProjection::Direct(w) => linear(pool, x, w),
            QueryProjection::LowRank { a, norm, b } => {
                let low = ops::rms_norm_rows(&linear(pool, x, a), norm, self.config.latent_eps);
                linear(pool, low.view(), b)
            }
        };
        let mut absorbed = Matrix::zeros(x.rows(), heads * wide);
        for (row, (q, absorbed)) in q.iter_rows_mut().zip(absorbed.iter_rows_mut()).enumerate() {
            for (q, absorbed) in q.chunks_exact_mut(head).zip(absorbed.chunks_exact_mut(wide)) {
                rope.rotate_interleaved(row, &mut q[nope..]);
                absorbed[latent..].copy_from_slice(&q[nope..]);
            }
        }
        // Blocks as wide as one head: the first `latent` columns of each are the product.
        let blocks = absorbed.column_blocks(0..heads * wide, wide).into_iter().enumerate().collect();
        pool.for_each(blocks, |(h, mut block): (usize, kd_tensor::ColumnBlock<'_>)| {
            block.narrow(latent).multiply(q.columns(h * head..h * head + nope), &self.key_up[h]);
        });
        absorbed
    }

    /// Mixes latents: `[rows, heads · latent]`, per head the softmax-weighted sum over the keys that the row sees.
    pub fn attend(
        &self,
        pool: &Pool,
        queries: &Matrix,
        latents: &Matrix,
        segments: &[Segment<'_>],
        cache: &PagedCache,
        layer: usize,
    ) -> Matrix {
        let MlaConfig { heads, latent, .. } = self.config;
        let mut out = Matrix::zeros(queries.rows(), heads * latent);
        let mut tasks = Vec::new();
        let mut rows = out.iter_rows_mut().enumerate();
        let mut first = 0;
        for segment in segments {
            for (row, out) in rows.by_ref().take(segment.rows) {
                for (i, out) in out.chunks_mut(HEADS_PER_TASK * latent).enumerate() {
                    tasks.push((segment, first, row, i * HEADS_PER_TASK, out));
                }
            }
            first += segment.rows;
        }
        pool.for_each(tasks, |(segment, first, row, head, out)| {
            let pages = (0..segment.committed).map(|position| cache.token(layer, segment.pages, position));
            let own = segment.visible(row - first);
            let keys: Vec<&[f32]> = pages.chain(own.iter().map(|r| latents.row(first + r))).collect();
            self.attend_heads(&queries.row(row)[head * self.config.cache_width()..], &keys, out);
        });
        out
    }

    /// As many heads as `out` has room for, over `keys` in their order.
    fn attend_heads(&self, queries: &[f32], keys: &[&[f32]], out: &mut [f32]) {
        let MlaConfig { latent, softmax_scale, .. } = self.config;
        let queries: Vec<&[f32]> =
            queries.chunks_exact(self.config.cache_width()).take(out.len() / latent).collect();
        let mut scores = vec![vec![0.0f32; keys.len()]; queries.len()];
        for (j, key) in keys.iter().enumerate() {
            if let [a, b, c, d] = queries[..] {
                let four = dot4(key, [a, b, c, d]);
                scores.iter_mut().zip(four).for_each(|(s, x)| s[j] = x * softmax_scale);
            } else {
                scores.iter_mut().zip(&queries).for_each(|(s, q)| s[j] = dot(key, q) * softmax_scale);
            }
        }
        let sums: Vec<f32> = scores.iter_mut().map(|s| exponentials(s)).collect();
        for (j, key) in keys.iter().enumerate() {
            for (out, s) in out.chunks_exact_mut(latent).zip(&scores) {
                axpy(s[j], &key[..latent], out);
            }
        }
        for (out, sum) in out.chunks_exact_mut(latent).zip(sums) {
            out.iter_mut().for_each(|x| *x /= sum);
        }
    }

    /// `o_proj` of `V_h` times each head's mixed latent.
    fn project(&self, pool: &Pool, mixed: &Matrix) -> Matrix {
        let MlaConfig { heads, value, latent, .. } = self.config;
        let mut values = Matrix::zeros(mixed.rows(), heads * value);
        let blocks = values.column_blocks(0..heads * value, value).into_iter().enumerate().collect();
        pool.for_each(blocks, |(h, mut block): (usize, kd_tensor::ColumnBlock<'_>)| {
            block.narrow(value).multiply(mixed.columns(h * latent..(h + 1) * latent), &self.value_up[h]);
        });
        linear(pool, values.view(), &self.output)
    }
}

/// Replaces scores by `e^(score − max)` and returns their sum, in order. A NaN score makes the sum NaN, so the row
/// ends as an error and not as a plausible value.
pub(crate) fn exponentials(scores: &mut [f32]) -> f32 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    sum
}
