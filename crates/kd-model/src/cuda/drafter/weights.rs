//! A drafter's weights in device memory, in the order in which kernels read them.

use half::bf16;
use kd_kernels::{CudaSlice, Stream};
use kd_tensor::Bf16Matrix;

use super::DraftDims;
use crate::cuda::CudaError;
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

    /// Weights of the sizes in `dims` from a stream of values around zero, projections scaled so that what they make of
    /// normed rows stays near 1; gains are 1. Embedding and head are the target's.
    pub(super) fn random(stream: &Stream, dims: &DraftDims, seed: u64) -> Result<Self, CudaError> {
        let mut upload = Uploader::new(stream)?;
        let mut noise = Noise::new(seed);
        let (h, all) = (dims.hidden, dims.queries() + dims.entry());
        let mut layers = Vec::with_capacity(dims.layers.len());
        for _ in &dims.layers {
            layers.push(DraftDeviceLayer {
                input_norm: upload.gains(&vec![1.0; h])?,
                qkv: noise.matrix(&mut upload, all, h)?,
                query_norm: upload.gains(&vec![1.0; dims.head_dim])?,
                output: noise.matrix(&mut upload, h, dims.queries())?,
                post_norm: upload.gains(&vec![1.0; h])?,
                gate_up: noise.matrix(&mut upload, 2 * dims.width, h)?,
                down: noise.matrix(&mut upload, h, dims.width)?,
            });
        }
        let weights = Self {
            fc: noise.matrix(&mut upload, h, dims.tap_columns())?,
            hidden_norm: upload.gains(&vec![1.0; h])?,
            context: noise.matrix(&mut upload, dims.layers.len() * dims.entry(), h)?,
            key_norms: upload.gains(&vec![1.0; dims.layers.len() * dims.head_dim])?,
            layers,
            norm: upload.gains(&vec![1.0; h])?,
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

/// Rows of random values. A matrix takes rows of one block at places that differ from matrix to matrix, since making a
/// gigabyte of values one by one would take longer than everything else.
struct Noise {
    block: Vec<bf16>,
    next: usize,
}

/// Values of a block: a prime, so that rows of any width start at all places.
const BLOCK: usize = 4_194_301;

impl Noise {
    fn new(seed: u64) -> Self {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        let mut state = seed;
        let mut value = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            // Uniform with variance 1.
            let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
            (2.0 * unit - 1.0) * 3f32.sqrt()
        };
        Self { block: (0..BLOCK).map(|_| bf16::from_f32(value())).collect(), next: 0 }
    }

    fn matrix(
        &mut self,
        upload: &mut Uploader<'_>,
        rows: usize,
        cols: usize,
    ) -> Result<DeviceMatrix, CudaError> {
        let scale = bf16::from_f32(1.0 / (cols as f32).sqrt());
        let row = |_| {
            let mut row = Vec::with_capacity(cols);
            while row.len() < cols {
                let some = (cols - row.len()).min(BLOCK - self.next);
                row.extend(self.block[self.next..self.next + some].iter().map(|value| *value * scale));
                self.next = (self.next + some) % BLOCK;
            }
            row
        };
        let values: Vec<bf16> = (0..rows).flat_map(row).collect();
        let whole = Bf16Matrix::new(rows, cols, values).map_err(|error| {
            kd_kernels::KernelError::BadTensor { shape: vec![rows, cols], what: error.to_string() }
        })?;
        Ok(upload.matrix(&whole)?)
    }
}
