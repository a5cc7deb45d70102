//! Products with bf16 weights, by families for few, more and many rows, and by one of sm_90a.

use half::bf16;

use crate::dense_cost::cheapest;
use crate::families::{dense, dense_many, dense_mid, dense_wgmma};
use crate::{
    Choice, DenseScratch, KernelError, Kernels, LoadedUnit, Selection, Stream, TensorMut, TensorRef,
};

/// Up to so many rows `dense` alone is used.
const FEW: i64 = 64;
/// And up to so many where there is `dense_wgmma`, which is faster from there on (measured on an H200,
/// `docs/kernels/dense.md`).
const FEW_WITH_GROUPS: i64 = 16;
/// The same for matrices with so many rows, which are many tiles for each SM.
const FEW_OF_VOCABULARY: i64 = 8;
const WHOLE_VOCABULARY: i64 = 65_536;
/// Up to so many rows are one tile of the widest variants of `dense`.
const FEW_WIDE: i64 = 88;
/// Rows of a tile of `dense_mid`.
const MID: i64 = 144;

/// `y = x Wᵀ` for inputs of one width. A row's bits depend on that row alone, not on who multiplies.
#[derive(Debug)]
pub struct DenseProduct {
    few: dense::Dense,
    more: Option<(dense_mid::DenseMid, dense_many::DenseMany)>,
    /// For more than [`FEW_WITH_GROUPS`] rows, in place of all others, where the architecture has it.
    groups: Option<dense_wgmma::DenseWgmma>,
}

/// The family for a number of rows and a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Few,
    Mid,
    Many,
}

impl DenseProduct {
    /// Loads the kernels for inputs of width `k`.
    ///
    /// # Errors
    /// A bundle without them.
    pub fn load(kernels: &Kernels, k: usize) -> Result<Self, KernelError> {
        let some = dense_mid::DenseMid::load(kernels, dense_mid::Dims { k: int(k) })?;
        let many = dense_many::DenseMany::load(kernels, dense_many::Dims { k: int(k) })?;
        Ok(Self { more: Some((some, many)), ..Self::few(kernels, k)? })
    }

    /// Loads what any number of rows can do with, and needs no scratch for many.
    ///
    /// # Errors
    /// A bundle without it.
    pub fn few(kernels: &Kernels, k: usize) -> Result<Self, KernelError> {
        let groups = if_built(dense_wgmma::DenseWgmma::load(kernels, dense_wgmma::Dims { k: int(k) }))?;
        Ok(Self { few: dense::Dense::load(kernels, dense::Dims { k: int(k) })?, more: None, groups })
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
        let columns = w.shape()[0];
        if let Some(groups) = self.groups.as_ref().filter(|_| by_groups(m, n, k))
            && let Some(best) = cheapest(groups.units().iter(), m, n, stream.sms())
        {
            return groups.launch(stream, Choice::Forced(best), dense_wgmma::Args { x, w, y });
        }
        if let Some((some, many)) = self.more.as_ref().filter(|_| scratch.many()) {
            let lanes = |unit: &LoadedUnit| i64::from(unit.resident() * stream.sms()) / token_tiles(unit, m);
            let fitting = many.units().iter().filter(|unit| lanes(unit) > 0);
            let best = fitting.min_by_key(|unit| steps(unit, lanes(unit), n)).map(LoadedUnit::variant);
            match (family(m, n, k), best) {
                (Rows::Many, Some(best)) => {
                    if let Some((partial, arrived)) = scratch.runs(stream)? {
                        let args = dense_many::Args { x, w, partial, arrived, y };
                        return many.launch(stream, Choice::Forced(best), args);
                    }
                }
                // A matrix with more columns than the scratch has places for is left to the kernels for few rows.
                (Rows::Mid, _) if k <= 2048 || x.shape()[0].div_ceil(8) <= scratch.blocks(columns) => {
                    let (parts, arrived) = scratch.parts(stream, columns)?;
                    return some.launch(stream, Choice::Auto, dense_mid::Args { x, w, y, parts, arrived });
                }
                _ => {}
            }
        }
        let (parts, arrived) = scratch.parts(stream, columns)?;
        self.few.launch(stream, Choice::Auto, dense::Args { x, w, y, parts, arrived })
    }

