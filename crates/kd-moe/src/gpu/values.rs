//! What lies between the launches of a layer, in either arithmetic.

use half::{bf16, f16};
use kd_kernels::{CudaSlice, Stream};
use kd_tensor::int4::GROUP;

use super::arrays::{Ones, filled, intact, spoil};
use super::scratch::Sizes;
use super::{Arithmetic, GpuError};

/// Arrays of one arithmetic.
#[derive(Debug)]
pub(super) enum Values {
    Grouped(GroupedValues),
    Folded(FoldedValues),
}

/// Sums by groups.
#[derive(Debug)]
pub(super) struct GroupedValues {
    /// `[rows, hidden]`: rows as the tensor core takes them beside raw codes.
    pub(super) lifted: CudaSlice<bf16>,
    /// Where the sums of the groups of rows of x, and of h, start: what takes the offset off the codes.
    pub(super) starts: CudaSlice<f32>,
    pub(super) hidden_starts: CudaSlice<f32>,
    /// `[choices, width]`
    pub(super) hidden: CudaSlice<bf16>,
    /// `[choices, hidden]`
    pub(super) parts: CudaSlice<f32>,
}

/// Folded scales.
#[derive(Debug)]
pub(super) struct FoldedValues {
    /// `[rows, hidden]`: rows under a power of two of their own, whose exponents are `lifts`.
    pub(super) rows: CudaSlice<f16>,
    pub(super) lifts: CudaSlice<i32>,
    /// `[rows]`: above the logarithm of the square of a row's norm.
    pub(super) norms: CudaSlice<i32>,
    /// `[choices, width]`, and what takes the factor of each place off.
    pub(super) hidden: CudaSlice<f16>,
    pub(super) lowers: CudaSlice<f32>,
    /// `[choices, hidden]`
    pub(super) parts: CudaSlice<bf16>,
}

impl Values {
    /// Zeros, or with a guard ones throughout.
    pub(super) fn new(
        stream: &Stream,
        arithmetic: Arithmetic,
        sizes: &Sizes,
        guard: usize,
    ) -> Result<Self, GpuError> {
        let Sizes { rows, choices, lifted, hidden, parts, .. } = *sizes;
        Ok(match arithmetic {
            Arithmetic::Grouped => Self::Grouped(GroupedValues {
                lifted: filled(stream, lifted, guard)?,
                starts: filled(stream, lifted / GROUP, guard)?,
                hidden_starts: filled(stream, hidden / GROUP, guard)?,
                hidden: filled(stream, hidden, guard)?,
                parts: filled(stream, parts, guard)?,
            }),
            Arithmetic::Folded => Self::Folded(FoldedValues {
                rows: filled(stream, lifted, guard)?,
                lifts: filled(stream, rows, guard)?,
                norms: filled(stream, rows, guard)?,
                hidden: filled(stream, hidden, guard)?,
                lowers: filled(stream, choices, guard)?,
                parts: filled(stream, parts, guard)?,
            }),
        })
    }

    /// Bytes of [`Values::new`].
    pub(super) fn bytes(arithmetic: Arithmetic, sizes: &Sizes) -> usize {
        let Sizes { rows, choices, lifted, hidden, parts, .. } = *sizes;
        match arithmetic {
            Arithmetic::Grouped => 2 * (lifted + hidden) + 4 * ((lifted + hidden) / GROUP + parts),
            Arithmetic::Folded => 2 * (lifted + hidden + parts) + 4 * (2 * rows + choices),
        }
    }

    /// Makes all of them ones.
    pub(super) fn spoil(&mut self, stream: &Stream, ones: &Ones) -> Result<(), GpuError> {
        match self {
            Self::Grouped(own) => {
                spoil(stream, ones, &mut own.lifted)?;
                spoil(stream, ones, &mut own.starts)?;
                spoil(stream, ones, &mut own.hidden_starts)?;
                spoil(stream, ones, &mut own.hidden)?;
                spoil(stream, ones, &mut own.parts)
            }
            Self::Folded(own) => {
                spoil(stream, ones, &mut own.rows)?;
                spoil(stream, ones, &mut own.lifts)?;
                spoil(stream, ones, &mut own.norms)?;
                spoil(stream, ones, &mut own.hidden)?;
                spoil(stream, ones, &mut own.lowers)?;
                spoil(stream, ones, &mut own.parts)
            }
        }
    }

    /// Whether the last `guard` elements of each are ones.
    pub(super) fn intact(&self, stream: &Stream, guard: usize) -> Result<bool, GpuError> {
        Ok(match self {
            Self::Grouped(own) => {
                intact(stream, &own.lifted, guard)?
                    & intact(stream, &own.starts, guard)?
                    & intact(stream, &own.hidden_starts, guard)?
                    & intact(stream, &own.hidden, guard)?
                    & intact(stream, &own.parts, guard)?
            }
            Self::Folded(own) => {
                intact(stream, &own.rows, guard)?
                    & intact(stream, &own.lifts, guard)?
                    & intact(stream, &own.norms, guard)?
                    & intact(stream, &own.hidden, guard)?
                    & intact(stream, &own.lowers, guard)?
                    & intact(stream, &own.parts, guard)?
            }
        })
    }

    /// Those of sums by groups.
    pub(super) fn grouped(&mut self) -> Result<&mut GroupedValues, GpuError> {
        match self {
            Self::Grouped(own) => Ok(own),
            Self::Folded(_) => Err(GpuError::Arithmetic { planned: Arithmetic::Folded.name() }),
        }
    }

    /// Those of folded scales.
    pub(super) fn folded(&mut self) -> Result<&mut FoldedValues, GpuError> {
        match self {
            Self::Folded(own) => Ok(own),
            Self::Grouped(_) => Err(GpuError::Arithmetic { planned: Arithmetic::Grouped.name() }),
        }
    }
}
