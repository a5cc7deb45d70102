//! Memory for what stays as long as a model: in large pages where the system has them.
//!
//! Every round reads all weights once, far more pages of 4 KiB than a processor keeps addresses of.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, Weak};

use memmap2::MmapMut;

use crate::pool::lock;

/// Bytes of a large page.
const LARGE: usize = 2 << 20;
/// Bytes that small requests are cut from.
const SLAB: usize = 4 * LARGE;
/// Every part starts at a cache line.
const LINE: usize = 64;

/// A fixed number of f32, at first zero, that starts at a cache line. It shares large pages with others.
#[derive(Debug)]
pub(crate) struct Lasting {
    slab: Arc<Slab>,
    /// Bytes from the start of the slab.
    start: usize,
    len: usize,
}

/// A mapping that starts at a large page.
#[derive(Debug)]
struct Slab {
    start: *mut u8,
    /// Holds the memory and is not looked at again.
    _map: MmapMut,
}

// SAFETY: the memory belongs to the slab, and parts of it to their one `Lasting` each.
unsafe impl Send for Slab {}
// SAFETY: as above; the slab itself reads and writes nothing.
unsafe impl Sync for Slab {}

impl Slab {
    /// Where the system has no such memory to give, what follows is what does for any other allocation: unwinding would ask for
    /// more.
    fn new(bytes: usize) -> Arc<Self> {
        let mapped = bytes.checked_add(LARGE).map(MmapMut::map_anon);
        let Some(Ok(mut map)) = mapped else { handle_alloc_error(layout(bytes)) };
        // Where there are no large pages, small ones do.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let first = map.as_mut_ptr();
        // The mapping is longer by a large page, so this stays inside.
        let start = first.wrapping_add(first.align_offset(LARGE).min(LARGE));
        Arc::new(Self { start, _map: map })
    }
}

/// Of `bytes`, or as many as an allocation may have.
fn layout(bytes: usize) -> Layout {
    Layout::array::<u8>(bytes.min(isize::MAX as usize)).unwrap_or(Layout::new::<u8>())
}

/// The slab that small requests are cut from, and the bytes that are taken.
static OPEN: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

impl Lasting {
    pub(crate) fn zeros(len: usize) -> Self {
        let Some(bytes) = len.checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(LINE)) else {
            handle_alloc_error(layout(usize::MAX))
        };
        if bytes > SLAB / 2 {
            return Self { slab: Slab::new(bytes), start: 0, len };
        }
        let mut open = lock(&OPEN);
        let slab = match open.0.upgrade() {
            Some(slab) if open.1 + bytes <= SLAB => slab,
            _ => {
                let slab = Slab::new(SLAB);
                *open = (Arc::downgrade(&slab), 0);
                slab
            }
        };
        let start = open.1;
        open.1 += bytes;
        Self { slab, start, len }
    }
}

impl Deref for Lasting {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: `zeros` has cut these bytes, which are mapped, aligned and any f32, for this value alone.
        unsafe { std::slice::from_raw_parts(self.slab.start.add(self.start).cast(), self.len) }
    }
}

impl DerefMut for Lasting {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and whoever calls has the only reference to this value.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start.add(self.start).cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_sizes_are_zero_and_their_own() {
        let lengths = [0, 1, 16, 17, 5000, SLAB / 8, SLAB / 8 + 1, SLAB / 4, 300, SLAB / 8, 7];
        let mut parts: Vec<Lasting> = lengths.map(Lasting::zeros).into();
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.len() == lengths[i] && part.iter().all(|&x| x == 0.0), "{i}");
            assert!(part.as_ptr().addr().is_multiple_of(LINE), "{i}");
            part.fill(i as f32 + 1.0);
        }
        for (i, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|&x| x == i as f32 + 1.0), "{i}");
        }
    }

    #[test]
    fn a_part_outlives_those_beside_it() {
        let (kept, other) = (Lasting::zeros(100), Lasting::zeros(100));
        drop(other);
        let later = Lasting::zeros(SLAB / 8);
        assert!(kept.iter().chain(&*later).all(|&x| x == 0.0));
    }
}
