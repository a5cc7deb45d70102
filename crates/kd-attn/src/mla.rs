//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1) in its absorbed form.
//!
//! A token is cached as one latent and one rotated key that all heads share. Instead of expanding the latent into keys
//! and values, the key half of `kv_b_proj` is folded into the query and the value half into the output:
//! `q_nope · (K_h c) = (K_hᵀ q_nope) · c` and `Σ p (V_h c) = V_h Σ p c`.

use kd_tensor::{Bf16Matrix, Matrix, Pool, RowList, View, block_width, linear, mix, multiply_rows, ops};

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
    /// `K_h` of each head, `[nope, latent]`.
    key_up: Vec<Bf16Matrix>,
    /// `V_h` of each head, `[value, latent]`.
    value_up: Vec<Bf16Matrix>,
    /// `o_proj`, `[hidden, heads · value]`.
    output: Bf16Matrix,
}

/// The weights of one attention layer.
#[derive(Debug, Clone, Copy)]
pub struct MlaWeights<'a> {
    /// How queries are made.
    pub query: &'a QueryProjection,
    /// `kv_a_proj_with_mqa`, `[latent + rope, hidden]`.
    pub kv_a: &'a Bf16Matrix,
    /// Gains of the latent's norm.
    pub kv_norm: &'a [f32],
    /// The key half of `kv_b_proj` by head, `[nope, latent]`.
    pub key_up: &'a [Bf16Matrix],
    /// The value half of `kv_b_proj` by head, `[value, latent]`.
    pub value_up: &'a [Bf16Matrix],
    /// `o_proj`, `[hidden, heads · value]`.
    pub output: &'a Bf16Matrix,
}

