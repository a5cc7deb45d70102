//! Packing of experts on the device.

use half::bf16;
use kd_kernels::families::{moe_exponents, moe_repack};
use kd_kernels::selftest::driver;
use kd_kernels::{
    Choice, CudaSlice, CudaView, CudaViewMut, DeviceRepr, KernelError, Kernels, Stream, TensorMut, TensorRef,
};
use kd_tensor::{Int4Matrix, WeightRows};

use super::exponents::LEAST_BOUND;
use super::weights::in_range;
use super::{DeviceExperts, GpuError, Shape};
use crate::Expert;

/// Packs experts on the device, one at a time: beside the packed layer it needs the memory of a single expert.
#[derive(Debug)]
pub struct Packer {
    shape: Shape,
    gate_up: Kernel,
    down: Kernel,
    first: Staged,
    second: Staged,
}

/// What packs matrices of one number of columns.
#[derive(Debug)]
struct Kernel {
    repack: moe_repack::MoeRepack,
    exponents: moe_exponents::MoeExponents,
}

/// One matrix as the checkpoint has it.
#[derive(Debug)]
struct Staged {
    words: CudaSlice<i32>,
    scales: CudaSlice<bf16>,
}

impl Packer {
    /// Loads the kernels and allocates the memory of one expert.
    ///
    /// # Errors
    /// A bundle without these units, a shape that the layout does not hold, a failed allocation.
    pub fn new(stream: &Stream, kernels: &Kernels, shape: Shape) -> Result<Self, GpuError> {
        shape.weight_bytes()?;
        let kernel = |k: usize| {
            let k = i64::try_from(k).unwrap_or(i64::MAX);
            Ok::<_, KernelError>(Kernel {
                repack: moe_repack::MoeRepack::load(kernels, moe_repack::Dims { k })?,
                exponents: moe_exponents::MoeExponents::load(kernels, moe_exponents::Dims { k })?,
            })
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
            gate_up: kernel(shape.hidden)?,
            down: kernel(shape.width)?,
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
        let bound = &mut experts.bounds.slice_mut(index..index + 1);
        stream.cuda().memcpy_htod(&[LEAST_BOUND], bound).map_err(driver)?;
        self.first.hold(stream, &expert.gate)?;
        self.second.hold(stream, &expert.up)?;
        let place = Place {
            words: experts.gate_up.slice_mut(index * pair..(index + 1) * pair),
            exponents: experts.gate_up_exponents.slice_mut(index * 2 * width..(index + 1) * 2 * width),
            bounds: experts.bounds.as_view_mut(),
            expert: index,
        };
        self.gate_up.launch(stream, [&self.first, &self.second], [width, hidden], true, place)?;
        self.first.hold(stream, &expert.down)?;
        let place = Place {
            words: experts.down.slice_mut(index * down..(index + 1) * down),
            exponents: experts.down_exponents.slice_mut(index * hidden..(index + 1) * hidden),
            bounds: experts.bounds.as_view_mut(),
            expert: index,
        };
        self.down.launch(stream, [&self.first, &self.first], [hidden, width], false, place)
    }
}

/// Where a matrix of one expert goes.
struct Place<'a> {
    words: CudaViewMut<'a, u32>,
    exponents: CudaViewMut<'a, u8>,
    bounds: CudaViewMut<'a, i32>,
    expert: usize,
}

impl Staged {
    fn words(&self) -> CudaView<'_, i32> {
        self.words.as_view()
    }

    fn scales(&self) -> CudaView<'_, bf16> {
        self.scales.as_view()
    }

    fn hold(&mut self, stream: &Stream, matrix: &Int4Matrix) -> Result<(), GpuError> {
        // Rows of a shard lie apart in the checkpoint.
        let words: Vec<i32> = (0..matrix.rows()).flat_map(|row| matrix.words(row)).copied().collect();
        let scales: Vec<bf16> = (0..matrix.rows()).flat_map(|row| matrix.scales(row)).copied().collect();
        stream.cuda().memcpy_htod(&words, &mut self.words).map_err(driver)?;
        Ok(stream.cuda().memcpy_htod(&scales, &mut self.scales).map_err(driver)?)
    }
}

impl Kernel {
    /// Packs one matrix of `rows` rows and `k` columns, or two, row by row in turn.
    fn launch(
        &self,
        stream: &Stream,
        [first, second]: [&Staged; 2],
        [rows, k]: [usize; 2],
        paired: bool,
        place: Place<'_>,
    ) -> Result<(), GpuError> {
        let words = |staged| TensorRef::new(stream, Staged::words(staged), [rows, k / 8]);
        let scales = |staged| TensorRef::new(stream, Staged::scales(staged), [rows, k / 32]);
        let paired = i32::from(paired);
        let args = moe_repack::Args {
            first: words(first)?,
            first_scales: scales(first)?,
            second: words(second)?,
            second_scales: scales(second)?,
            paired,
            packed: tensor(stream, place.words)?,
        };
        self.repack.launch(stream, Choice::Auto, args)?;
        let args = moe_exponents::Args {
            first: words(first)?,
            first_scales: scales(first)?,
            second: words(second)?,
            second_scales: scales(second)?,
            paired,
            exponents: tensor(stream, place.exponents)?,
            bounds: tensor(stream, place.bounds)?,
            expert: i32::try_from(place.expert).unwrap_or(-1),
        };
        self.exponents.launch(stream, Choice::Auto, args)?;
        Ok(())
    }
}

/// All of `view`.
fn tensor<'a, T: DeviceRepr>(
    stream: &Stream,
    view: CudaViewMut<'a, T>,
) -> Result<TensorMut<'a, T, 1>, KernelError> {
    let len = view.len();
    TensorMut::new(stream, view, [len])
}
