//! Results that come back before the graph that computes them is over.

use cudarc::driver::sys::{
    CUevent_flags, CUevent_record_flags, CUstreamCaptureStatus, cuEventRecordWithFlags,
};
use cudarc::driver::{CudaEvent, CudaView, DevicePtr, PinnedHostSlice, ValidAsZeroBits, result};

use crate::graph::Element;
use crate::{KernelError, Stream};

/// Page-locked host memory for one kind of result, and the event that says that it is there. Captured, both become nodes of the
/// graph, and each replay sends anew: whoever waits for the event does not wait for what comes behind it.
#[derive(Debug)]
pub struct Outbox<T> {
    memory: PinnedHostSlice<T>,
    /// Of the memory: asking for it waits for an event, which a capture does not allow.
    address: usize,
    sent: CudaEvent,
    stream: Stream,
}

impl<T: Element + ValidAsZeroBits> Outbox<T> {
    /// Room for `len` elements, all zero.
    ///
    /// # Errors
    /// A frozen device, a system that cannot lock as much memory.
    pub fn new(stream: &Stream, len: usize) -> Result<Self, KernelError> {
        stream.warming_up(|| format!("locking {len} elements of host memory"))?;
        let context = stream.cuda().context();
        // Not write-combined: the host reads it.
        // SAFETY: zeroed before anything reads it.
        let mut memory = unsafe { context.alloc_pinned_with_flags::<T>(len.max(1), 0) }.map_err(failed)?;
        memory.as_mut_slice().map_err(failed)?.fill(T::zeroed());
        let address = memory.as_mut_ptr().map_err(failed)?.expose_provenance();
        let sent = context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(failed)?;
        Ok(Self { memory, address, sent, stream: stream.clone() })
    }

    /// Enqueues a copy of `from` to the first elements, and the event. Safe to capture in a graph.
    ///
    /// # Errors
    /// More elements than there is room for, a failed copy.
    pub fn send(&mut self, stream: &Stream, from: &CudaView<'_, T>) -> Result<(), KernelError> {
        let (len, room) = (from.len(), self.memory.len());
        if len > room {
            let what = format!("results were planned for {room} elements");
            return Err(KernelError::BadTensor { shape: vec![len], what });
        }
        let status = stream.cuda().capture_status().map_err(failed)?;
        let (address, _) = from.device_ptr(stream.cuda());
        let memory = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: inside the allocation, as was checked; `read` hands out no reference to it.
        let to = unsafe { std::slice::from_raw_parts_mut::<T>(memory, len) };
        // SAFETY: as many elements on both sides. `to` is page-locked; it is read behind the event alone and freed when the
        // stream has come to its end.
        unsafe { result::memcpy_dtoh_async(to, address, stream.cuda().cu_stream()) }.map_err(failed)?;
        let flags = match status {
            // Otherwise the event would order launches of the capture and be nothing to wait for outside.
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => {
                CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL
            }
            _ => CUevent_record_flags::CU_EVENT_RECORD_DEFAULT,
        };
        // SAFETY: both handles are alive, and the context was made current by the question above.
        let recorded =
            unsafe { cuEventRecordWithFlags(self.sent.cu_event(), stream.cuda().cu_stream(), flags as u32) };
        recorded.result().map_err(failed)
    }

    /// The first `len` elements, once what was sent or replayed last has arrived.
    ///
    /// # Errors
    /// More elements than there are, the failure of a launch before the copy.
    pub fn read(&self, len: usize) -> Result<Vec<T>, KernelError> {
        self.sent.synchronize().map_err(failed)?;
        let room = self.memory.len();
        if len > room {
            let what = format!("results were planned for {room} elements");
            return Err(KernelError::BadTensor { shape: vec![len], what });
        }
        let memory = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: inside the allocation, as was checked, which nothing writes between the event and the next launch.
        Ok(unsafe { std::slice::from_raw_parts::<T>(memory, len) }.to_vec())
    }
}

impl<T> Drop for Outbox<T> {
    fn drop(&mut self) {
        // A copy may be on its way. A failure has nowhere to go and would show at the next call on the stream as well.
        let _ = self.stream.synchronize();
    }
}

fn failed(error: cudarc::driver::DriverError) -> KernelError {
    KernelError::driver("bringing results to the host", error)
}
