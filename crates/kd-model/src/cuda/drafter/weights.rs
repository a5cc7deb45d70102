//! A drafter's weights in device memory, in the order in which kernels read them.

use half::bf16;
use kd_kernels::selftest::Random;
use kd_kernels::{CudaSlice, Stream};
use kd_tensor::Bf16Matrix;

use super::DraftDims;
use crate::cuda::CudaError;
use crate::cuda::random::Source;
use crate::cuda::upload::{DeviceMatrix, Uploader};
use crate::drafter::{DraftLayer, Drafter};

/// One layer.
#[derive(Debug)]
pub(super) struct DraftDeviceLayer {
    pub(super) input_norm: CudaSlice<bf16>,
    /// Queries, keys and values.
    pub(super) qkv: DeviceMatrix,
    pub(super) query_norm: CudaSlice<bf16>,
    pub(super) output: DeviceMatrix,
    pub(super) post_norm: CudaSlice<bf16>,
    /// Gate, then up.
    pub(super) gate_up: DeviceMatrix,
    pub(super) down: DeviceMatrix,
}

/// One rank of a drafter.
#[derive(Debug)]
pub(super) struct DraftWeights {
    /// This rank's columns of `fc`.
    pub(super) fc: DeviceMatrix,
    pub(super) hidden_norm: CudaSlice<bf16>,
    /// Keys, then values, of all layers: once more than in `qkv`, so that the context of a token is one product.
    pub(super) context: DeviceMatrix,
    /// `[layers, head_dim]`
    pub(super) key_norms: CudaSlice<bf16>,
    pub(super) layers: Vec<DraftDeviceLayer>,
    pub(super) norm: CudaSlice<bf16>,
    /// `None`: the target's.
    pub(super) embed: Option<DeviceMatrix>,
    /// `None`: the target's.
    pub(super) head: Option<DeviceMatrix>,
}

impl DraftWeights {
    /// Brings rank `dims.rank` of `drafter` to the device.
    pub(super) fn load(stream: &Stream, drafter: &Drafter, dims: &DraftDims) -> Result<Self, CudaError> {
        let shard = &drafter.ranks[dims.rank];
        let mut upload = Uploader::new(stream)?;
        let columns = dims.rank * dims.tap_columns()..(dims.rank + 1) * dims.tap_columns();
        let fc: Vec<Bf16Matrix> =
            drafter.ranks.iter().map(|shard| shard.fc.slice_columns(columns.clone())).collect();
        let key_norms: Vec<f32> = shard.layers.iter().flat_map(|layer| &layer.key_norm).copied().collect();
        let entries: Vec<&Bf16Matrix> =
            shard.layers.iter().flat_map(|layer| [&layer.key, &layer.value]).collect();
        let mut span = |matrix: &Option<Bf16Matrix>| {
            let own = |matrix: &Bf16Matrix| {
                let rows = matrix.rows() / dims.ranks;
                upload.matrix(&matrix.slice_rows(dims.rank * rows..(dims.rank + 1) * rows))
            };
            matrix.as_ref().map(own).transpose()
        };
        let (embed, head) = (span(&drafter.embed)?, span(&drafter.head)?);
        let weights = Self {
            fc: upload.stack(&fc.iter().collect::<Vec<_>>())?,
            hidden_norm: upload.gains(&shard.hidden_norm)?,
            context: upload.stack(&entries)?,
            key_norms: upload.gains(&key_norms)?,
            layers: shard.layers.iter().map(|own| layer(&mut upload, own)).collect::<Result<_, _>>()?,
            norm: upload.gains(&shard.norm)?,
            embed,
            head,
        };
        stream.synchronize()?;
        Ok(weights)
    }

    /// Random weights of the sizes in `dims`, as those of [`CudaTarget::random`](crate::cuda::CudaTarget::random); embedding
    /// and head are the target's.
    pub(super) fn random(stream: &Stream, dims: &DraftDims, seed: u64) -> Result<Self, CudaError> {
        let mut source = Source::new(stream, &mut Random::new(seed));
        let (h, layers) = (dims.hidden, dims.layers.len());
        let mut layer = |_| -> Result<_, CudaError> {
            Ok(DraftDeviceLayer {
                input_norm: source.gains(h)?,
                qkv: source.matrix(dims.queries() + dims.entry(), h)?,
                query_norm: source.gains(dims.head_dim)?,
                output: source.matrix(h, dims.queries())?,
                post_norm: source.gains(h)?,
                gate_up: source.matrix(2 * dims.width, h)?,
                down: source.matrix(h, dims.width)?,
            })
        };
        let weights = Self {
            layers: (0..layers).map(&mut layer).collect::<Result<_, _>>()?,
            fc: source.matrix(h, dims.tap_columns())?,
            hidden_norm: source.gains(h)?,
            context: source.matrix(layers * dims.entry(), h)?,
            key_norms: source.gains(layers * dims.head_dim)?,
            norm: source.gains(h)?,
            embed: None,
            head: None,
        };
        stream.synchronize()?;
        Ok(weights)
    }
}

fn layer(upload: &mut Uploader<'_>, layer: &DraftLayer) -> Result<DraftDeviceLayer, CudaError> {
    Ok(DraftDeviceLayer {
        input_norm: upload.gains(&layer.input_norm)?,
        qkv: upload.stack(&[&layer.query, &layer.key, &layer.value])?,
        query_norm: upload.gains(&layer.query_norm)?,
        output: upload.matrix(&layer.output)?,
        post_norm: upload.gains(&layer.post_norm)?,
        gate_up: upload.stack(&[&layer.mlp.gate, &layer.mlp.up])?,
        down: upload.matrix(&layer.mlp.down)?,
    })
}
