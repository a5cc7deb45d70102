//! The launches of one draft, layer by layer.

use half::bf16;
use kd_attn::PAGE_TOKENS;
use kd_kernels::families::{
    add_rms_norm, draft_block, drafter_attention, drafter_heads, drafter_merge, embed, few_gate, lm_head,
    lm_head_top_k, rms_norm, silu_mul,
};
use kd_kernels::ranks::Exchange;
use kd_kernels::{Choice, HEAD_TILE, Stream, TensorMut, TensorRef};

use super::inputs::{Blocks, DraftLimits};
use super::kernels::DraftKernels;
use super::memory::DraftMemory;
use super::rows::TOP;
use super::weights::DraftDeviceLayer;
use super::{DraftDims, Gains};
use crate::cuda::CudaError;
use crate::cuda::layer::GATE_ROWS;
use crate::cuda::memory::{head, head_mut, part};
use crate::cuda::upload::DeviceMatrix;

/// One draft on its way.
pub(super) struct Pass<'a> {
    pub(super) stream: &'a Stream,
    pub(super) dims: &'a DraftDims,
    pub(super) limits: DraftLimits,
    pub(super) kernels: &'a DraftKernels,
    pub(super) memory: &'a mut DraftMemory,
    pub(super) exchange: &'a dyn Exchange,
    pub(super) streams: usize,
    pub(super) blocks: &'a Blocks<'a>,
}

