//! A target's weights in device memory, in the order in which kernels read them.

use half::bf16;
use kd_attn::{Mla, QueryProjection};
use kd_kernels::{CudaSlice, Kernels, Stream};
use kd_moe::gpu::{DeviceExperts, Packer};
use kd_moe::{Mlp, Moe};

use super::upload::{DeviceMatrix, Uploader};
use super::{CudaError, Dims};
use crate::target::{FeedForward, Layer};

/// One layer.
#[derive(Debug)]
pub(crate) struct DeviceLayer {
    pub(crate) input_norm: CudaSlice<bf16>,
    /// `q_a_proj`, then `kv_a_proj_with_mqa`.
    pub(crate) joint: DeviceMatrix,
    pub(crate) q_norm: CudaSlice<bf16>,
    pub(crate) kv_norm: CudaSlice<bf16>,
    pub(crate) q_b: DeviceMatrix,
    /// `[heads · latent, nope]`
    pub(crate) key_up: DeviceMatrix,
    /// `[heads · value, latent]`
    pub(crate) value_up: DeviceMatrix,
    /// `[heads · (nope + value), latent]`: both as the checkpoint has them, for prompt chunks.
    pub(crate) kv_b: DeviceMatrix,
    pub(crate) output: DeviceMatrix,
    pub(crate) post_norm: CudaSlice<bf16>,
    pub(crate) feed_forward: DeviceFeedForward,
}

/// The feed-forward half of a layer.
#[derive(Debug)]
pub(crate) enum DeviceFeedForward {
    Dense(DeviceMlp),
    Moe(Box<DeviceMoe>),
}

/// A gated MLP.
#[derive(Debug)]
pub(crate) struct DeviceMlp {
    /// Gate, then up.
    pub(crate) gate_up: DeviceMatrix,
    pub(crate) down: DeviceMatrix,
}

/// Router, experts and shared expert.
#[derive(Debug)]
pub(crate) struct DeviceMoe {
    pub(crate) router: DeviceMatrix,
    pub(crate) bias: CudaSlice<f32>,
    pub(crate) experts: DeviceExperts,
    pub(crate) shared: DeviceMlp,
}

impl Dims {
    /// Bytes of the weights of one rank, embedding and head included.
    ///
    /// # Errors
    /// Experts of a size that the layout does not hold.
    pub fn weight_bytes(&self) -> Result<usize, CudaError> {
        let [dense, moe] = [self.layer_bytes(false)?, self.layer_bytes(true)?];
        let layers = self.moe.iter().map(|is_moe| if *is_moe { moe } else { dense });
        Ok(layers.sum::<usize>() + self.table_bytes())
    }

    /// Bytes of embedding, final norm and head.
    pub(crate) fn table_bytes(&self) -> usize {
        2 * (2 * self.vocab + 1) * self.hidden
    }

    /// Bytes of one layer, with experts or without.
    pub(crate) fn layer_bytes(&self, moe: bool) -> Result<usize, CudaError> {
        let a = &self.attention;
        let attention = self.hidden * self.joint()
            + self.q_rank * self.queries()
            + a.heads * a.latent * 2 * (a.nope + a.value)
            + self.values() * self.hidden;
        let norms = 2 * self.hidden + self.q_rank + a.latent;
        let mlp = |width: usize| 3 * width * self.hidden;
        let count = self.experts.experts;
        if !moe {
            return Ok(2 * (attention + norms + mlp(self.dense_width)));
        }
        let experts = self.experts.device_bytes()? + count * size_of::<f32>();
        Ok(2 * (attention + norms + count * self.hidden + mlp(self.shared_width)) + experts)
    }
}

/// Brings layers of a loaded CPU model to the device.
pub(crate) struct LayerLoader<'a, 's> {
    pub(crate) upload: Uploader<'s>,
    packer: Packer,
    dims: &'a Dims,
}

impl<'a, 's> LayerLoader<'a, 's> {
    pub(crate) fn new(stream: &'s Stream, kernels: &Kernels, dims: &'a Dims) -> Result<Self, CudaError> {
        let packer = Packer::new(stream, kernels, dims.experts)?;
        Ok(Self { upload: Uploader::new(stream)?, packer, dims })
    }

    pub(crate) fn layer(&mut self, layer: &Layer) -> Result<DeviceLayer, CudaError> {
        let feed_forward = match &layer.feed_forward {
            FeedForward::Dense(mlp) => DeviceFeedForward::Dense(self.mlp(mlp)?),
            FeedForward::Moe(moe) => DeviceFeedForward::Moe(Box::new(self.moe(moe)?)),
        };
        self.attention(layer, &layer.attention, feed_forward)
    }

    fn attention(
        &mut self,
        layer: &Layer,
        attention: &Mla,
        feed_forward: DeviceFeedForward,
    ) -> Result<DeviceLayer, CudaError> {
        let weights = attention.weights();
        let QueryProjection::LowRank { a, norm, b } = weights.query else {
            let (key, supported) = ("q_lora_rank", "a compressed query");
            return Err(CudaError::Unsupported { key, found: "null".to_owned(), supported });
        };
        let heads = || weights.key_up.iter().zip(weights.value_up);
        let kv_b: Vec<_> = heads().flat_map(|(key, value)| [key, value]).collect();
        let value_up: Vec<_> = weights.value_up.iter().collect();
        let upload = &mut self.upload;
        Ok(DeviceLayer {
            input_norm: upload.gains(&layer.input_norm)?,
            joint: upload.stack(&[a, weights.kv_a])?,
            q_norm: upload.gains(norm)?,
            kv_norm: upload.gains(weights.kv_norm)?,
            q_b: upload.matrix(b)?,
            key_up: upload.transposed(weights.key_up)?,
            value_up: upload.stack(&value_up)?,
            kv_b: upload.stack(&kv_b)?,
            output: upload.matrix(weights.output)?,
            post_norm: upload.gains(&layer.post_norm)?,
            feed_forward,
        })
    }

    fn mlp(&mut self, mlp: &Mlp) -> Result<DeviceMlp, CudaError> {
        let gate_up = self.upload.stack(&[&mlp.gate, &mlp.up])?;
        Ok(DeviceMlp { gate_up, down: self.upload.matrix(&mlp.down)? })
    }

    fn moe(&mut self, moe: &Moe) -> Result<DeviceMoe, CudaError> {
        let stream = self.upload.stream();
        let shared = moe.shared.as_ref().ok_or_else(|| CudaError::Unsupported {
            key: "n_shared_experts",
            found: "0".to_owned(),
            supported: "at least one",
        })?;
        let mut experts = DeviceExperts::new(stream, self.dims.experts)?;
        for (index, expert) in moe.experts.0.iter().enumerate() {
            self.packer.pack(stream, &mut experts, index, expert)?;
        }
        Ok(DeviceMoe {
            router: self.upload.matrix(&moe.router.weight)?,
            bias: self.upload.values(&moe.router.bias)?,
            experts,
            shared: self.mlp(shared)?,
        })
    }
}
