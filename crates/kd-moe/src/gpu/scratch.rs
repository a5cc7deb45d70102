//! What a run needs besides weights and operands, sized once for the most rows.

use half::bf16;
use kd_kernels::selftest::driver;
use kd_kernels::{CudaSlice, DeviceRepr, Stream, ValidAsZeroBits};
use kd_tensor::int4::GROUP;

use super::layout::UNIT_ROWS;
use super::{GpuError, MOST_ROWS, Shape};

/// Rows of a slab in the forms for many rows.
pub(super) const MANY_SLAB: usize = 48;
pub(super) const MIDDLE_SLAB: usize = 32;

/// Experts with rows, their cost, and what has been drawn of each product.
const TOTALS: usize = 4;

/// The scratch of runs of up to `rows` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The layer.
    pub shape: Shape,
    /// Most rows of a run.
    pub rows: usize,
}

/// Device memory of a [`Plan`]. Runs on one stream share it; its contents mean nothing between runs, but a run
/// must have ended before the next begins.
#[derive(Debug)]
pub struct Scratch {
    pub(super) plan: Plan,
    pub(super) totals: CudaSlice<i32>,
    pub(super) entries: CudaSlice<i32>,
    pub(super) rows: CudaSlice<i32>,
    pub(super) places: CudaSlice<i32>,
    pub(super) lifted: CudaSlice<bf16>,
    /// Where the sums of the groups of rows of x, and of h, start: what takes the offset off the codes.
    pub(super) starts: CudaSlice<f32>,
    pub(super) hidden_starts: CudaSlice<f32>,
    pub(super) hidden: CudaSlice<bf16>,
    pub(super) parts: CudaSlice<f32>,
    /// Counts of arrivals, 0 between runs.
    pub(super) arrived: CudaSlice<i32>,
}

/// Elements that are copied at once.
const PIECE: usize = 1 << 20;

/// What [`Scratch::spoil`] copies from.
#[derive(Debug)]
pub(crate) struct Ones {
    ints: CudaSlice<i32>,
    halves: CudaSlice<bf16>,
    floats: CudaSlice<f32>,
}

impl Ones {
    pub(crate) fn new(stream: &Stream) -> Result<Self, GpuError> {
        let cuda = stream.cuda();
        Ok(Self {
            ints: cuda.clone_htod(&vec![-1; PIECE]).map_err(driver)?,
            halves: cuda.clone_htod(&vec![bf16::from_bits(u16::MAX); PIECE]).map_err(driver)?,
            floats: cuda.clone_htod(&vec![f32::from_bits(u32::MAX); PIECE]).map_err(driver)?,
        })
    }
}

/// Elements of each array of a scratch.
struct Sizes {
    entries: usize,
    choices: usize,
    lifted: usize,
    hidden: usize,
    parts: usize,
}

impl Plan {
    /// A plan for runs of up to `rows` rows.
    ///
    /// # Errors
    /// More than [`MOST_ROWS`] rows, or sizes beyond the address space.
    pub fn new(shape: Shape, rows: usize) -> Result<Self, GpuError> {
        if rows > MOST_ROWS {
            return Err(GpuError::Limit {
                what: "the number of rows of a run",
                found: rows,
                limit: MOST_ROWS,
            });
        }
        let plan = Self { shape, rows };
        plan.sizes().map(|_| plan)
    }

    /// Bytes of the scratch.
    ///
    /// # Errors
    /// Sizes beyond the address space.
    pub fn bytes(&self) -> Result<usize, GpuError> {
        let Sizes { entries, choices, lifted, hidden, parts } = self.sizes()?;
        let starts = (lifted + hidden) / GROUP;
        Ok(4 * (TOTALS + entries + 2 * choices + self.counts())
            + 2 * (lifted + hidden)
            + 4 * (starts + parts))
    }

    /// Counts of arrivals: one for each unit of down, and two of CTAs.
    pub(super) fn counts(&self) -> usize {
        self.shape.hidden / UNIT_ROWS + 2
    }

    /// Entries of the list of experts, or of slabs in the forms for many rows: each expert may have one that is not full.
    pub(super) fn lists(&self) -> usize {
        self.shape.experts + self.rows * self.shape.top_k / MIDDLE_SLAB
    }

    fn sizes(&self) -> Result<Sizes, GpuError> {
        let Shape { hidden, width, experts, top_k } = self.shape;
        // Small enough that the sum of all, in bytes, is a size as well.
        let limit = usize::MAX / 64;
        let product = |a: usize, b: usize| {
            let error = GpuError::Limit { what: "the size of the scratch", found: usize::MAX, limit };
            a.checked_mul(b).filter(|size| *size <= limit).ok_or(error)
        };
        let choices = product(self.rows, top_k)?;
        Ok(Sizes {
            entries: product(product(experts, 1)?.saturating_add(choices / MIDDLE_SLAB), 4)?,
            choices,
            lifted: product(self.rows, hidden)?,
            hidden: product(choices, width)?,
            parts: product(choices, hidden)?,
        })
    }
}

impl Scratch {
    /// Allocates the scratch of `plan`.
    ///
    /// # Errors
    /// A failed allocation.
    pub fn new(stream: &Stream, plan: Plan) -> Result<Self, GpuError> {
        Self::with_guard(stream, plan, 0)
    }

    /// What the last run wrote of its grouping: the totals, and the experts with rows.
    pub(crate) fn grouping(&self) -> [&CudaSlice<i32>; 2] {
        [&self.totals, &self.entries]
    }

