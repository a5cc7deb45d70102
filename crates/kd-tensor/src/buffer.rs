//! f32 memory that starts at a cache line.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line. A vector load that crosses lines costs two loads.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A fixed number of f32, the first at the start of a cache line.
///
/// A pass makes hundreds of them and drops them again. What a thread drops it keeps for its next ones, a few of every size:
/// to ask the allocator for aligned and often large memory each time would cost as much as the work on it.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// At least as many as hold `len`.
    lines: Vec<Line>,
    len: usize,
}

/// Memory of a thread by the power of two that it has room for.
type Kept = [Vec<Vec<Line>>; CLASSES];

/// Sizes that are kept: up to 2^14 lines, 1 MiB.
const CLASSES: usize = 15;
/// Most that are kept of a size.
const EACH: usize = 8;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

impl Buffer {
    /// Zeros that will stay: memory for them and no more.
    pub(crate) fn lasting(len: usize) -> Self {
        Self { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }

    pub(crate) fn zeros(len: usize) -> Self {
        let mut buffer = Self::unwritten(len);
        buffer.fill(0.0);
        buffer
    }

    /// Numbers of no meaning, to be written before they are read; NaN where debug assertions are on.
    pub(crate) fn unwritten(len: usize) -> Self {
        let count = len.div_ceil(16);
        let class = count.next_power_of_two().trailing_zeros() as usize;
        if count == 0 || class >= CLASSES {
            return Self::lasting(len);
        }
        // A thread that ends may drop buffers after its kept ones.
        let kept = KEPT.try_with(|kept| kept.borrow_mut()[class].pop()).ok().flatten();
        let mut buffer = Self { lines: kept.unwrap_or_else(|| vec![Line([0.0; 16]); 1 << class]), len };
        if cfg!(debug_assertions) {
            buffer.fill(f32::NAN);
        }
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let class = lines.len().trailing_zeros() as usize;
        if !lines.len().is_power_of_two() || class >= CLASSES {
            return;
        }
        // Nothing is lost but the memory's second use.
        let _ = KEPT.try_with(|kept| {
            let kept = &mut kept.borrow_mut()[class];
            if kept.len() < EACH {
                kept.push(lines);
            }
        });
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl From<&[f32]> for Buffer {
    fn from(values: &[f32]) -> Self {
        let mut buffer = Self::unwritten(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_used_before_is_zero_again() {
        for len in [1, 16, 17, 1000, 1 << 16] {
            for _ in 0..3 {
                let mut buffer = Buffer::zeros(len);
                assert!(buffer.len() == len && buffer.iter().all(|&x| x == 0.0), "{len}");
                assert!(buffer.as_ptr().cast::<Line>().is_aligned());
                buffer.fill(f32::NAN);
            }
        }
        assert!(Buffer::zeros(0).is_empty());
    }
}
