//! How weights get to a device: through one page-locked buffer, whose halves are filled and copied in turn.

use bytemuck::Pod;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaViewMut, DevicePtrMut, DeviceRepr, PinnedHostSlice, result};

use crate::{KernelError, Stream};

/// Page-locked host memory between mapped files and a device.
#[derive(Debug)]
pub struct Staging {
    halves: [Half; 2],
    current: usize,
}

#[derive(Debug)]
struct Half {
    memory: PinnedHostSlice<u8>,
    /// After which the memory has been read.
    read: Option<CudaEvent>,
}

impl Staging {
    /// A buffer of `bytes` bytes (at least two), used by copies on `stream`.
    ///
    /// # Errors
    /// A frozen device, a system that cannot lock as much memory.
    pub fn new(stream: &Stream, bytes: usize) -> Result<Self, KernelError> {
        stream.warming_up(|| format!("allocating a staging buffer of {bytes} bytes"))?;
        let half = || {
            let size = (bytes / 2).max(1);
            // Plain memory, not write-combined: rows are gathered into it piece by piece.
            // SAFETY: nothing reads it before it is written.
            let memory = unsafe { stream.cuda().context().alloc_pinned_with_flags(size, 0) };
            let failed = |error| KernelError::driver(format!("locking {size} bytes of host memory"), error);
            Ok(Half { memory: memory.map_err(failed)?, read: None })
        };
        Ok(Self { halves: [half()?, half()?], current: 0 })
    }

    /// Copies `rows`, one after another, to `to`. When this returns the rows may be dropped; the device has them when `stream`
    /// has come this far.
    ///
    /// # Errors
    /// More or fewer values than `to` has, a failed copy.
    pub fn copy<'r, T: Pod + DeviceRepr>(
        &mut self,
        stream: &Stream,
        rows: impl IntoIterator<Item = &'r [T]>,
        mut to: CudaViewMut<'_, T>,
    ) -> Result<(), KernelError> {
        let failed = |error| KernelError::driver("copying weights to the device", error);
        stream.cuda().context().bind_to_thread().map_err(failed)?;
        let (length, room) = (to.len(), size_of::<T>() * to.len());
        let (address, _) = to.device_ptr_mut(stream.cuda());
        let wrong = |found: usize| KernelError::BadTensor {
            shape: vec![length],
            what: format!("{} bytes for {room}", found),
        };
        // `flushed` bytes have been given to the driver, `filled` more are in the current half.
        let (mut flushed, mut filled) = (0, 0);
        for row in rows {
            let mut bytes: &[u8] = bytemuck::cast_slice(row);
            if flushed + filled + bytes.len() > room {
                return Err(wrong(flushed + filled + bytes.len()));
            }
            while !bytes.is_empty() {
                if filled == 0 {
                    self.wait().map_err(failed)?;
                }
                let half = self.halves[self.current].memory.as_mut_slice().map_err(failed)?;
                let (now, later) = bytes.split_at(bytes.len().min(half.len() - filled));
                half[filled..filled + now.len()].copy_from_slice(now);
                (bytes, filled) = (later, filled + now.len());
                if filled == half.len() {
                    self.flush(stream, address + flushed as u64, filled).map_err(failed)?;
                    (flushed, filled) = (flushed + filled, 0);
                }
            }
        }
        if flushed + filled != room {
            return Err(wrong(flushed + filled));
        }
        if filled > 0 {
            self.flush(stream, address + flushed as u64, filled).map_err(failed)?;
        }
        Ok(())
    }

    /// Until the current half has been read.
    fn wait(&mut self) -> Result<(), cudarc::driver::DriverError> {
        self.halves[self.current].read.take().map_or(Ok(()), |event| event.synchronize())
    }

    /// Copies the first `bytes` bytes of the current half to `address` and turns to the other one.
    fn flush(
        &mut self,
        stream: &Stream,
        address: u64,
        bytes: usize,
    ) -> Result<(), cudarc::driver::DriverError> {
        let half = &mut self.halves[self.current];
        let source = &half.memory.as_slice()?[..bytes];
        // SAFETY: the caller has checked that `bytes` fit behind `address`. `source` is not written again before the event
        // below, and not freed: `Drop` waits for it.
        unsafe { result::memcpy_htod_async(address, source, stream.cuda().cu_stream()) }?;
        half.read = Some(stream.cuda().record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))?);
        self.current = 1 - self.current;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for half in &mut self.halves {
            // An error has nowhere to go; the next call on the stream shows it.
            let _ = half.read.take().map(|event| event.synchronize());
        }
    }
}