    /// As [`Scratch::new`] with `guard` more elements in each array, all ones throughout: an element that a kernel reads
    /// before it is written is a NaN or no index, and one written where it must not be shows.
    pub(crate) fn with_guard(stream: &Stream, plan: Plan, guard: usize) -> Result<Self, GpuError> {
        let sizes = plan.sizes()?;
        let ints = |count: usize| filled(stream, count, guard, -1i32);
        let halves = |count: usize| filled(stream, count, guard, bf16::from_bits(u16::MAX));
        let floats = |count: usize| filled(stream, count, guard, f32::from_bits(u32::MAX));
        Ok(Self {
            plan,
            totals: ints(TOTALS)?,
            entries: ints(sizes.entries)?,
            rows: ints(sizes.choices)?,
            places: ints(sizes.choices)?,
            lifted: halves(sizes.lifted)?,
            starts: floats(sizes.lifted / GROUP)?,
            hidden_starts: floats(sizes.hidden / GROUP)?,
            hidden: halves(sizes.hidden)?,
            parts: floats(sizes.parts)?,
            arrived: stream
                .cuda()
                .clone_htod(&[vec![0; plan.counts()], vec![-1; guard]].concat())
                .map_err(driver)?,
        })
    }

    /// Makes everything but counts as [`Scratch::with_guard`] left it, in stream order: a run that finds what it should have written
    /// itself, from a run before it, shows. Safe to capture.
    pub(crate) fn spoil(&mut self, stream: &Stream, ones: &Ones) -> Result<(), GpuError> {
        for ints in [&mut self.entries, &mut self.rows, &mut self.places] {
            repeat(stream, &ones.ints, ints)?;
        }
        for halves in [&mut self.lifted, &mut self.hidden] {
            repeat(stream, &ones.halves, halves)?;
        }
        for floats in [&mut self.starts, &mut self.hidden_starts, &mut self.parts] {
            repeat(stream, &ones.floats, floats)?;
        }
        Ok(())
    }

    /// Whether no count of arrivals is left over from a run.
    pub(crate) fn at_rest(&self, stream: &Stream) -> Result<bool, GpuError> {
        let counts = stream.cuda().clone_dtoh(&self.arrived.slice(..self.plan.counts())).map_err(driver)?;
        stream.synchronize()?;
        Ok(counts.iter().all(|count| *count == 0))
    }

    /// Whether the last `guard` elements of every array are as [`Scratch::with_guard`] left them.
    pub(crate) fn guards_intact(&self, stream: &Stream, guard: usize) -> Result<bool, GpuError> {
        let ints = |slice: &CudaSlice<i32>| {
            let tail = stream.cuda().clone_dtoh(&slice.slice(slice.len() - guard..)).map_err(driver)?;
            Ok::<_, GpuError>(tail.iter().all(|value| *value == -1))
        };
        let halves = |slice: &CudaSlice<bf16>| {
            let tail = stream.cuda().clone_dtoh(&slice.slice(slice.len() - guard..)).map_err(driver)?;
            Ok::<_, GpuError>(tail.iter().all(|value| value.to_bits() == u16::MAX))
        };
        let floats = |slice: &CudaSlice<f32>| {
            let tail = stream.cuda().clone_dtoh(&slice.slice(slice.len() - guard..)).map_err(driver)?;
            Ok::<_, GpuError>(tail.iter().all(|value| value.to_bits() == u32::MAX))
        };
        let lists = ints(&self.totals)?
            & ints(&self.entries)?
            & ints(&self.rows)?
            & ints(&self.places)?
            & ints(&self.arrived)?;
        let floats = floats(&self.starts)? & floats(&self.hidden_starts)? & floats(&self.parts)?;
        Ok(lists & halves(&self.lifted)? & halves(&self.hidden)? & floats)
    }
}

/// `count` zeros, or with a guard `count + guard` times `value`.
fn filled<T: DeviceRepr + ValidAsZeroBits + Copy>(
    stream: &Stream,
    count: usize,
    guard: usize,
    value: T,
) -> Result<CudaSlice<T>, GpuError> {
    let mut all = stream.cuda().alloc_zeros(count + guard).map_err(driver)?;
    if guard > 0 {
        let some = stream.cuda().clone_htod(&vec![value; PIECE.min(count + guard)]).map_err(driver)?;
        repeat(stream, &some, &mut all)?;
    }
    Ok(all)
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

#[cfg(test)]
mod tests {
    use super::*;

    const TP8: Shape = Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 };

    #[test]
    fn the_scratch_follows_from_the_rows() {
        let bytes = |rows| Plan::new(TP8, rows).and_then(|plan| plan.bytes()).expect("a size");
        let per_row = 8 * 4 * 2 + 7168 * 2 + 224 * 4 + 8 * (256 * 2 + 8 * 4 + 7168 * 4);
        assert_eq!(bytes(1), 16 + 384 * 16 + 226 * 4 + per_row);
        // And a list of the slabs that are full.
        assert_eq!(bytes(4096), 16 + (384 + 4096 * 8 / 32) * 16 + 226 * 4 + 4096 * per_row);
    }

    /// Fault marlin.md §9 row 3: a size that cannot be is refused, not cut.
    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let error = Plan::new(TP8, 4097).expect_err("too many").to_string();
        assert!(error.contains("4097") && error.contains("4096"), "{error}");
        let vast = Shape { hidden: usize::MAX / 2, ..TP8 };
        assert!(Plan::new(vast, 64).is_err());
    }
}