impl Pass<'_> {
    fn rows(&self) -> usize {
        self.streams * self.dims.block
    }

    /// The blocks' tokens and positions, the residual stream, and what the first layer sees of it.
    pub(super) fn embed_blocks(&mut self, table: &DeviceMatrix, gain: &Gains) -> Result<(), CudaError> {
        let (rows, small) = (self.rows(), |id: usize| i32::try_from(id).unwrap_or(-1));
        let Self { stream, dims, kernels, memory, streams, blocks, .. } = self;
        let (streams, hidden) = (*streams, dims.hidden);
        let args = draft_block::Args {
            starts: TensorRef::new(stream, blocks.starts.slice(..), [streams])?,
            bonus: TensorRef::new(stream, blocks.bonus.slice(..), [streams])?,
            mask: small(dims.mask as usize),
            ids: head_mut(stream, &mut memory.ids, [streams, dims.block])?,
            positions: head_mut(stream, &mut memory.positions, [streams, dims.block])?,
        };
        kernels.block.launch(stream, Choice::Auto, args)?;
        let args = embed::Args {
            table: table.tensor(stream)?,
            ids: head(stream, &memory.ids, [rows])?,
            rank: small(dims.rank),
            y: head_mut(stream, &mut memory.hidden, [rows, hidden])?,
        };
        kernels.embed.launch(stream, Choice::Auto, args)?;
        let args = rms_norm::Args {
            x: head(stream, &memory.hidden, [rows, hidden])?,
            gain: head(stream, gain, [hidden])?,
            eps: dims.eps,
            y: head_mut(stream, &mut memory.normed, [rows, hidden])?,
        };
        kernels.rms_norm.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Attention of layer `index` over the normed rows: this rank's part of what is added to the residual stream.
    pub(super) fn attention(
        &mut self,
        index: usize,
        layer: &DraftDeviceLayer,
        key_norm: TensorRef<'_, bf16, 1>,
    ) -> Result<(), CudaError> {
        let rows = self.rows();
        let Self { stream, dims, limits, kernels, memory, .. } = self;
        let (h, q, n, d) = (dims.hidden, dims.heads, dims.kv_heads, dims.head_dim);
        let x = head(stream, &memory.normed, [rows, h])?;
        let qkv = head_mut(stream, &mut memory.qkv, [rows, dims.queries() + dims.entry()])?;
        kernels.products.launch(stream, &mut memory.scratch, x, layer.qkv.tensor(stream)?, qkv)?;
        let args = drafter_heads::Args {
            qkv: head(stream, &memory.qkv, [rows, q + 2 * n, d])?,
            query_gain: head(stream, &layer.query_norm, [d])?,
            key_gain: key_norm,
            eps: dims.eps,
            rope: head(stream, &memory.rope, [limits.positions(dims.block), d])?,
            positions: head(stream, &memory.positions, [rows])?,
            q: head_mut(stream, &mut memory.queries, [rows, q, d])?,
            own: head_mut(stream, &mut memory.own, [rows, 2, n, d])?,
        };
        kernels.heads.launch(stream, Choice::Auto, args)?;
        self.attend(index)?;
        let Self { stream, dims, kernels, memory, .. } = self;
        let mixed = head(stream, &memory.mixed, [rows, dims.queries()])?;
        let out = head_mut(stream, &mut memory.part, [rows, h])?;
        Ok(kernels.products.launch(stream, &mut memory.scratch, mixed, layer.output.tensor(stream)?, out)?)
    }

    /// All rows over the committed context and their own block.
    fn attend(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { stream, dims, limits, kernels, memory, streams, blocks, .. } = self;
        let (s, b, q, n, d) = (*streams, dims.block, dims.heads, dims.kv_heads, dims.head_dim);
        let layer = dims.layers[index];
        let window = layer.window.map_or(0, |window| i32::try_from(window).unwrap_or(i32::MAX));
        let part_o = [s, n, dims.splits(), b * dims.group(), d];
        let part_ml = [s, n, dims.splits(), b * dims.group(), 2];
        let starts = || TensorRef::new(stream, blocks.starts.slice(..), [s]);
        let entries = limits.pages * PAGE_TOKENS * dims.entry();
        let args = drafter_attention::Args {
            q: head(stream, &memory.queries, [s, b, q, d])?,
            own: head(stream, &memory.own, [s, b, 2, n, d])?,
            cache: part(stream, &memory.cache, index * entries, [limits.pages, PAGE_TOKENS, 2, n, d])?,
            table: TensorRef::new(stream, blocks.table.slice(..), [s, blocks.table.len() / s.max(1)])?,
            starts: starts()?,
            window,
            causal: i32::from(layer.causal),
            scale: 1.0 / (d as f32).sqrt(),
            part_o: head_mut(stream, &mut memory.part_o, part_o)?,
            part_ml: head_mut(stream, &mut memory.part_ml, part_ml)?,
            y: head_mut(stream, &mut memory.mixed, [s, b, q, d])?,
        };
        kernels.attention.launch(stream, Choice::Auto, args)?;
        let args = drafter_merge::Args {
            part_o: head(stream, &memory.part_o, part_o)?,
            part_ml: head(stream, &memory.part_ml, part_ml)?,
            starts: starts()?,
            window,
            y: head_mut(stream, &mut memory.mixed, [s, b, q, d])?,
        };
        kernels.merge.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// The MLP over the normed rows: this rank's part of what is added to the residual stream.
    pub(super) fn mlp(&mut self, layer: &DraftDeviceLayer) -> Result<(), CudaError> {
        let rows = self.rows();
        let Self { stream, dims, kernels, memory, .. } = self;
        let x = head(stream, &memory.normed, [rows, dims.hidden])?;
        let w = layer.gate_up.tensor(stream)?;
        if let Some(gate) = kernels.few_gate.as_ref().filter(|_| rows <= GATE_ROWS) {
            let y = head_mut(stream, &mut memory.gated, [rows, dims.width])?;
            gate.launch(stream, Choice::Auto, few_gate::Args { x, w, y })?;
        } else {
            let gate_up = head_mut(stream, &mut memory.gate_up, [rows, 2 * dims.width])?;
            kernels.products.launch(stream, &mut memory.scratch, x, w, gate_up)?;
            let args = silu_mul::Args {
                gate_up: head(stream, &memory.gate_up, [rows, 2 * dims.width])?,
                y: head_mut(stream, &mut memory.gated, [rows, dims.width])?,
            };
            kernels.gate.launch(stream, Choice::Auto, args)?;
        }
        let gated = head(stream, &memory.gated, [rows, dims.width])?;
        let out = head_mut(stream, &mut memory.part, [rows, dims.hidden])?;
        Ok(kernels.products.launch(stream, &mut memory.scratch, gated, layer.down.tensor(stream)?, out)?)
    }

    /// The seam: all ranks' parts to the residual stream, which is normed with `gain` for what comes next.
    pub(super) fn reduce_add_norm(&mut self, gain: &Gains) -> Result<(), CudaError> {
        let rows = self.rows();
        let Self { stream, dims, kernels, memory, exchange, .. } = self;
        let hidden = dims.hidden;
        let parts = exchange.meet(stream, &mut memory.part, rows * hidden, &mut memory.room)?;
        let args = add_rms_norm::Args {
            h: head_mut(stream, &mut memory.hidden, [rows, hidden])?,
            parts: TensorRef::new(stream, parts, [exchange.parts(), rows, hidden])?,
            gain: head(stream, gain, [hidden])?,
            eps: dims.eps,
            early: 0,
            tap: TensorMut::none([0, hidden]),
            y: head_mut(stream, &mut memory.normed, [rows, hidden])?,
        };
        kernels.add_rms_norm.launch(stream, Choice::Auto, args)?;
        Ok(())
    }

    /// Logits of the rows that predict a token, and the best tokens of each.
    pub(super) fn best_tokens(&mut self, weights: &DeviceMatrix) -> Result<(), CudaError> {
        let rows = self.rows();
        let Self { stream, dims, kernels, memory, streams, .. } = self;
        let (count, hidden, vocab) = (*streams * dims.drafted(), dims.hidden, dims.vocab);
        let tiles = [count, vocab.div_ceil(HEAD_TILE), 4];
        let args = embed::Args {
            table: head(stream, &memory.normed, [rows, hidden])?,
            ids: head(stream, &memory.predicting, [count])?,
            rank: 0,
            y: head_mut(stream, &mut memory.last, [count, hidden])?,
        };
        kernels.embed.launch(stream, Choice::Auto, args)?;
        let args = lm_head::Args {
            x: head(stream, &memory.last, [count, hidden])?,
            w: weights.tensor(stream)?,
            logits: head_mut(stream, &mut memory.logits, [count, vocab])?,
            tiles: head_mut(stream, &mut memory.tiles, tiles)?,
        };
        kernels.lm_head.launch(stream, args)?;
        let args = lm_head_top_k::Args {
            logits: head(stream, &memory.logits, [count, vocab])?,
            tiles: head(stream, &memory.tiles, tiles)?,
            rank: i32::try_from(dims.rank).unwrap_or(-1),
            tokens: head_mut(stream, &mut memory.tokens, [count, TOP])?,
            values: head_mut(stream, &mut memory.values, [count, TOP])?,
            stats: head_mut(stream, &mut memory.stats, [count, 2])?,
            finite: head_mut(stream, &mut memory.finite, [count])?,
        };
        kernels.top_k.launch(stream, Choice::Auto, args)?;
        Ok(())
    }
}
