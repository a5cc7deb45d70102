//! How results come back: into page-locked memory, any number of copies behind a launch and one wait for all of them.

use std::marker::PhantomData;

use cudarc::driver::{CudaView, DevicePtr, PinnedHostSlice, result};

use crate::graph::Element;
use crate::{KernelError, Stream};

/// Copies begin at multiples of so many bytes, which is enough for every element.
const ALIGN: usize = 16;

/// Page-locked host memory for results. Copies into pageable memory are waited for one by one.
#[derive(Debug)]
pub struct Landing {
    memory: PinnedHostSlice<u64>,
    stream: Stream,
    /// Bytes that copies on their way, or arrived ones, take.
    filled: usize,
}

/// A copy that is on its way.
#[derive(Debug, Clone, Copy)]
pub struct Sent<T> {
    start: usize,
    len: usize,
    of: PhantomData<T>,
}

/// Results that are there.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a>(&'a [u8]);

impl Landing {
    /// Room for `bytes` bytes of copies on `stream`, [`Landing::bytes`] of each.
    ///
    /// # Errors
    /// A frozen device, a system that cannot lock as much memory.
    pub fn new(stream: &Stream, bytes: usize) -> Result<Self, KernelError> {
        stream.warming_up(|| format!("locking {bytes} bytes of host memory"))?;
        let words = bytes.div_ceil(size_of::<u64>()).max(1);
        let failed = |error| KernelError::driver(format!("locking {bytes} bytes of host memory"), error);
        // Not write-combined: the host reads it.
        // SAFETY: zeroed before anything reads it.
        let mut memory =
            unsafe { stream.cuda().context().alloc_pinned_with_flags(words, 0) }.map_err(failed)?;
        memory.as_mut_slice().map_err(failed)?.fill(0);
        Ok(Self { memory, stream: stream.clone(), filled: 0 })
    }

    /// Bytes that a copy of `len` elements takes.
    pub fn bytes<T>(len: usize) -> usize {
        len.saturating_mul(size_of::<T>()).next_multiple_of(ALIGN)
    }

    /// Enqueues a copy of `from`, behind everything that is on the stream now.
    ///
    /// # Errors
    /// No room for it beside those on their way, a failed copy.
    pub fn send<T: Element>(&mut self, from: &CudaView<'_, T>) -> Result<Sent<T>, KernelError> {
        let failed = |error| KernelError::driver("copying results from the device", error);
        let (start, len) = (self.filled, from.len());
        let (room, size) = (self.memory.num_bytes(), size_of::<T>().saturating_mul(len));
        if start.checked_add(size).is_none_or(|end| end > room) {
            let what = format!("results were planned for {room} bytes, of which {start} are taken");
            return Err(KernelError::BadTensor { shape: vec![len], what });
        }
        self.stream.cuda().context().bind_to_thread().map_err(failed)?;
        let (address, _) = from.device_ptr(self.stream.cuda());
        let memory = self.memory.as_mut_ptr().map_err(failed)?.cast::<u8>();
        // SAFETY: the bytes lie inside the allocation, as was checked, and no reference to them is alive: those of `wait` have
        // borrowed `self`.
        let to = unsafe { std::slice::from_raw_parts_mut(memory.add(start), size) };
        // SAFETY: as many bytes on both sides. `to` is page-locked, so the copy may go on after this returns; until it is
        // over nothing reads (`wait`), writes (`filled`) or frees it (`Drop`).
        unsafe { result::memcpy_dtoh_async(to, address, self.stream.cuda().cu_stream()) }.map_err(failed)?;
        self.filled = start + Self::bytes::<T>(len);
        Ok(Sent { start, len, of: PhantomData })
    }

    /// Waits for all copies on their way; their room is free again.
    ///
    /// # Errors
    /// The failure of a copy, or of a launch before it.
    pub fn wait(&mut self) -> Result<Arrived<'_>, KernelError> {
        self.stream.synchronize()?;
        self.filled = 0;
        let memory = self.memory.as_slice();
        let memory = memory.map_err(|error| KernelError::driver("reading results", error))?;
        Ok(Arrived(bytemuck::cast_slice(memory)))
    }
}

impl Arrived<'_> {
    /// What `sent` has brought.
    ///
    /// # Panics
    /// If it was sent to another, smaller place.
    pub fn get<T: Element>(&self, sent: Sent<T>) -> &[T] {
        bytemuck::cast_slice(&self.0[sent.start..sent.start + size_of::<T>() * sent.len])
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // Copies may be on their way. A failure has nowhere to go and would show at the next call on the stream as well.
        let _ = self.stream.synchronize();
    }
}
