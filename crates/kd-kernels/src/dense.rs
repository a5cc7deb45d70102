//! Products with bf16 weights, for few rows by one family and for many by another.

use half::bf16;

use crate::families::{dense, dense_many};
use crate::{
    Choice, DenseScratch, KernelError, Kernels, LoadedUnit, Selection, Stream, TensorMut, TensorRef,
};

/// Up to so many rows `dense` alone is used.
const FEW: i64 = 132;

/// `y = x Wᵀ` for inputs of one width. A row's bits depend on that row alone, not on who multiplies.
#[derive(Debug)]
pub struct DenseProduct {
    few: dense::Dense,
    many: Option<dense_many::DenseMany>,
}

impl DenseProduct {
    /// Loads the kernels for inputs of width `k`.
    ///
    /// # Errors
    /// A bundle without them.
    pub fn load(kernels: &Kernels, k: usize) -> Result<Self, KernelError> {
        let many = dense_many::DenseMany::load(kernels, dense_many::Dims { k: int(k) })?;
        Ok(Self { many: Some(many), ..Self::few(kernels, k)? })
    }

    /// Loads what any number of rows can do with.
    ///
    /// # Errors
    /// A bundle without it.
    pub fn few(kernels: &Kernels, k: usize) -> Result<Self, KernelError> {
        Ok(Self { few: dense::Dense::load(kernels, dense::Dims { k: int(k) })?, many: None })
    }

    /// `y = x Wᵀ`; by the kernels for few rows where `scratch` has no part for many. Launches that share `scratch` follow each
    /// other.
    ///
    /// # Errors
    /// Operands of other sizes, a refused launch.
    pub fn launch(
        &self,
        stream: &Stream,
        scratch: &mut DenseScratch,
        x: TensorRef<'_, bf16, 2>,
        w: TensorRef<'_, bf16, 2>,
        y: TensorMut<'_, bf16, 2>,
    ) -> Result<Selection, KernelError> {
        let (m, n, k) = (x.dim(0), w.dim(0), w.dim(1));
        let lanes = |unit: &LoadedUnit| i64::from(unit.resident() * stream.sms()) / token_tiles(unit, m);
        let fitting = |many: &dense_many::DenseMany| {
            let units = many.units().iter().filter(|unit| lanes(unit) > 0);
            units.min_by_key(|unit| steps(unit, lanes(unit), n)).map(LoadedUnit::variant)
        };
        let many = self.many.as_ref().filter(|_| worth_many(m, n, k));
        let best = many.and_then(|many| Some((many, fitting(many)?)));
        let (Some((many, best)), Some(runs)) = (best, &mut scratch.many) else {
            let (parts, arrived) = scratch.few.operands(stream, w.shape()[0])?;
            return self.few.launch(stream, Choice::Auto, dense::Args { x, w, y, parts, arrived });
        };
        let (partial, arrived) = runs.operands(stream)?;
        many.launch(stream, Choice::Forced(best), dense_many::Args { x, w, partial, arrived, y })
    }

    /// Whether passes of up to `rows` rows may use the kernels for many.
    pub(crate) fn has_many(rows: usize) -> bool {
        int(rows) > FEW
    }
}

fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Whether `dense_many` is faster for M rows and N × K weights: where there is work for several waves, or for a part of one
/// that clusters of CTAs do not fit into (measured on an H200, `docs/kernels/dense.md`).
fn worth_many(m: i64, n: i64, k: i64) -> bool {
    let results = m.saturating_mul(n);
    m > FEW
        && n % 4 == 0
        && m <= 2048
        && (results >= 3_000_000 || (results >= 1_000_000 && n <= 4096 && k > 4096))
}

/// Tiles of tokens of M rows: a launch of fewer CTAs would leave some without any.
fn token_tiles(unit: &LoadedUnit, m: i64) -> i64 {
    let tokens = unit.constant("TOKENS").unwrap_or(1).max(1);
    ((m.max(1) + tokens - 1) / tokens).max(1)
}

/// What `unit` costs for N weights with `lanes` CTAs for each tile of tokens: the segments that a CTA has, by size of
/// its tile. Among equals the first declared is taken, the larger tile.
fn steps(unit: &LoadedUnit, lanes: i64, n: i64) -> i64 {
    let constant = |name| unit.constant(name).unwrap_or(1).max(1);
    let (rows, tokens, segments) = (constant("ROWS"), constant("TOKENS"), constant("SEGS"));
    let work = ((n + rows - 1) / rows).saturating_mul(segments);
    let lanes = lanes.clamp(1, work.max(1));
    ((work + lanes - 1) / lanes).saturating_mul(rows * tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rows_are_worth_it_where_there_is_work_for_all() {
        for (m, n, k) in [(264, 20_480, 7168), (528, 2112, 7168), (528, 7168, 1024), (264, 12_288, 1536)] {
            assert!(worth_many(m, n, k), "{m} {n} {k}");
        }
        for (m, n, k) in [(132, 20_480, 7168), (264, 2112, 7168), (528, 1536, 1536), (264, 7168, 8192)] {
            assert!(!worth_many(m, n, k), "{m} {n} {k}");
        }
        assert!(!worth_many(528, 20_482, 7168), "rows of whole quads only");
    }
}
