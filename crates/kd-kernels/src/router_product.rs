//! The router, by the kernels for any number of rows, or by those of sm_90a for many.

use crate::dense::if_built;
use crate::families::{router, router_wgmma};
use crate::{Choice, KernelError, Kernels, Selection, Stream, Units};

/// From so many rows on products by warpgroups are faster (measured on an H200, `docs/kernels/dense.md`).
const GROUPS: i64 = 17;

/// `router`, a row's bits depending on that row alone.
#[derive(Debug)]
pub struct RouterProduct {
    any: router::Router,
    groups: Option<router_wgmma::RouterWgmma>,
}

impl RouterProduct {
    /// Loads the kernels for these dimensions.
    ///
    /// # Errors
    /// A bundle without `router`.
    pub fn load(kernels: &Kernels, dims: router::Dims) -> Result<Self, KernelError> {
        let router::Dims { h, e, t } = dims;
        let groups = if_built(router_wgmma::RouterWgmma::load(kernels, router_wgmma::Dims { h, e, t }))?;
        let groups = groups.filter(|groups| Self::may_wait(kernels, groups.units()));
        Ok(Self { any: router::Router::load(kernels, dims)?, groups })
    }

    /// Whether the device holds all clusters of a tile of tokens at once, of each of the units. Those of `router_wgmma` that choose wait
    /// for the scores of the others, so on a device with fewer places (a small slice of a GPU) they could wait for what cannot start.
    pub fn may_wait(kernels: &Kernels, units: &Units) -> bool {
        units.tiles_held_at_once(kernels, &["RANKS", "BLOCKS"])
    }

    /// Scores and choices. Safe to capture in a graph.
    ///
    /// # Errors
    /// Operands of other sizes, a refused launch.
    pub fn launch(&self, stream: &Stream, args: router::Args<'_>) -> Result<Selection, KernelError> {
        match self.groups.as_ref().filter(|_| args.x.dim(0) >= GROUPS) {
            Some(groups) => groups.launch(stream, Choice::Auto, Self::wide(args)),
            None => self.any.launch(stream, Choice::Auto, args),
        }
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