/// Some heads of consecutive rows of one segment.
struct Task<'a, 'o> {
    segment: &'a Segment<'a>,
    /// Keys of the segment's committed tokens.
    committed: &'a [&'a [f32]],
    /// Where the segment starts among the rows of the pass.
    first: usize,
    /// The first row, counted within the segment.
    row: usize,
    head: usize,
    /// One slice a row, `latent` wide a head.
    out: Vec<&'o mut [f32]>,
}

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
            key_up: (0..heads).map(|h| kv_b.slice_rows(start(h)..start(h) + nope)).collect(),
            value_up: (0..heads).map(|h| kv_b.slice_rows(start(h) + nope..start(h + 1))).collect(),
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

    /// The layer's weights, for whoever lays them out for another device.
    pub fn weights(&self) -> MlaWeights<'_> {
        MlaWeights {
            query: &self.query,
            kv_a: &self.kv_a,
            kv_norm: &self.kv_norm,
            key_up: &self.key_up,
            value_up: &self.value_up,
            output: &self.output,
        }
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
        let q: Vec<&[f32]> = q.iter_rows().collect();
        let block = block_width(pool, heads, x.rows() * nope * latent).min(heads);
        pool.for_each(absorbed.column_blocks(0..heads * wide, block * wide), |mut block| {
            let first = block.columns.start / wide;
            for h in 0..block.columns.len() / wide {
                let q: Vec<&[f32]> = q.iter().map(|q| &q[(first + h) * head..][..nope]).collect();
                mix(&q, &self.key_up[first + h], &mut block.part(h * wide..h * wide + latent).rows);
            }
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
        let committed: Vec<Vec<&[f32]>> = segments
            .iter()
            .map(|s| (0..s.committed).map(|position| cache.token(layer, s.pages, position)).collect())
            .collect();
        let mut tasks = Vec::new();
        let mut rows = out.iter_rows_mut();
        let mut first = 0;
        for (segment, committed) in segments.iter().zip(&committed) {
            let work = (segment.committed + segment.rows) * (self.config.cache_width() + latent);
            let pairs = block_width(pool, segment.rows * heads, work);
            let (rows_each, heads_each) = ((pairs / heads).max(1), pairs.min(heads));
            for row in (0..segment.rows).step_by(rows_each) {
                let rows = rows.by_ref().take(rows_each.min(segment.rows - row));
                let mut out: Vec<_> = rows.map(|row| row.chunks_mut(heads_each * latent)).collect();
                for head in (0..heads).step_by(heads_each) {
                    let out = out.iter_mut().filter_map(Iterator::next).collect();
                    tasks.push(Task { segment, committed, first, row, head, out });
                }
            }
            first += segment.rows;
        }
        pool.for_each(tasks, |task| self.attend_rows(queries, latents, task));
        out
    }

    /// One task: every key is read once for all of its heads and rows.
    fn attend_rows(&self, queries: &Matrix, latents: &Matrix, task: Task<'_, '_>) {
        let MlaConfig { latent, softmax_scale, .. } = self.config;
        let wide = self.config.cache_width();
        let Task { segment, committed, first, row, head, out } = task;
        let heads = out.first().map_or(0, |out| out.len() / latent);
        let (rows, known) = (out.len(), committed.len());
        // Parents come before children, so no row sees one behind it.
        let pass: Vec<&[f32]> = (0..row + rows).map(|r| latents.row(first + r)).collect();
        let own: Vec<Vec<usize>> = (row..row + rows).map(|r| segment.visible(r)).collect();
        let queries: Vec<&[f32]> = (row..row + rows)
            .flat_map(|r| queries.row(first + r)[head * wide..][..heads * wide].chunks_exact(wide))
            .collect();
        let longest = known + own.iter().map(Vec::len).max().unwrap_or(0);

        let mut scores = Matrix::zeros(queries.len(), longest);
        let mut out_heads: Vec<&mut [f32]> =
            out.into_iter().flat_map(|out| out.chunks_exact_mut(latent)).collect();
        let mut shared: Vec<&mut [f32]> = scores.iter_rows_mut().map(|s| &mut s[..known]).collect();
        multiply_rows(&RowList(committed), 0, &queries, &mut shared);
        // Scores with all rows of the pass at once, also those that a row does not see, cost less than row by row.
        let mut passed = Matrix::zeros(queries.len(), pass.len());
        multiply_rows(&RowList(&pass), 0, &queries, &mut passed.iter_rows_mut().collect::<Vec<_>>());
        let mut sums = Vec::with_capacity(queries.len());
        for ((own, passed), scores) in own
            .iter()
            .zip(passed.data().chunks(heads * pass.len()))
            .zip(scores.data_mut().chunks_mut(heads * longest))
        {
            for (scores, passed) in scores.chunks_mut(longest).zip(passed.chunks(pass.len())) {
                let scores = &mut scores[..known + own.len()];
                scores[known..].iter_mut().zip(own).for_each(|(score, &v)| *score = passed[v]);
                scores.iter_mut().for_each(|s| *s *= softmax_scale);
                sums.push(ops::exponentials(scores));
            }
        }
        let shared: Vec<&[f32]> = scores.iter_rows().map(|s| &s[..known]).collect();
        mix(&shared, &RowList(committed), &mut out_heads);
        for ((own, out), scores) in
            own.iter().zip(out_heads.chunks_mut(heads)).zip(scores.data().chunks(heads * longest))
        {
            let rest: Vec<&[f32]> = scores.chunks(longest).map(|s| &s[known..known + own.len()]).collect();
            let own: Vec<&[f32]> = own.iter().map(|&v| pass[v]).collect();
            mix(&rest, &RowList(&own), out);
        }
        for (out, sum) in out_heads.into_iter().zip(sums) {
            out.iter_mut().for_each(|x| *x /= sum);
        }
    }

    /// `o_proj` of `V_h` times each head's mixed latent.
    fn project(&self, pool: &Pool, mixed: &Matrix) -> Matrix {
        let MlaConfig { heads, value, latent, .. } = self.config;
        let mut values = Matrix::zeros(mixed.rows(), heads * value);
        let block = block_width(pool, heads, mixed.rows() * value * latent).min(heads);
        pool.for_each(values.column_blocks(0..heads * value, block * value), |mut block| {
            let first = block.columns.start / value;
            for h in 0..block.columns.len() / value {
                let mixed = mixed.columns((first + h) * latent..(first + h + 1) * latent);
                block.part(h * value..(h + 1) * value).multiply(mixed, &self.value_up[first + h]);
            }
        });
        linear(pool, values.view(), &self.output)
    }
}