    /// Whether passes of up to `rows` rows may use kernels other than those for few.
    pub(crate) fn has_many(rows: usize) -> bool {
        int(rows) > FEW
    }
}

/// A family that only some architectures have, if this is one.
///
/// # Errors
/// All of loading but the lack of a unit.
pub fn if_built<T>(loaded: Result<T, KernelError>) -> Result<Option<T>, KernelError> {
    match loaded {
        Ok(family) => Ok(Some(family)),
        Err(KernelError::NoUnit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Whether `dense_wgmma`, where it is, is faster than `dense`. For up to 40 rows of matrices that are one wave of its CTAs with a
/// segment each, it is not.
fn by_groups(m: i64, n: i64, k: i64) -> bool {
    let one_wave = k > 4096 && (1585..=2112).contains(&n) && m <= 40;
    let few = if k > 4096 && n >= WHOLE_VOCABULARY { FEW_OF_VOCABULARY } else { FEW_WITH_GROUPS };
    m > few && n % 4 == 0 && !one_wave
}

/// The fastest family for M rows and N × K weights (measured on an H200, `docs/kernels/dense.md`): `dense_mid` for one tile of
/// tokens, or two of a matrix that its CTAs then fill the device with; `dense_many` where there is work for several waves, or
/// for a part of one that clusters of CTAs do not fit into.
fn family(m: i64, n: i64, k: i64) -> Rows {
    let results = m.saturating_mul(n);
    if n % 4 != 0 || m <= FEW || m > 2048 {
        Rows::Few
    } else if (m <= MID && k <= 2048 && n > 4096)
        || (m > FEW_WIDE && m <= MID && k > 2048 && n > 1024)
        || (m > MID && m <= 2 * MID && k > 4096 && (2048..=4096).contains(&n))
    {
        Rows::Mid
    } else if m > MID && (results >= 3_000_000 || (results >= 1_000_000 && n <= 4096 && k > 4096)) {
        Rows::Many
    } else {
        Rows::Few
    }
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
    fn warpgroups_have_what_they_are_faster_for() {
        for (m, n, k) in [
            (17, 1536, 1536),
            (33, 20_480, 7168),
            (33, 1536, 7168),
            (64, 2112, 7168),
            (33, 2112, 1024),
            (9, 163_840, 7168),
        ] {
            assert!(by_groups(m, n, k), "{m} {n} {k}");
        }
        for (m, n, k) in
            [(16, 1536, 1536), (33, 2112, 7168), (64, 2110, 7168), (8, 163_840, 7168), (16, 20_480, 7168)]
        {
            assert!(!by_groups(m, n, k), "{m} {n} {k}");
        }
    }

    #[test]
    fn each_family_has_the_rows_that_it_is_fastest_for() {
        for (m, n, k) in [(264, 20_480, 7168), (528, 2112, 7168), (528, 7168, 1024), (264, 12_288, 1536)] {
            assert_eq!(family(m, n, k), Rows::Many, "{m} {n} {k}");
        }
        for (m, n, k) in [(132, 20_480, 7168), (132, 2112, 7168), (264, 2112, 7168), (132, 7168, 1024)] {
            assert_eq!(family(m, n, k), Rows::Mid, "{m} {n} {k}");
        }
        for (m, n, k) in
            [(64, 20_480, 7168), (72, 20_480, 7168), (132, 1536, 1536), (528, 1536, 1536), (264, 7168, 8192)]
        {
            assert_eq!(family(m, n, k), Rows::Few, "{m} {n} {k}");
        }
        assert_eq!(family(528, 20_482, 7168), Rows::Few, "rows of whole quads only");
    }
}
