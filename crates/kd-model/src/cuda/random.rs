//! Weights of any shape without a checkpoint: sane numbers, made where they lie.

use half::bf16;
use kd_kernels::selftest::{Random, upload};
use kd_kernels::{CudaSlice, KernelError, Kernels, Stream};
use kd_moe::Expert;
use kd_moe::bench::expert;
use kd_moe::gpu::{DeviceExperts, GpuError, Packer, Shape};
use kd_tensor::{Int4Matrix, WeightRows};

use super::kernels::TargetKernels;
use super::target::CudaTarget;
use super::upload::DeviceMatrix;
use super::weights::{DeviceFeedForward, DeviceLayer, DeviceMlp, DeviceMoe};
use super::{CudaError, Dims};

/// Values that matrices are cut from. No multiple of any row, so that rows of one matrix differ.
const POOL: usize = (4 << 20) + 40;
/// Different experts that every layer's are copies of.
const EXPERTS: usize = 8;
/// Different rows of the embedding.
const TOKENS: usize = 2048;

/// What random weights are like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomWeights {
    /// The same seed gives the same weights.
    pub seed: u64,
    /// How much of each token's embedding is common to all, from 0 to 1: rows that resemble each other choose the same
    /// experts.
    pub correlation: f32,
}

/// Copies parts of a pool of random values into matrices.
pub(crate) struct Source<'s> {
    stream: &'s Stream,
    /// By number of inputs and factor: values whose products with normed rows have the variance of the factor.
    pools: Vec<(usize, f32, CudaSlice<bf16>)>,
    units: Vec<f32>,
    next: usize,
}

impl CudaTarget {
    /// A target of `dims` with random weights, uniform and of variance 1 over the number of inputs; gains are 1. What a layer
    /// adds to the residual stream is divided by the number of layers, so that rows keep their size at any depth.
    ///
    /// Every matrix and expert has memory of its own, so that reading them costs what real ones cost, but values repeat: all
    /// experts are copies of eight, matrices are cut from one pool of four million values, embeddings repeat after 2,048
    /// tokens.
    ///
    /// # Errors
    /// A bundle of another shape, too little memory, a failed copy.
    pub fn random(
        stream: &Stream,
        kernels: &Kernels,
        dims: Dims,
        weights: RandomWeights,
    ) -> Result<Self, CudaError> {
        super::plan::room_for_weights(stream, &dims)?;
        let loaded = TargetKernels::load(kernels, &dims)?;
        let mut random = Random::new(weights.seed);
        let mut source = Source::new(stream, &mut random);
        let experts = distinct_experts(stream, kernels, &dims, &mut random)?;
        let embed = source.embedding(&dims, weights.correlation)?;
        let layer = |index: usize| source.layer(&dims, index, &experts);
        let layers = (0..dims.layers).map(layer).collect::<Result<_, _>>()?;
        let head = source.matrix(dims.vocab, dims.hidden)?;
        let norm = source.gains(dims.hidden)?;
        stream.synchronize()?;
        Ok(Self { dims, kernels: loaded, embed, layers, norm, head })
    }
}

/// A few packed experts.
fn distinct_experts(
    stream: &Stream,
    kernels: &Kernels,
    dims: &Dims,
    random: &mut Random,
) -> Result<DeviceExperts, CudaError> {
    let few = Shape { experts: EXPERTS.min(dims.experts.experts), ..dims.experts };
    let (mut packer, mut experts) = (Packer::new(stream, kernels, few)?, DeviceExperts::new(stream, few)?);
    for index in 0..few.experts {
        let own = expert(random, &few)?;
        let down = scaled(&own.down, branch(dims))?;
        packer.pack(stream, &mut experts, index, &Expert { down, ..own })?;
    }
    Ok(experts)
}

/// What the outputs of a layer are multiplied by.
fn branch(dims: &Dims) -> f32 {
    1.0 / dims.layers.max(1) as f32
}

fn scaled(matrix: &Int4Matrix, factor: f32) -> Result<Int4Matrix, CudaError> {
    let rows = || 0..matrix.rows();
    let words: Vec<i32> = rows().flat_map(|row| matrix.words(row)).copied().collect();
    let scale = |scale: &bf16| bf16::from_f32(scale.to_f32() * factor);
    let scales: Vec<bf16> = rows().flat_map(|row| matrix.scales(row)).map(scale).collect();
    let scaled = Int4Matrix::new(matrix.rows(), matrix.cols(), words, scales);
    scaled.map_err(|error| GpuError::Layout(error.into()).into())
}

impl<'s> Source<'s> {
    pub(crate) fn new(stream: &'s Stream, random: &mut Random) -> Self {
        let units = (0..POOL).map(|_| random.unit() * 3f32.sqrt()).collect();
        Self { stream, pools: Vec::new(), units, next: 0 }
    }

