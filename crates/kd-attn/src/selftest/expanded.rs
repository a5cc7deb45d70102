//! Expanded MLA in f64, the measure of the prefill kernels.

use half::bf16;
use kd_kernels::selftest::Bound;

/// Sizes of one attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) nope: usize,
    pub(super) rope: usize,
    pub(super) value: usize,
    pub(super) latent: usize,
}

impl Shape {
    pub(super) fn query(&self) -> usize {
        self.heads * (self.nope + self.rope)
    }

    pub(super) fn expanded(&self) -> usize {
        self.heads * (self.nope + self.value)
    }

    pub(super) fn entry(&self) -> usize {
        self.latent + self.rope
    }

    pub(super) fn out(&self) -> usize {
        self.heads * self.value
    }

    /// `1 / sqrt(nope + rope)`.
    pub(super) fn scale(&self) -> f32 {
        1.0 / ((self.nope + self.rope) as f32).sqrt()
    }
}

/// Keys and values of consecutive tokens.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    shape: Shape,
    /// `[tokens, heads, nope + value]`
    expanded: Vec<f64>,
    /// `[tokens, rope]`
    rotated: Vec<f64>,
    /// How much further a key or value may be from what the kernel uses, as a fraction of it.
    rounding: f64,
}

/// One row's output with what the kernel may differ by.
pub(super) struct Expected {
    pub(super) out: Vec<f32>,
    slack: Vec<f32>,
}

