//! Packed experts in device memory, and how they get there.

use half::bf16;
use kd_kernels::families::moe_repack;
use kd_kernels::selftest::driver;
use kd_kernels::{Choice, CudaSlice, Kernels, Stream, TensorMut, TensorRef};
use kd_tensor::{Int4Matrix, WeightRows};

use super::{GpuError, Shape};
use crate::Expert;

/// The packed experts of one layer.
#[derive(Debug)]
pub struct DeviceExperts {
    shape: Shape,
    pub(super) gate_up: CudaSlice<u32>,
    pub(super) down: CudaSlice<u32>,
}

/// Packs experts on the device, one at a time: beside the packed layer it needs the memory of a single expert.
#[derive(Debug)]
pub struct Packer {
    shape: Shape,
    gate_up: moe_repack::MoeRepack,
    down: moe_repack::MoeRepack,
    first: Staged,
    second: Staged,
}

/// One matrix as the checkpoint has it.
#[derive(Debug)]
struct Staged {
    words: CudaSlice<i32>,
    scales: CudaSlice<bf16>,
}

impl DeviceExperts {
    /// Room for the experts of `shape`.
    ///
    /// # Errors
    /// A shape that the layout does not hold, a failed allocation.
    pub fn new(stream: &Stream, shape: Shape) -> Result<Self, GpuError> {
        shape.weight_bytes()?;
        let [gate_up, down] = shape.expert_words()?;
        let room = |words: usize| stream.cuda().alloc_zeros(words * shape.experts).map_err(driver);
        Ok(Self { shape, gate_up: room(gate_up)?, down: room(down)? })
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Makes `to` a copy of expert `from`.
    ///
    /// # Errors
    /// A number that is none of this layer's, a failed copy.
    pub fn copy(&mut self, stream: &Stream, from: usize, to: usize) -> Result<(), GpuError> {
        in_range(&self.shape, from.max(to))?;
        let words = self.shape.expert_words()?;
        for (slice, words) in [&mut self.gate_up, &mut self.down].into_iter().zip(words) {
            // The driver copies between two arrays.
            let source =
                stream.cuda().clone_dtod(&slice.slice(from * words..(from + 1) * words)).map_err(driver)?;
            let mut place = slice.slice_mut(to * words..(to + 1) * words);
            stream.cuda().memcpy_dtod(&source, &mut place).map_err(driver)?;
        }
        Ok(())
    }

    /// Makes `to` a copy of expert `from` of another layer of the same shape of experts.
    ///
    /// # Errors
    /// A number that is none of a layer's, experts of another shape, a failed copy.
    pub fn copy_from(
        &mut self,
        stream: &Stream,
        other: &Self,
        from: usize,
        to: usize,
    ) -> Result<(), GpuError> {
        in_range(&self.shape, to)?;
        in_range(&other.shape, from)?;
        let (words, found) = (self.shape.expert_words()?, other.shape.expert_words()?);
        let pairs = [(&mut self.gate_up, &other.gate_up), (&mut self.down, &other.down)];
        for ((place, source), (words, found)) in pairs.into_iter().zip(words.into_iter().zip(found)) {
            if words != found {
                let what = "the size of an expert that is copied";
                return Err(GpuError::Limit { what, found, limit: words });
            }
            let mut place = place.slice_mut(to * words..(to + 1) * words);
            let source = source.slice(from * words..(from + 1) * words);
            stream.cuda().memcpy_dtod(&source, &mut place).map_err(driver)?;
        }
        Ok(())
    }

    /// Both arrays: gate and up, and down.
    pub(crate) fn arrays(&self) -> [&CudaSlice<u32>; 2] {
        [&self.gate_up, &self.down]
    }

    /// The packed words of one expert: gate and up, and down.
    ///
    /// # Errors
    /// A number that is none of this layer's, a failed copy.
    pub fn read(&self, stream: &Stream, expert: usize) -> Result<[Vec<u32>; 2], GpuError> {
        in_range(&self.shape, expert)?;
        let words = self.shape.expert_words()?;
        let read = |slice: &CudaSlice<u32>, words: usize| {
            stream.cuda().clone_dtoh(&slice.slice(expert * words..(expert + 1) * words)).map_err(driver)
        };
        let packed = [read(&self.gate_up, words[0])?, read(&self.down, words[1])?];
        stream.synchronize()?;
        Ok(packed)
    }
}

impl Packer {
    /// Loads the kernels and allocates the memory of one expert.
    ///
    /// # Errors
    /// A bundle without these units, a shape that the layout does not hold, a failed allocation.
    pub fn new(stream: &Stream, kernels: &Kernels, shape: Shape) -> Result<Self, GpuError> {
        shape.weight_bytes()?;
        let repack = |k: usize| {
            let k = i64::try_from(k).unwrap_or(i64::MAX);
            moe_repack::MoeRepack::load(kernels, moe_repack::Dims { k })
        };
        // All three matrices of an expert have as many values.
        let values = shape.hidden * shape.width;
        let staged = || {
            let words = stream.cuda().alloc_zeros(values / 8).map_err(driver)?;
            Ok::<_, GpuError>(Staged {
                words,
                scales: stream.cuda().alloc_zeros(values / 32).map_err(driver)?,
            })
        };
        Ok(Self {
            shape,
            gate_up: repack(shape.hidden)?,
            down: repack(shape.width)?,
            first: staged()?,
            second: staged()?,
        })
    }

