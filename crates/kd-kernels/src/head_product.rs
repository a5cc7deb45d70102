//! Logits of the vocabulary, by the kernels for any number of rows, or by those of sm_90a where they are faster.

use crate::dense::if_built;
use crate::dense_cost::cheapest;
use crate::families::{lm_head, lm_head_wgmma};
use crate::{Choice, KernelError, Kernels, Selection, Stream};

/// From so many rows on products by warpgroups are faster (measured on an H200, `docs/kernels/dense.md`).
const GROUPS: i64 = 17;

/// `lm_head`, a row's bits depending on that row alone.
#[derive(Debug)]
pub struct HeadProduct {
    any: lm_head::LmHead,
    groups: Option<lm_head_wgmma::LmHeadWgmma>,
}

impl HeadProduct {
    /// Loads the kernels for inputs of width `k`.
    ///
    /// # Errors
    /// A bundle without `lm_head`.
    pub fn load(kernels: &Kernels, k: i64) -> Result<Self, KernelError> {
        let groups = if_built(lm_head_wgmma::LmHeadWgmma::load(kernels, lm_head_wgmma::Dims { k }))?;
        Ok(Self { any: lm_head::LmHead::load(kernels, lm_head::Dims { k })?, groups })
    }

    /// Logits and the description of their tiles. Safe to capture in a graph.
    ///
    /// # Errors
    /// Operands of other sizes, a refused launch.
    pub fn launch(&self, stream: &Stream, args: lm_head::Args<'_>) -> Result<Selection, KernelError> {
        let (m, n) = (args.x.dim(0), args.w.dim(0));
        if let Some(groups) = self.groups.as_ref().filter(|_| m >= GROUPS && n % 4 == 0)
            && let Some(best) = cheapest(groups.units().iter(), m, n, stream.sms())
        {
            let lm_head::Args { x, w, logits, tiles } = args;
            let args = lm_head_wgmma::Args { x, w, logits, tiles };
            return groups.launch(stream, Choice::Forced(best), args);
        }
        self.any.launch(stream, Choice::Auto, args)
    }
}
