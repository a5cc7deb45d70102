//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1) in its absorbed form.
//!
//! A token is cached as one latent and one rotated key that all heads share. Instead of expanding the latent into keys
//! and values, the key half of `kv_b_proj` is folded into the query and the value half into the output:
//! `q_nope · (K_h c) = (K_hᵀ q_nope) · c` and `Σ p (V_h c) = V_h Σ p c`.

use kd_tensor::{
    Bf16Matrix, Matrix, Pool, RowList, View, linear, linears, mix, multiply_rows, ops, task_count,
};

use crate::batch::{Span, spans};
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

/// What all rows of a pass share.
#[derive(Debug, Clone, Copy)]
pub struct MlaPass<'a> {
    /// Angles of every row.
    pub rope: &'a RopeTable,
    /// Which rows belong to which stream, and what they see.
    pub segments: &'a [Segment<'a>],
    /// Latents of committed tokens.
    pub cache: &'a PagedCache,
}

/// What some rows of a segment see.
struct Sight<'a> {
    /// Keys of the segment's committed tokens.
    committed: Vec<&'a [f32]>,
    /// The rows of the segment that each row sees, counted within it.
    visible: Vec<Vec<usize>>,
}

impl<'a> Sight<'a> {
    fn new(span: &Span<'a>, cache: &'a PagedCache, layer: usize) -> Self {
        let Segment { pages, committed, .. } = *span.segment;
        Self {
            committed: (0..committed).map(|position| cache.token(layer, pages, position)).collect(),
            visible: span.rows.clone().map(|row| span.segment.visible(row)).collect(),
        }
    }
}

/// Some heads of consecutive rows of one segment.
struct Task<'a, 'o> {
    /// Keys of the segment's committed tokens.
    committed: &'a [&'a [f32]],
    /// The rows of the segment that each of these sees, counted within it.
    visible: &'a [Vec<usize>],
    /// Where the segment starts among the rows of the pass.
    first: usize,
    /// The first row, counted within the segment.
    row: usize,
    /// The same, counted within the inputs.
    x: usize,
    head: usize,
    /// One slice a row, `value` wide a head.
    out: Vec<&'o mut [f32]>,
}

