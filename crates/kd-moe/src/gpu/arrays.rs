//! Arrays of a scratch that a check can fill with ones, and look behind.

use half::{bf16, f16};
use kd_kernels::selftest::driver;
use kd_kernels::{CudaSlice, DeviceRepr, Stream, ValidAsZeroBits};

use super::GpuError;

/// Elements that are copied at once.
const PIECE: usize = 1 << 20;

/// What [`Scratch::spoil`](super::Scratch) copies from.
#[derive(Debug)]
pub(crate) struct Ones {
    ints: CudaSlice<i32>,
    floats: CudaSlice<f32>,
    brains: CudaSlice<bf16>,
    halves: CudaSlice<f16>,
}

/// An element type whose pattern of all ones is no number, or no index.
pub(super) trait Pattern: DeviceRepr + ValidAsZeroBits + Copy {
    /// All ones.
    const ONES: Self;
    /// Whether it is that pattern.
    fn is_ones(self) -> bool;
    /// Those to copy from.
    fn of(ones: &Ones) -> &CudaSlice<Self>;
}

macro_rules! pattern {
    ($type:ty, $ones:expr, $bits:expr, $field:ident) => {
        impl Pattern for $type {
            const ONES: Self = $ones;

            fn is_ones(self) -> bool {
                $bits(self) == $bits(Self::ONES)
            }

            fn of(ones: &Ones) -> &CudaSlice<Self> {
                &ones.$field
            }
        }
    };
}
pattern!(i32, -1, i32::cast_unsigned, ints);
pattern!(f32, f32::from_bits(u32::MAX), f32::to_bits, floats);
pattern!(bf16, bf16::from_bits(u16::MAX), bf16::to_bits, brains);
pattern!(f16, f16::from_bits(u16::MAX), f16::to_bits, halves);

impl Ones {
    pub(crate) fn new(stream: &Stream) -> Result<Self, GpuError> {
        fn piece<T: Pattern>(stream: &Stream) -> Result<CudaSlice<T>, GpuError> {
            Ok(stream.cuda().clone_htod(&vec![T::ONES; PIECE]).map_err(driver)?)
        }
        Ok(Self {
            ints: piece(stream)?,
            floats: piece(stream)?,
            brains: piece(stream)?,
            halves: piece(stream)?,
        })
    }
}

/// `count` zeros, or with a guard `count + guard` times ones.
pub(super) fn filled<T: Pattern>(
    stream: &Stream,
    count: usize,
    guard: usize,
) -> Result<CudaSlice<T>, GpuError> {
    let mut all = stream.cuda().alloc_zeros(count + guard).map_err(driver)?;
    if guard > 0 {
        let some = stream.cuda().clone_htod(&vec![T::ONES; PIECE.min(count + guard)]).map_err(driver)?;
        repeat(stream, &some, &mut all)?;
    }
    Ok(all)
}

/// Makes all of `array` ones, in stream order.
pub(super) fn spoil<T: Pattern>(
    stream: &Stream,
    ones: &Ones,
    array: &mut CudaSlice<T>,
) -> Result<(), GpuError> {
    repeat(stream, T::of(ones), array)
}

/// Whether the last `guard` elements are ones.
pub(super) fn intact<T: Pattern>(
    stream: &Stream,
    array: &CudaSlice<T>,
    guard: usize,
) -> Result<bool, GpuError> {
    let tail = stream.cuda().clone_dtoh(&array.slice(array.len() - guard..)).map_err(driver)?;
    Ok(tail.into_iter().all(T::is_ones))
}

/// Copies `some` to all of `to`, again and again: on the device, as these arrays are large.
fn repeat<T: DeviceRepr>(
    stream: &Stream,
    some: &CudaSlice<T>,
    to: &mut CudaSlice<T>,
) -> Result<(), GpuError> {
    for start in (0..to.len()).step_by(some.len().max(1)) {
        let end = to.len().min(start + some.len());
        let copied = stream.cuda().memcpy_dtod(&some.slice(..end - start), &mut to.slice_mut(start..end));
        copied.map_err(driver)?;
    }
    Ok(())
}
