//! Packed experts in device memory.

use kd_kernels::selftest::driver;
use kd_kernels::{CudaSlice, DeviceRepr, Stream};

use super::exponents::{LEAST_BOUND, down_exponents, gate_up_exponents, hidden_bound};
use super::layout::{LayoutError, pack_down, pack_gate_up};
use super::{GpuError, Shape};
use crate::Expert;

/// The packed experts of one layer.
#[derive(Debug)]
pub struct DeviceExperts {
    shape: Shape,
    pub(super) gate_up: CudaSlice<u32>,
    pub(super) down: CudaSlice<u32>,
    /// `[experts, 2 · width]` and `[experts, hidden]`: what [`exponents`](super::exponents) says of packed rows.
    pub(super) gate_up_exponents: CudaSlice<u8>,
    pub(super) down_exponents: CudaSlice<u8>,
    /// `[experts]`: [`hidden_bound`].
    pub(super) bounds: CudaSlice<i32>,
}

/// One expert as it lies on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Packed words of gate and up.
    pub gate_up: Vec<u32>,
    /// Packed words of down.
    pub down: Vec<u32>,
    /// Exponents of the rows of gate and up, in packed order.
    pub gate_up_exponents: Vec<u8>,
    /// Exponents of the rows of down.
    pub down_exponents: Vec<u8>,
    /// The bound of what lies between the products.
    pub bound: i32,
}

impl Packed {
    /// What the device must have of `expert`.
    ///
    /// # Errors
    /// Matrices that the layout does not hold.
    pub fn of(expert: &Expert) -> Result<Self, LayoutError> {
        Ok(Self {
            gate_up: pack_gate_up(&expert.gate, &expert.up)?,
            down: pack_down(&expert.down)?,
            gate_up_exponents: gate_up_exponents(&expert.gate, &expert.up)?,
            down_exponents: down_exponents(&expert.down),
            bound: hidden_bound(&expert.gate, &expert.up)?,
        })
    }
}

impl DeviceExperts {
    /// Room for the experts of `shape`.
    ///
    /// # Errors
    /// A shape that the layout does not hold, a failed allocation.
    pub fn new(stream: &Stream, shape: Shape) -> Result<Self, GpuError> {
        shape.device_bytes()?;
        let [gate_up, down] = shape.expert_words()?;
        let cuda = stream.cuda();
        Ok(Self {
            shape,
            gate_up: cuda.alloc_zeros(gate_up * shape.experts).map_err(driver)?,
            down: cuda.alloc_zeros(down * shape.experts).map_err(driver)?,
            gate_up_exponents: cuda.alloc_zeros(2 * shape.width * shape.experts).map_err(driver)?,
            down_exponents: cuda.alloc_zeros(shape.hidden * shape.experts).map_err(driver)?,
            bounds: cuda.clone_htod(&vec![LEAST_BOUND; shape.experts]).map_err(driver)?,
        })
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
        let experts = self.shape.experts;
        for words in [&mut self.gate_up, &mut self.down] {
            copy_within(stream, words, experts, [from, to])?;
        }
        for bytes in [&mut self.gate_up_exponents, &mut self.down_exponents] {
            copy_within(stream, bytes, experts, [from, to])?;
        }
        copy_within(stream, &mut self.bounds, experts, [from, to])
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
        let sizes = |shape: Shape| [shape.hidden, shape.width];
        for (found, limit) in sizes(other.shape).into_iter().zip(sizes(self.shape)) {
            if found != limit {
                return Err(GpuError::Limit { what: "a size of an expert that is copied", found, limit });
            }
        }
        let counts = [other.shape.experts, self.shape.experts];
        let places = [from, to];
        copy_between(stream, &other.gate_up, &mut self.gate_up, counts, places)?;
        copy_between(stream, &other.down, &mut self.down, counts, places)?;
        copy_between(stream, &other.gate_up_exponents, &mut self.gate_up_exponents, counts, places)?;
        copy_between(stream, &other.down_exponents, &mut self.down_exponents, counts, places)?;
        copy_between(stream, &other.bounds, &mut self.bounds, counts, places)
    }

    /// Both arrays: gate and up, and down.
    pub(crate) fn arrays(&self) -> [&CudaSlice<u32>; 2] {
        [&self.gate_up, &self.down]
    }

    /// One expert.
    ///
    /// # Errors
    /// A number that is none of this layer's, a failed copy.
    pub fn read(&self, stream: &Stream, expert: usize) -> Result<Packed, GpuError> {
        in_range(&self.shape, expert)?;
        let count = self.shape.experts;
        let packed = Packed {
            gate_up: one(stream, &self.gate_up, count, expert)?,
            down: one(stream, &self.down, count, expert)?,
            gate_up_exponents: one(stream, &self.gate_up_exponents, count, expert)?,
            down_exponents: one(stream, &self.down_exponents, count, expert)?,
            bound: one(stream, &self.bounds, count, expert)?.into_iter().sum(),
        };
        stream.synchronize()?;
        Ok(packed)
    }
}

/// The part of expert `at` of `count` in `all`.
fn one<T: DeviceRepr + Default + Clone>(
    stream: &Stream,
    all: &CudaSlice<T>,
    count: usize,
    at: usize,
) -> Result<Vec<T>, GpuError> {
    let each = all.len() / count;
    Ok(stream.cuda().clone_dtoh(&all.slice(at * each..(at + 1) * each)).map_err(driver)?)
}

fn copy_within<T: DeviceRepr>(
    stream: &Stream,
    all: &mut CudaSlice<T>,
    count: usize,
    [from, to]: [usize; 2],
) -> Result<(), GpuError> {
    let each = all.len() / count;
    // The driver copies between two arrays.
    let source = stream.cuda().clone_dtod(&all.slice(from * each..(from + 1) * each)).map_err(driver)?;
    let mut place = all.slice_mut(to * each..(to + 1) * each);
    Ok(stream.cuda().memcpy_dtod(&source, &mut place).map_err(driver)?)
}

fn copy_between<T: DeviceRepr>(
    stream: &Stream,
    source: &CudaSlice<T>,
    place: &mut CudaSlice<T>,
    [of, to_of]: [usize; 2],
    [from, to]: [usize; 2],
) -> Result<(), GpuError> {
    let (each, own) = (source.len() / of, place.len() / to_of);
    let source = source.slice(from * each..(from + 1) * each);
    let mut place = place.slice_mut(to * own..(to + 1) * own);
    Ok(stream.cuda().memcpy_dtod(&source, &mut place).map_err(driver)?)
}

pub(super) fn in_range(shape: &Shape, expert: usize) -> Result<(), GpuError> {
    if expert < shape.experts {
        return Ok(());
    }
    Err(GpuError::Limit {
        what: "the number of an expert",
        found: expert,
        limit: shape.experts.saturating_sub(1),
    })
}