/// Pairs of a row and a head of a task, whose queries and mixed latents stay in the second-level cache.
const PAIRS: usize = 256;

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

    /// Attention of all rows `x` `[rows, hidden]` of a pass, normed: their latents `[rows, latent + rope]` and the output
    /// `[rows, hidden]`.
    pub fn forward(&self, pool: &Pool, x: View<'_>, pass: &MlaPass<'_>, layer: usize) -> (Matrix, Matrix) {
        let (latents, low) = self.inputs(pool, x, 0, pass.rope);
        let low = low.as_ref().map_or(x, Matrix::view);
        let out = self.outputs(pool, low, 0, &latents, pass, layer);
        (latents, out)
    }

    /// What normed rows `x` `[rows, hidden]`, rows `first ..` of a pass, are to the others, and what their own queries are made
    /// of: latents `[rows, latent + rope]` and the input of the last query projection, if that is not `x`.
    pub fn inputs(
        &self,
        pool: &Pool,
        x: View<'_>,
        first: usize,
        rope: &RopeTable,
    ) -> (Matrix, Option<Matrix>) {
        let (mut latents, low) = match &self.query {
            QueryProjection::Direct(_) => (linear(pool, x, &self.kv_a), None),
            QueryProjection::LowRank { a, norm, .. } => {
                let [latents, wide] = linears(pool, x, [&self.kv_a, a]);
                (latents, Some(ops::rms_norm_rows(&wide, norm, self.config.latent_eps)))
            }
        };
        // The cache holds the normed latent, then the rotated key (one for all heads, not normed).
        for (row, kv) in latents.iter_rows_mut().enumerate() {
            let (latent, key) = kv.split_at_mut(self.config.latent);
            ops::rms_norm_in_place(latent, &self.kv_norm, self.config.latent_eps);
            rope.rotate_interleaved(first + row, key);
        }
        (latents, low)
    }

    /// The output `[rows, hidden]` of rows `first ..` of a pass, of the inputs `x` of their last query projection. Committed keys
    /// come from the cache, those of the pass from `latents`, which has all of its rows.
    pub fn outputs(
        &self,
        pool: &Pool,
        x: View<'_>,
        first: usize,
        latents: &Matrix,
        pass: &MlaPass<'_>,
        layer: usize,
    ) -> Matrix {
        let values = self.heads(pool, x, first, latents, pass, layer);
        linear(pool, values.view(), &self.output)
    }

    /// What each head gives each row: `[rows, heads · value]`. Heads of a row have nothing to do with each other, so a task takes
    /// some through all of it.
    fn heads(
        &self,
        pool: &Pool,
        x: View<'_>,
        first: usize,
        latents: &Matrix,
        pass: &MlaPass<'_>,
        layer: usize,
    ) -> Matrix {
        let MlaConfig { heads, nope, value, latent, .. } = self.config;
        let mut out = Matrix::unwritten(x.rows(), heads * value);
        let weights = (nope + self.config.rope) * x.cols() + (nope + value) * latent;
        let spans = spans(pass.segments, first..first + x.rows());
        let sights: Vec<Sight<'_>> = spans.iter().map(|span| Sight::new(span, pass.cache, layer)).collect();
        let mut tasks = Vec::with_capacity(sights.len() * 4 * pool.threads());
        let mut rows = out.iter_rows_mut();
        for (sight, span) in sights.iter().zip(&spans) {
            let count = span.rows.len();
            let keys = (span.segment.committed + span.segment.rows) * (self.config.cache_width() + latent);
            let tasks_each = task_count(pool, count, heads * (weights + keys));
            let heads_each = heads.div_ceil(tasks_each).max(1);
            let cuts = tasks_each.div_ceil(heads).max((count * heads_each).div_ceil(PAIRS));
            let rows_each = count.div_ceil(cuts).max(1);
            for row in (0..count).step_by(rows_each) {
                let rows = rows.by_ref().take(rows_each.min(count - row));
                let mut out: Vec<_> = rows.map(|row| row.chunks_mut(heads_each * value)).collect();
                for head in (0..heads).step_by(heads_each) {
                    let out: Vec<&mut [f32]> =
                        out.iter_mut().map(|row| row.next().expect("a part for each head")).collect();
                    let visible = &sight.visible[row..row + out.len()];
                    let start = span.first;
                    let row = span.rows.start + row;
                    let x = start + row - first;
                    tasks.push(Task {
                        committed: &sight.committed,
                        visible,
                        first: start,
                        row,
                        x,
                        head,
                        out,
                    });
                }
            }
        }
        pool.for_each(tasks, |task| self.heads_of_rows(x, latents, pass.rope, task));
        out
    }

    fn heads_of_rows(&self, x: View<'_>, latents: &Matrix, rope: &RopeTable, mut task: Task<'_, '_>) {
        let MlaConfig { value, latent, .. } = self.config;
        let heads = task.out.first().map_or(0, |out| out.len() / value);
        let x: Vec<&[f32]> = (task.x..task.x + task.out.len()).map(|row| x.row(row)).collect();
        let queries = self.queries(&x, &task, rope);
        let mut mixed = Matrix::zeros(queries.rows(), latent);
        self.attend(&queries, latents, &task, &mut mixed.iter_rows_mut().collect::<Vec<_>>());
        for h in 0..heads {
            let mixed: Vec<&[f32]> = mixed.iter_rows().skip(h).step_by(heads).collect();
            let mut out: Vec<&mut [f32]> =
                task.out.iter_mut().map(|out| &mut out[h * value..(h + 1) * value]).collect();
            multiply_rows(&self.value_up[task.head + h], 0, &mixed, &mut out);
        }
    }

    /// Absorbed queries `[rows · heads, latent + rope]` of the rows and heads of a task: `K_hᵀ q_nope`, then the rotated
    /// part.
    fn queries(&self, x: &[&[f32]], task: &Task<'_, '_>, rope: &RopeTable) -> Matrix {
        let MlaConfig { nope, latent, value, .. } = self.config;
        let heads = task.out.first().map_or(0, |out| out.len() / value);
        let width = nope + self.config.rope;
        let mut q = Matrix::unwritten(x.len(), heads * width);
        let (QueryProjection::Direct(w) | QueryProjection::LowRank { b: w, .. }) = &self.query;
        multiply_rows(w, task.head * width, x, &mut q.iter_rows_mut().collect::<Vec<_>>());
        let mut absorbed = Matrix::zeros(x.len() * heads, self.config.cache_width());
        for (row, (q, absorbed)) in q
            .iter_rows_mut()
            .zip(absorbed.data_mut().chunks_mut(heads * self.config.cache_width()))
            .enumerate()
        {
            for (q, absorbed) in
                q.chunks_exact_mut(width).zip(absorbed.chunks_exact_mut(self.config.cache_width()))
            {
                rope.rotate_interleaved(task.first + task.row + row, &mut q[nope..]);
                absorbed[latent..].copy_from_slice(&q[nope..]);
            }
        }
        for h in 0..heads {
            let q: Vec<&[f32]> = q.iter_rows().map(|q| &q[h * width..][..nope]).collect();
            let absorbed = absorbed.iter_rows_mut().skip(h).step_by(heads);
            let mut absorbed: Vec<&mut [f32]> = absorbed.map(|row| &mut row[..latent]).collect();
            mix(&q, &self.key_up[task.head + h], &mut absorbed);
        }
        absorbed
    }

    /// Mixes latents: per query of a task the softmax-weighted sum over the keys that its row sees. Every key is read once
    /// for all of the task's heads and rows.
    fn attend(&self, queries: &Matrix, latents: &Matrix, task: &Task<'_, '_>, out_heads: &mut [&mut [f32]]) {
        let softmax_scale = self.config.softmax_scale;
        let Task { committed, visible, first, row, ref out, .. } = *task;
        let (rows, known) = (out.len(), committed.len());
        let heads = queries.rows() / rows.max(1);
        // Parents come before children, so no row sees one behind it.
        let pass: Vec<&[f32]> = (0..row + rows).map(|r| latents.row(first + r)).collect();
        let own = visible;
        let queries: Vec<&[f32]> = queries.iter_rows().collect();
        let longest = known + own.iter().map(Vec::len).max().unwrap_or(0);

        let mut scores = Matrix::unwritten(queries.len(), longest);
        let mut shared: Vec<&mut [f32]> = scores.iter_rows_mut().map(|s| &mut s[..known]).collect();
        multiply_rows(&RowList(committed), 0, &queries, &mut shared);
        // Scores with all rows of the pass at once, also those that a row does not see, cost less than row by row.
        let mut passed = Matrix::unwritten(queries.len(), pass.len());
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
                sums.push(ops::exponentials(scores, softmax_scale));
            }
        }
        let shared: Vec<&[f32]> = scores.iter_rows().map(|s| &s[..known]).collect();
        mix(&shared, &RowList(committed), out_heads);
        let (mut seen, mut rest) = (Vec::with_capacity(longest - known), Vec::with_capacity(heads));
        for ((own, out), scores) in
            own.iter().zip(out_heads.chunks_mut(heads)).zip(scores.data().chunks(heads * longest))
        {
            rest.clear();
            rest.extend(scores.chunks(longest).map(|s| &s[known..known + own.len()]));
            seen.clear();
            seen.extend(own.iter().map(|&v| pass[v]));
            mix(&rest, &RowList(&seen), out);
        }
        for (out, sum) in out_heads.iter_mut().zip(sums) {
            ops::scale(out, 1.0 / sum);
        }
    }
}