    fn layer(
        &mut self,
        dims: &Dims,
        index: usize,
        experts: &DeviceExperts,
    ) -> Result<DeviceLayer, CudaError> {
        let a = &dims.attention;
        let feed_forward = if dims.moe[index] {
            DeviceFeedForward::Moe(Box::new(self.moe(dims, index, experts)?))
        } else {
            DeviceFeedForward::Dense(self.mlp(dims, dims.dense_width)?)
        };
        Ok(DeviceLayer {
            input_norm: self.gains(dims.hidden)?,
            joint: self.matrix(dims.joint(), dims.hidden)?,
            q_norm: self.gains(dims.q_rank)?,
            kv_norm: self.gains(a.latent)?,
            q_b: self.matrix(dims.queries(), dims.q_rank)?,
            key_up: self.matrix(a.heads * a.latent, a.nope)?,
            value_up: self.matrix(a.heads * a.value, a.latent)?,
            kv_b: self.matrix(a.heads * (a.nope + a.value), a.latent)?,
            output: self.scaled(dims.hidden, dims.values(), branch(dims))?,
            post_norm: self.gains(dims.hidden)?,
            feed_forward,
        })
    }

    fn moe(&mut self, dims: &Dims, index: usize, from: &DeviceExperts) -> Result<DeviceMoe, CudaError> {
        let count = dims.experts.experts;
        let mut experts = DeviceExperts::new(self.stream, dims.experts)?;
        for expert in 0..count {
            experts.copy_from(self.stream, from, (expert + 3 * index) % from.shape().experts, expert)?;
        }
        Ok(DeviceMoe {
            router: self.matrix(count, dims.hidden)?,
            bias: upload(self.stream, &vec![0.0; count])?,
            experts,
            shared: self.mlp(dims, dims.shared_width)?,
        })
    }

    fn mlp(&mut self, dims: &Dims, width: usize) -> Result<DeviceMlp, CudaError> {
        let gate_up = self.matrix(2 * width, dims.hidden)?;
        Ok(DeviceMlp { gate_up, down: self.scaled(dims.hidden, width, branch(dims))? })
    }

    pub(crate) fn gains(&self, len: usize) -> Result<CudaSlice<bf16>, KernelError> {
        upload(self.stream, &vec![bf16::ONE; len])
    }

    /// Rows that share a part: `√c · common + √(1 − c) · own` has variance 1 as well.
    fn embedding(&mut self, dims: &Dims, correlation: f32) -> Result<DeviceMatrix, CudaError> {
        let (hidden, rows) = (dims.hidden, TOKENS.min(dims.vocab));
        let (common, own) = (correlation.clamp(0.0, 1.0).sqrt(), (1.0 - correlation.clamp(0.0, 1.0)).sqrt());
        let unit = |i: usize| self.units[i % POOL];
        let value = |i: usize| bf16::from_f32(common * unit(i % hidden) + own * unit(hidden + i));
        let values: Vec<bf16> = (0..rows * hidden).map(value).collect();
        let block = upload(self.stream, &values)?;
        let mut matrix = DeviceMatrix::zeros(self.stream, dims.vocab, hidden)?;
        repeat(self.stream, &block, 0, &mut matrix.data)?;
        Ok(matrix)
    }

    pub(crate) fn matrix(&mut self, rows: usize, cols: usize) -> Result<DeviceMatrix, KernelError> {
        self.scaled(rows, cols, 1.0)
    }

    fn scaled(&mut self, rows: usize, cols: usize, factor: f32) -> Result<DeviceMatrix, KernelError> {
        let mut matrix = DeviceMatrix::zeros(self.stream, rows, cols)?;
        let own = |(inputs, of, _): &(usize, f32, _)| (*inputs, *of) == (cols, factor);
        let index = match self.pools.iter().position(own) {
            Some(index) => index,
            None => {
                let scale = factor / (cols as f32).sqrt();
                let values: Vec<bf16> = self.units.iter().map(|unit| bf16::from_f32(unit * scale)).collect();
                self.pools.push((cols, factor, upload(self.stream, &values)?));
                self.pools.len() - 1
            }
        };
        repeat(self.stream, &self.pools[index].2, self.next, &mut matrix.data)?;
        // Somewhere else for the next one.
        self.next = (self.next + 1_000_003) % POOL;
        Ok(matrix)
    }
}

/// Fills `to` with `from`, again and again, from `start` on.
fn repeat(
    stream: &Stream,
    from: &CudaSlice<bf16>,
    mut start: usize,
    to: &mut CudaSlice<bf16>,
) -> Result<(), KernelError> {
    let mut filled = 0;
    while filled < to.len() {
        let count = (from.len() - start).min(to.len() - filled);
        let copied = stream
            .cuda()
            .memcpy_dtod(&from.slice(start..start + count), &mut to.slice_mut(filled..filled + count));
        copied.map_err(|error| KernelError::driver("copying random weights", error))?;
        (filled, start) = (filled + count, 0);
    }
    Ok(())
}
