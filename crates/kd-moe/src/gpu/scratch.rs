//! What a run needs besides weights and operands, sized once for the most rows.

use kd_kernels::selftest::driver;
use kd_kernels::{CudaSlice, Stream};

use super::arrays::{Ones, filled, intact, spoil};
use super::layout::UNIT_ROWS;
use super::values::Values;
use super::{Arithmetic, GpuError, MOST_ROWS, Shape};

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
    /// That of all runs.
    pub arithmetic: Arithmetic,
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
    pub(super) values: Values,
    /// Counts of arrivals, 0 between runs.
    pub(super) arrived: CudaSlice<i32>,
    /// What CTAs tell each other in a launch of one row, its number among these launches, and a count that is 0 between them.
    pub(super) told: CudaSlice<i32>,
}

/// Elements of each array of a scratch.
pub(super) struct Sizes {
    entries: usize,
    pub(super) rows: usize,
    pub(super) choices: usize,
    pub(super) lifted: usize,
    pub(super) hidden: usize,
    pub(super) parts: usize,
}

impl Plan {
    /// A plan for runs of up to `rows` rows.
    ///
    /// # Errors
    /// More than [`MOST_ROWS`] rows, or sizes beyond the address space.
    pub fn new(shape: Shape, rows: usize, arithmetic: Arithmetic) -> Result<Self, GpuError> {
        if rows > MOST_ROWS {
            return Err(GpuError::Limit {
                what: "the number of rows of a run",
                found: rows,
                limit: MOST_ROWS,
            });
        }
        let plan = Self { shape, rows, arithmetic };
        plan.sizes().map(|_| plan)
    }

    /// Bytes of the scratch.
    ///
    /// # Errors
    /// Sizes beyond the address space.
    pub fn bytes(&self) -> Result<usize, GpuError> {
        let sizes = self.sizes()?;
        let lists = TOTALS + sizes.entries + 2 * sizes.choices + self.counts() + self.told();
        Ok(4 * lists + Values::bytes(self.arithmetic, &sizes))
    }

    /// Counts of arrivals: one for each unit of down, and two of CTAs.
    pub(super) fn counts(&self) -> usize {
        self.shape.hidden / UNIT_ROWS + 2
    }

    /// Words of a launch of one row: two for each pair of activated values, and two.
    pub(super) fn told(&self) -> usize {
        self.shape.top_k * self.shape.width + 2
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
            rows: self.rows,
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
        Ok(Self {
            plan,
            totals: filled(stream, TOTALS, guard)?,
            entries: filled(stream, sizes.entries, guard)?,
            rows: filled(stream, sizes.choices, guard)?,
            places: filled(stream, sizes.choices, guard)?,
            values: Values::new(stream, plan.arithmetic, &sizes, guard)?,
            arrived: zeroed(stream, plan.counts(), guard)?,
            told: zeroed(stream, plan.told(), guard)?,
        })
    }

    /// What it was planned for.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Makes everything but counts as [`Scratch::with_guard`] left it, in stream order: a run that finds what it should have written
    /// itself, from a run before it, shows. Safe to capture.
    pub(crate) fn spoil(&mut self, stream: &Stream, ones: &Ones) -> Result<(), GpuError> {
        for ints in [&mut self.entries, &mut self.rows, &mut self.places] {
            spoil(stream, ones, ints)?;
        }
        self.values.spoil(stream, ones)
    }

    /// Whether no count of arrivals is left over from a run.
    pub(crate) fn at_rest(&self, stream: &Stream) -> Result<bool, GpuError> {
        let read = |array: &CudaSlice<i32>| stream.cuda().clone_dtoh(array).map_err(driver);
        let (counts, told) = (read(&self.arrived)?, read(&self.told)?);
        stream.synchronize()?;
        Ok(counts[..self.plan.counts()]
            .iter()
            .chain(&told[self.plan.told() - 1..self.plan.told()])
            .all(|count| *count == 0))
    }

    /// Whether the last `guard` elements of every array are as [`Scratch::with_guard`] left them.
    pub(crate) fn guards_intact(&self, stream: &Stream, guard: usize) -> Result<bool, GpuError> {
        let mut all = self.values.intact(stream, guard)?;
        for ints in [&self.totals, &self.entries, &self.rows, &self.places, &self.arrived, &self.told] {
            all &= intact(stream, ints, guard)?;
        }
        Ok(all)
    }
}

/// `len` zeros, and `guard` elements that [`Scratch::with_guard`] describes.
fn zeroed(stream: &Stream, len: usize, guard: usize) -> Result<CudaSlice<i32>, GpuError> {
    Ok(stream.cuda().clone_htod(&[vec![0; len], vec![-1; guard]].concat()).map_err(driver)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TP8: Shape = Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 };

    #[test]
    fn the_scratch_follows_from_the_rows() {
        let bytes = |rows, arithmetic| {
            Plan::new(TP8, rows, arithmetic).and_then(|plan| plan.bytes()).expect("a size")
        };
        let per_row = 8 * 4 * 2 + 7168 * 2 + 224 * 4 + 8 * (256 * 2 + 8 * 4 + 7168 * 4);
        assert_eq!(bytes(1, Arithmetic::Grouped), 16 + 384 * 16 + (226 + 2050) * 4 + per_row);
        // And a list of the slabs that are full.
        let lists = 16 + (384 + 4096 * 8 / 32) * 16 + (226 + 2050) * 4;
        assert_eq!(bytes(4096, Arithmetic::Grouped), lists + 4096 * per_row);
        // No starts, factors instead, parts of half the size.
        let per_row = 8 * 4 * 2 + 7168 * 2 + 2 * 4 + 8 * (256 * 2 + 4 + 7168 * 2);
        assert_eq!(bytes(4096, Arithmetic::Folded), lists + 4096 * per_row);
    }

    /// Fault marlin.md §9 row 3: a size that cannot be is refused, not cut.
    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let error = Plan::new(TP8, 4097, Arithmetic::Grouped).expect_err("too many").to_string();
        assert!(error.contains("4097") && error.contains("4096"), "{error}");
        let vast = Shape { hidden: usize::MAX / 2, ..TP8 };
        assert!(Plan::new(vast, 64, Arithmetic::Folded).is_err());
    }
}
