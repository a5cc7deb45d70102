//! Launches beside launches: a second stream that leaves the first one and comes back to it, in a graph as well.

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;

use crate::{KernelError, Stream};

/// A side stream and the two events that order it against a main one.
#[derive(Debug)]
pub struct Fork {
    side: Stream,
    begun: CudaEvent,
    ended: CudaEvent,
}

impl Fork {
    /// A side stream on the device of `stream`.
    ///
    /// # Errors
    /// A frozen device, a driver that makes no more streams.
    pub fn new(stream: &Stream) -> Result<Self, KernelError> {
        stream.warming_up(|| "making a side stream".to_owned())?;
        let failed = |error| KernelError::driver("making a side stream", error);
        let event = || stream.cuda().context().new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING));
        let side = stream.beside().map_err(failed)?;
        Ok(Self { side, begun: event().map_err(failed)?, ended: event().map_err(failed)? })
    }

    /// The side stream, whose launches from here on come after everything that is on `main` now; it admits what `main` admits.
    /// [`Fork::end`] must follow on the same stream, before a capture of it ends.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn begin(&self, main: &Stream) -> Result<Stream, KernelError> {
        after(main, &self.begun, &self.side).map(|()| self.side.admitting_as(main))
    }

    /// What is launched on `main` from here on comes after everything that is on the side stream now.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn end(&self, main: &Stream) -> Result<(), KernelError> {
        after(&self.side, &self.ended, main)
    }
}

/// Lets `second` wait for what is on `first`.
fn after(first: &Stream, event: &CudaEvent, second: &Stream) -> Result<(), KernelError> {
    let ordered = event.record(first.cuda()).and_then(|()| second.cuda().wait(event));
    ordered.map_err(|error| KernelError::driver("ordering two streams", error))
}
