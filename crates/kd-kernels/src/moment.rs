//! Times inside a captured graph: how long a part of a replay took on the device.

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::{
    CUevent_flags, CUevent_record_flags, CUstreamCaptureStatus, cuEventRecordWithFlags,
};

use crate::{KernelError, Stream};

/// A place among launches. Each replay of a graph that has it takes its time anew.
#[derive(Debug)]
pub struct Moment {
    event: CudaEvent,
}

impl Moment {
    /// A place that no stream has come to.
    ///
    /// # Errors
    /// A frozen device, a driver that makes no more events.
    pub fn new(stream: &Stream) -> Result<Self, KernelError> {
        stream.warming_up(|| "making an event".to_owned())?;
        let event = stream.cuda().context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        Ok(Self { event: event.map_err(failed)? })
    }

    /// Enqueues the taking of the time. In a capture it becomes a node of the graph.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn record(&self, stream: &Stream) -> Result<(), KernelError> {
        let status = stream.cuda().capture_status().map_err(failed)?;
        let flags = match status {
            // Otherwise the event would order the capture alone and keep no time.
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => {
                CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL
            }
            _ => CUevent_record_flags::CU_EVENT_RECORD_DEFAULT,
        };
        // SAFETY: both handles are alive; the context was made current by the question above.
        let recorded =
            unsafe { cuEventRecordWithFlags(self.event.cu_event(), stream.cuda().cu_stream(), flags as u32) };
        recorded.result().map_err(failed)
    }

    /// Microseconds from here to `end`, as both were last taken; waits for them.
    ///
    /// # Errors
    /// One that was never taken, the failure of a launch.
    pub fn micros_to(&self, end: &Self) -> Result<f64, KernelError> {
        Ok(f64::from(self.event.elapsed_ms(&end.event).map_err(failed)?) * 1e3)
    }
}

fn failed(error: cudarc::driver::DriverError) -> KernelError {
    KernelError::driver("timing a part of a graph", error)
}
