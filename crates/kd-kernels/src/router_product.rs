//! The router, by the kernels for any number of rows, or by those of sm_90a for many.

use crate::dense::if_built;
use crate::families::{router, router_wgmma};
use crate::{Choice, KernelError, Kernels, LoadedUnit, Selection, Stream};

/// From so many rows on products by warpgroups are faster (measured on an H200, `docs/kernels/dense.md`).
const GROUPS: i64 = 17;
/// The variant of `router_wgmma` for launches whose CTAs must not wait for each other, of any size.
const COUNTING: &str = "n112";

/// `router`, a row's bits depending on that row alone.
#[derive(Debug)]
pub struct RouterProduct {
    any: router::Router,
    groups: Option<router_wgmma::RouterWgmma>,
    /// Of each variant of `groups`, the largest launch.
    most_rows: Vec<(&'static str, i64)>,
}

impl RouterProduct {
    /// Loads the kernels for these dimensions.
    ///
    /// # Errors
    /// A bundle without `router`.
    pub fn load(kernels: &Kernels, dims: router::Dims) -> Result<Self, KernelError> {
        let router::Dims { h, e, t } = dims;
        let groups = if_built(router_wgmma::RouterWgmma::load(kernels, router_wgmma::Dims { h, e, t }))?;
        let most_rows = |unit: &LoadedUnit| (unit.variant(), Self::most_rows(kernels, unit));
        let most_rows = groups.iter().flat_map(|groups| groups.units().iter().map(most_rows)).collect();
        Ok(Self { any: router::Router::load(kernels, dims)?, groups, most_rows })
    }

    /// The largest launch of a unit of `router_wgmma`, in rows. CTAs of most variants wait for the scores of others, which CUDA does
    /// not start in any order that it promises: so all clusters of such a launch must be held at once.
    pub fn most_rows(kernels: &Kernels, unit: &LoadedUnit) -> i64 {
        if unit.constant("CHOOSERS") == Some(0) {
            return i64::MAX;
        }
        let tile: Option<i64> = ["RANKS", "BLOCKS"].map(|name| unit.constant(name)).into_iter().product();
        let held = i64::from(unit.held(kernels.device().sms()));
        let tiles = tile.and_then(|tile| held.checked_div(tile)).unwrap_or(0);
        unit.constant("TOKENS").unwrap_or(0).saturating_mul(tiles)
    }

    /// Scores and choices. Safe to capture in a graph.
    ///
    /// # Errors
    /// Operands of other sizes, a refused launch.
    pub fn launch(&self, stream: &Stream, args: router::Args<'_>) -> Result<Selection, KernelError> {
        let rows = args.x.dim(0);
        let Some(groups) = self.groups.as_ref().filter(|_| rows >= GROUPS) else {
            return self.any.launch(stream, Choice::Auto, args);
        };
        let variant = groups.variant(rows)?;
        let may = self.most_rows.iter().any(|(name, most)| *name == variant && rows <= *most);
        groups.launch(stream, if may { Choice::Auto } else { Choice::Forced(COUNTING) }, Self::wide(args))
    }

    /// The operands of the one family as those of the other.
    pub fn wide(args: router::Args<'_>) -> router_wgmma::Args<'_> {
        let router::Args { x, w, bias, slots, groups, top_groups, normalize, scaling, .. } = args;
        let router::Args { arrived, scores, ids, weights, .. } = args;
        router_wgmma::Args {
            x,
            w,
            bias,
            slots,
            groups,
            top_groups,
            normalize,
            scaling,
            arrived,
            scores,
            ids,
            weights,
        }
    }
}