    /// Packs `expert` as number `index` of `experts`.
    ///
    /// # Errors
    /// A number that is none of the layer's, matrices of another shape, a failed copy or launch.
    pub fn pack(
        &mut self,
        stream: &Stream,
        experts: &mut DeviceExperts,
        index: usize,
        expert: &Expert,
    ) -> Result<(), GpuError> {
        in_range(&self.shape, index)?;
        let Shape { hidden, width, .. } = self.shape;
        let same = |matrix: &'static str, found: &Int4Matrix, expected: [usize; 2]| {
            let found = [found.rows(), found.cols()];
            if found == expected {
                Ok(())
            } else {
                Err(GpuError::Expert { expert: index, matrix, found, expected })
            }
        };
        same("gate", &expert.gate, [width, hidden])?;
        same("up", &expert.up, [width, hidden])?;
        same("down", &expert.down, [hidden, width])?;
        let [pair, down] = self.shape.expert_words()?;
        self.first.hold(stream, &expert.gate)?;
        self.second.hold(stream, &expert.up)?;
        let place = experts.gate_up.slice_mut(index * pair..(index + 1) * pair);
        let packed = TensorMut::new(stream, place, [pair])?;
        launch(&self.gate_up, stream, [&self.first, &self.second], [width, hidden], 1, packed)?;
        self.first.hold(stream, &expert.down)?;
        let place = experts.down.slice_mut(index * down..(index + 1) * down);
        let packed = TensorMut::new(stream, place, [down])?;
        launch(&self.down, stream, [&self.first, &self.first], [hidden, width], 0, packed)
    }
}

impl Staged {
    fn hold(&mut self, stream: &Stream, matrix: &Int4Matrix) -> Result<(), GpuError> {
        // Rows of a shard lie apart in the checkpoint.
        let words: Vec<i32> = (0..matrix.rows()).flat_map(|row| matrix.words(row)).copied().collect();
        let scales: Vec<bf16> = (0..matrix.rows()).flat_map(|row| matrix.scales(row)).copied().collect();
        stream.cuda().memcpy_htod(&words, &mut self.words).map_err(driver)?;
        Ok(stream.cuda().memcpy_htod(&scales, &mut self.scales).map_err(driver)?)
    }
}

fn launch(
    kernel: &moe_repack::MoeRepack,
    stream: &Stream,
    [first, second]: [&Staged; 2],
    [rows, k]: [usize; 2],
    paired: i32,
    packed: TensorMut<'_, u32, 1>,
) -> Result<(), GpuError> {
    let args = moe_repack::Args {
        first: TensorRef::new(stream, first.words.as_view(), [rows, k / 8])?,
        first_scales: TensorRef::new(stream, first.scales.as_view(), [rows, k / 32])?,
        second: TensorRef::new(stream, second.words.as_view(), [rows, k / 8])?,
        second_scales: TensorRef::new(stream, second.scales.as_view(), [rows, k / 32])?,
        paired,
        packed,
    };
    kernel.launch(stream, Choice::Auto, args)?;
    Ok(())
}

fn in_range(shape: &Shape, expert: usize) -> Result<(), GpuError> {
    if expert < shape.experts {
        return Ok(());
    }
    Err(GpuError::Limit {
        what: "the number of an expert",
        found: expert,
        limit: shape.experts.saturating_sub(1),
    })
}
