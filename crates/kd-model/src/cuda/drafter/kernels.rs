//! The kernels of a drafter, loaded for one rank's sizes.

use kd_kernels::families::{
    add_rms_norm, draft_block, drafter_attention, drafter_context, drafter_heads, drafter_merge, embed,
    few_gate, lm_head_top_k, rms_norm, silu_mul, tap_columns,
};
use kd_kernels::{HeadProduct, KernelError, Kernels};

use super::DraftDims;
use crate::cuda::kernels::{Products, built, int};

/// Every launcher of a draft.
#[derive(Debug)]
pub(super) struct DraftKernels {
    pub(super) tap_columns: tap_columns::TapColumns,
    pub(super) block: draft_block::DraftBlock,
    pub(super) embed: embed::Embed,
    pub(super) rms_norm: rms_norm::RmsNorm,
    pub(super) add_rms_norm: add_rms_norm::AddRmsNorm,
    pub(super) products: Products,
    pub(super) context: drafter_context::DrafterContext,
    pub(super) heads: drafter_heads::DrafterHeads,
    pub(super) attention: drafter_attention::DrafterAttention,
    pub(super) merge: drafter_merge::DrafterMerge,
    /// For few rows the MLP's first product and its activation, where its sizes have it; else two launches.
    pub(super) few_gate: Option<few_gate::FewGate>,
    pub(super) gate: silu_mul::SiluMul,
    pub(super) lm_head: HeadProduct,
    pub(super) top_k: lm_head_top_k::LmHeadTopK,
}

impl DraftKernels {
    pub(super) fn load(kernels: &Kernels, dims: &DraftDims) -> Result<Self, KernelError> {
        let [h, c, d] = [dims.hidden, dims.tap_columns(), dims.head_dim].map(int);
        let [n, q, g] = [dims.kv_heads, dims.heads, dims.group()].map(int);
        let [blk, splits, i, v] = [dims.block, dims.splits(), dims.width, dims.vocab].map(int);
        let widths = [dims.hidden, dims.tap_columns(), dims.queries(), dims.width];
        let merge = drafter_merge::Dims { d, n, g, blk, splits };
        Ok(Self {
            tap_columns: tap_columns::TapColumns::load(kernels, tap_columns::Dims { c })?,
            block: draft_block::DraftBlock::load(kernels, draft_block::Dims { blk })?,
            embed: embed::Embed::load(kernels, embed::Dims { h })?,
            rms_norm: rms_norm::RmsNorm::load(kernels, rms_norm::Dims { h })?,
            add_rms_norm: add_rms_norm::AddRmsNorm::load(kernels, add_rms_norm::Dims { h })?,
            products: Products::few(kernels, &widths)?,
            context: drafter_context::DrafterContext::load(kernels, drafter_context::Dims { d, n })?,
            heads: drafter_heads::DrafterHeads::load(kernels, drafter_heads::Dims { d, q, n })?,
            attention: drafter_attention::DrafterAttention::load(
                kernels,
                drafter_attention::Dims { d, n, g, blk, splits },
            )?,
            merge: drafter_merge::DrafterMerge::load(kernels, merge)?,
            few_gate: built(few_gate::FewGate::load(kernels, few_gate::Dims { k: h, i }))?,
            gate: silu_mul::SiluMul::load(kernels, silu_mul::Dims { i })?,
            lm_head: HeadProduct::load(kernels, h)?,
            top_k: lm_head_top_k::LmHeadTopK::load(kernels, lm_head_top_k::Dims { v })?,
        })
    }
}
