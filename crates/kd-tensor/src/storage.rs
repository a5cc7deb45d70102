//! Flat typed memory: owned, or a window of a memory-mapped file.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::Mmap;

use crate::dtype::Element;

// Files hold little-endian elements and are read in place.
#[cfg(target_endian = "big")]
compile_error!("kd-tensor reads little-endian checkpoints in place and supports little-endian targets only");

/// A read-only memory map of a whole file, shared by every [`Storage`] that looks into it.
#[derive(Clone)]
pub(crate) struct FileMap(Arc<Watched>);

/// A map, and its file's name for [`crate::guard`].
struct Watched {
    map: Mmap,
    #[cfg(unix)]
    _watch: crate::guard::Watch,
}

impl FileMap {
    pub(crate) fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process, so no Rust code writes through it. Another
        // process that changes the file under a running engine changes values (every bit pattern is a valid `Element`)
        // or, by truncating it, raises SIGBUS, which ends this process (`guard`: with an error line that names the
        // file); checkpoints are immutable while they are in use, and this crate itself replaces files only by renaming
        // a new one over them.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(Arc::new(Watched {
            #[cfg(unix)]
            _watch: crate::guard::Watch::new(&map, path),
            map,
        })))
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.map
    }
}

/// A flat run of `T` that is either owned or a window of a memory-mapped file.
///
/// Cloning and slicing share the memory. A window keeps its file mapped.
pub struct Storage<T> {
    /// `len` elements, which `owner` keeps where they are and as they are. Kept beside it because kernels ask row by row.
    start: NonNull<T>,
    len: usize,
    owner: Owner<T>,
}

enum Owner<T> {
    Values(Arc<Vec<T>>),
    Map(FileMap),
}

// SAFETY: `start` is a shared reference to elements of `owner`, and both kinds of owner may be sent and shared if `T` may.
unsafe impl<T: Send + Sync> Send for Storage<T> {}
// SAFETY: as above; nothing is ever written through `start`.
unsafe impl<T: Send + Sync> Sync for Storage<T> {}

impl<T> Storage<T> {
    /// `elements` must lie in memory that `owner` keeps.
    fn new(elements: &[T], owner: Owner<T>) -> Self {
        Self { start: NonNull::from(elements).cast(), len: elements.len(), owner }
    }

    /// The elements.
    #[inline(always)]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `new` was given these elements as a slice of what `owner` holds. A map is never written or moved, nor is
        // a vector behind an `Arc` that is lent to nobody; and `owner` lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Some of the elements, without copying them: the memory is shared.
    ///
    /// # Panics
    /// If the range reaches beyond the elements.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a slice outside the storage");
        Self::new(&self.as_slice()[range], self.owner.clone())
    }

    /// Whether the elements are read from the file in place, so that they cost page cache and no memory of their own.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }
}

impl<T: Element> Storage<T> {
    /// The elements at `bytes` of a mapped file: in place when they are aligned for `T`, else copied.
    ///
    /// `None` when the range lies outside the file or is no whole number of elements.
    pub(crate) fn from_map(map: &FileMap, bytes: Range<usize>) -> Option<Self> {
        let window = map.bytes().get(bytes)?;
        if !window.len().is_multiple_of(size_of::<T>()) {
            return None;
        }
        if let Ok(elements) = bytemuck::try_cast_slice(window) {
            return Some(Self::new(elements, Owner::Map(map.clone())));
        }
        let mut values = vec![T::zeroed(); window.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(window);
        Some(values.into())
    }
}

impl<T> From<Vec<T>> for Storage<T> {
    fn from(values: Vec<T>) -> Self {
        let values = Arc::new(values);
        Self::new(&values, Owner::Values(Arc::clone(&values)))
    }
}

impl<T> Clone for Owner<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Values(values) => Self::Values(Arc::clone(values)),
            Self::Map(map) => Self::Map(map.clone()),
        }
    }
}

impl<T> Clone for Storage<T> {
    fn clone(&self) -> Self {
        Self { start: self.start, len: self.len, owner: self.owner.clone() }
    }
}

impl<T: Element> Deref for Storage<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Element> fmt::Debug for Storage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "Storage<{}>({kind}, {} elements)", T::DTYPE, self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn map_of(bytes: &[u8]) -> FileMap {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("written");
        FileMap::new(&file, Path::new("test")).expect("mapped")
    }

    #[test]
    fn aligned_windows_are_read_in_place_and_misaligned_ones_copied() {
        let mut bytes = vec![0u8; 3];
        bytes.extend((0..8u32).flat_map(u32::to_le_bytes));
        bytes.insert(0, 9);
        // Offset 4 is aligned; offset 5 is not, and holds the same numbers shifted by a byte.
        let map = map_of(&bytes);
        let aligned = Storage::<u32>::from_map(&map, 4..36).expect("in range");
        assert!(aligned.is_mapped());
        assert_eq!(aligned.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let shifted = Storage::<u32>::from_map(&map, 5..33).expect("in range");
        assert!(!shifted.is_mapped());
        assert_eq!(shifted[0], u32::from_le_bytes([0, 0, 0, 1]));
    }

    #[test]
    fn windows_outside_the_file_or_of_broken_length_are_none() {
        let map = map_of(&[0; 16]);
        assert!(Storage::<u32>::from_map(&map, 8..20).is_none());
        assert!(Storage::<u32>::from_map(&map, 0..6).is_none());
        assert_eq!(Storage::<u32>::from_map(&map, 16..16).expect("empty window").len(), 0);
    }

    #[test]
    fn a_slice_shares_the_memory_of_its_storage() {
        let map = map_of(&(0..8u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
        let mapped = Storage::<u32>::from_map(&map, 4..32).expect("in range");
        for storage in [mapped, Storage::from((1..8u32).collect::<Vec<_>>())] {
            let slice = storage.slice(1..6).slice(1..4);
            assert_eq!(slice.as_slice(), [3, 4, 5]);
            assert_eq!(slice.as_ptr(), storage[2..].as_ptr());
            assert_eq!(slice.is_mapped(), storage.is_mapped());
            assert!(slice.slice(3..3).is_empty());
        }
    }

    #[test]
    #[should_panic(expected = "outside the storage")]
    fn a_slice_does_not_reach_into_its_neighbours() {
        Storage::from(vec![1u32, 2, 3]).slice(0..2).slice(1..3);
    }

    #[test]
    fn a_window_outlives_the_map_handle_and_crosses_threads() {
        let map = map_of(&7i64.to_le_bytes());
        let storage = Storage::<i64>::from_map(&map, 0..8).expect("in range");
        drop(map);
        let clone = storage.clone();
        assert_eq!(clone.as_ptr(), storage.as_ptr(), "a clone shares the memory");
        drop(storage);
        let seen = std::thread::spawn(move || clone[0]).join().expect("no panic");
        assert_eq!(seen, 7);
    }
}