pub(super) fn widen(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

impl Keys {
    /// As the attention kernel takes them.
    pub(super) fn given(shape: Shape, expanded: &[bf16], entries: &[bf16]) -> Self {
        let rotated = entries.chunks_exact(shape.entry()).flat_map(|entry| widen(&entry[shape.latent..]));
        Self { shape, expanded: widen(expanded), rotated: rotated.collect(), rounding: 0.0 }
    }

    /// Expanded here, in f64, with `kv_b` `[heads · (nope + value), latent]`; the engine rounds them to bf16.
    pub(super) fn expand(shape: Shape, kv_b: &[bf16], entries: &[bf16]) -> Self {
        let kv_b = widen(kv_b);
        let (mut expanded, mut rotated) = (Vec::new(), Vec::new());
        for entry in entries.chunks_exact(shape.entry()).map(widen) {
            let (latent, key) = entry.split_at(shape.latent);
            let dot = |row: &[f64]| row.iter().zip(latent).map(|(a, b)| a * b).sum::<f64>();
            expanded.extend(kv_b.chunks_exact(shape.latent).map(dot));
            rotated.extend_from_slice(key);
        }
        Self { shape, expanded, rotated, rounding: 1.0 / 256.0 }
    }

    /// The output for `query`, `[heads, nope + rope]`, that sees the first `visible` tokens.
    pub(super) fn attend(&self, query: &[bf16], visible: usize) -> Expected {
        let Shape { heads, nope, rope, value, .. } = self.shape;
        let scale = f64::from(self.shape.scale());
        let (mut out, mut slack) = (Vec::new(), Vec::new());
        for (head, query) in query.chunks_exact(nope + rope).map(widen).enumerate() {
            let own =
                |token: usize| &self.expanded[(token * heads + head) * (nope + value)..][..nope + value];
            let key = |token: usize| own(token)[..nope].iter().chain(&self.rotated[token * rope..][..rope]);
            let product = |token: usize| query.iter().zip(key(token)).map(|(q, k)| q * k);
            let scores: Vec<f64> = (0..visible).map(|token| scale * product(token).sum::<f64>()).collect();
            let unsure = (0..visible).map(|token| scale * product(token).map(f64::abs).sum::<f64>());
            let unsure = self.rounding * unsure.fold(0.0, f64::max);
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for column in nope..nope + value {
                let terms =
                    weights.iter().enumerate().map(|(token, weight)| weight / sum * own(token)[column]);
                let (mixed, size) = terms.fold((0.0, 0.0), |(a, b), term| (a + term, b + f64::abs(term)));
                out.push(mixed as f32);
                // Weights are rounded to bf16 (8 significant bits: by at most 2^-8 of each), values too where they are made
                // here, and f32 adds a little to both.
                slack.push((size * (1.0 / 256.0 + self.rounding + 2.0 * unsure + 1e-5)) as f32);
            }
        }
        Expected { out, slack }
    }
}

impl Expected {
    /// Takes `found` into `bound`.
    pub(super) fn judge(&self, row: usize, found: &[bf16], bound: &mut Bound) -> Result<(), String> {
        bound.row(row, found, &self.out, |i| self.slack[i])
    }
}

#[cfg(test)]
mod tests {
    use kd_kernels::selftest::Random;
    use kd_tensor::{Bf16Matrix, Matrix, Pool};

    use super::*;
    use crate::{Mask, Mla, MlaConfig, MlaPass, PageId, PagedCache, QueryProjection, Rope, Segment};

    /// The two forms of MLA are one function: with `o_proj` the identity, the layer's output is what this file says.
    #[test]
    fn the_expanded_form_is_the_absorbed_one() {
        let shape = Shape { heads: 2, nope: 8, rope: 4, value: 8, latent: 16 };
        let (hidden, rows, mut random) = (16, 5, Random::new(7));
        let mut matrix = |rows: usize, cols: usize| random.values(rows * cols, 1.0);
        let (x, q, kv_a) =
            (matrix(rows, hidden), matrix(shape.query(), hidden), matrix(shape.entry(), hidden));
        let kv_b = matrix(shape.expanded(), shape.latent);
        let identity: Vec<bf16> =
            (0..16 * 16).map(|i| if i % 17 == 0 { bf16::ONE } else { bf16::ZERO }).collect();
        let bf16_matrix =
            |rows, cols, values: &[bf16]| Bf16Matrix::new(rows, cols, values.to_vec()).expect("a matrix");
        let config = MlaConfig {
            heads: shape.heads,
            nope: shape.nope,
            rope: shape.rope,
            value: shape.value,
            latent: shape.latent,
            softmax_scale: shape.scale(),
            latent_eps: 1e-6,
        };
        let projection = bf16_matrix(shape.query(), hidden, &q);
        let mla = Mla::new(
            config,
            QueryProjection::Direct(projection.clone()),
            bf16_matrix(shape.entry(), hidden, &kv_a),
            vec![1.0; shape.latent],
            &bf16_matrix(shape.expanded(), shape.latent, &kv_b),
            bf16_matrix(hidden, shape.out(), &identity),
        );
        let pool = Pool::single();
        let x = Matrix::from_vec(rows, hidden, x.iter().map(|value| value.to_f32()).collect()).expect("rows");
        let rope = Rope::new(shape.rope, 10_000.0, None, 1.0).table(0..rows);
        let cache = PagedCache::new(1, 1, shape.entry());
        let segment = Segment { pages: &[PageId(0)], committed: 0, rows, mask: Mask::Causal };
        let pass = MlaPass { rope: &rope, segments: &[segment], cache: &cache };
        let (latents, output) = mla.forward(&pool, x.view(), &pass, 0);

        let mut queries = kd_tensor::linear(&pool, x.view(), &projection);
        for (row, queries) in queries.iter_rows_mut().enumerate() {
            for query in queries.chunks_exact_mut(shape.nope + shape.rope) {
                rope.rotate_interleaved(row, &mut query[shape.nope..]);
            }
        }
        let narrow = |row: &[f32]| row.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>();
        let entries: Vec<bf16> = latents.iter_rows().flat_map(narrow).collect();
        let keys = Keys::expand(shape, &kv_b, &entries);
        for row in 0..rows {
            let expected = keys.attend(&narrow(queries.row(row)), row + 1);
            for (found, expected) in output.row(row).iter().zip(&expected.out) {
                // Queries and entries were rounded to bf16 for the expanded form alone.
                assert!((found - expected).abs() < 0.05 * (1.0 + expected.abs()), "{found}, not {expected}");
            }
        }
        let blind = keys.attend(&narrow(queries.row(4)), 4);
        let differs = output.row(4).iter().zip(&blind.out).any(|(a, b)| (a - b).abs() > 0.1);
        assert!(differs, "the comparison sees a missing key");
    }
}
