//! Grid and attributes of one launch, checked against the device's limits.

use super::{Family, KernelError, LoadedUnit, Stream};

/// CTAs of a launch, as a declaration gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// As many as are resident at once.
    Resident,
    /// x, y and z.
    Exactly([i64; 3]),
}

/// A checked launch geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(super) grid: [u32; 3],
    pub(super) cooperative: bool,
    pub(super) pdl: bool,
}

/// Most CTAs on each axis (CUDA C++ Programming Guide, compute capabilities).
const MOST: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];

impl Geometry {
    /// The geometry of `unit` on the device of `stream`. `blocks` is `None` where the declaration's formula overflowed.
    pub(crate) fn of(
        family: &Family,
        unit: &LoadedUnit,
        stream: &Stream,
        blocks: Option<Blocks>,
    ) -> Result<Self, KernelError> {
        let row = unit.row();
        let grid = grid(&row.unit, blocks, unit.held(stream.sms()), row.cluster)?;
        Ok(Self { grid, cooperative: family.cooperative, pdl: family.pdl })
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

fn grid(unit: &str, blocks: Option<Blocks>, held: u32, cluster: u32) -> Result<[u32; 3], KernelError> {
    let cluster = i64::from(cluster.max(1));
    let axes = match blocks {
        // At least one cluster.
        Some(Blocks::Resident) => [i64::from(held).max(cluster), 1, 1],
        Some(Blocks::Exactly(axes)) => axes,
        None => [i64::MAX, 1, 1],
    };
    let mut grid = [0; 3];
    for (slot, (value, limit)) in grid.iter_mut().zip(axes.into_iter().zip(MOST)) {
        let fits = u32::try_from(value).ok().filter(|_| value <= limit);
        let error = || KernelError::Limit { unit: unit.to_owned(), what: "a grid axis", value, limit };
        *slot = fits.ok_or_else(error)?;
    }
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_checked_against_the_limits_of_each_axis() {
        let exactly = |axes| grid("k", Some(Blocks::Exactly(axes)), 264, 1);
        assert_eq!(exactly([i64::from(i32::MAX), 65_535, 1]), Ok([2_147_483_647, 65_535, 1]));
        let resident = |held, cluster| grid("k", Some(Blocks::Resident), held, cluster);
        assert_eq!(
            [(264, 1), (120, 4), (0, 8)].map(|(held, cluster)| resident(held, cluster)),
            [Ok([264, 1, 1]), Ok([120, 1, 1]), Ok([8, 1, 1])]
        );
        assert_eq!(exactly([0, 1, 1]), Ok([0, 1, 1]));
        for axes in [[1 << 31, 1, 1], [1, 65_536, 1], [1, 1, 65_536], [-1, 1, 1]] {
            assert!(matches!(exactly(axes), Err(KernelError::Limit { .. })), "{axes:?}");
        }
        assert!(grid("k", None, 264, 1).is_err());
    }
}
