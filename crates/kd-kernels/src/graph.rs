//! Capturing launches once and replaying them as a graph.
//!
//! A captured launch keeps the addresses of its operands, so a [`Graph`] owns whatever its launches use, and between
//! replays the host reaches that memory only by copies in stream order ([`Buffer`]).

use bytemuck::Pod;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode, cuGraphGetNodes};
use cudarc::driver::{CudaEvent, CudaGraph, CudaSlice, CudaView, CudaViewMut, DevicePtr, DeviceRepr, result};

use crate::{KernelError, Stream, TensorMut, TensorRef};

/// Launches that were captured, with the kernels and the memory that they use.
pub struct Graph<R> {
    graph: CudaGraph,
    stream: Stream,
    resources: R,
}

/// The beginning and the end of a replay on the device.
#[derive(Debug)]
pub struct Marks {
    begin: CudaEvent,
    end: CudaEvent,
}

impl Marks {
    /// Microseconds between them; waits for the end.
    ///
    /// # Errors
    /// The failure of a launch.
    pub fn micros(&self) -> Result<f64, KernelError> {
        let milliseconds = self.begin.elapsed_ms(&self.end);
        Ok(f64::from(milliseconds.map_err(|error| KernelError::driver("timing a graph", error))?) * 1e3)
    }
}

impl Stream {
    /// Runs `record`, whose launches on this stream are captured instead of run.
    ///
    /// `record` is a plain function, so that it can use nothing but `resources`, which the graph keeps. Kernels must have
    /// been loaded before; nothing may be allocated, read back or synchronised inside.
    ///
    /// # Errors
    /// A frozen device; the error of `record`, after which the stream is as it was; a call that cannot be captured.
    pub fn capture<R>(
        &self,
        mut resources: R,
        record: fn(&Stream, &mut R) -> Result<(), KernelError>,
    ) -> Result<Graph<R>, KernelError> {
        self.warming_up(|| "capturing a graph".to_owned())?;
        let failed = |error| KernelError::driver("capturing a graph", error);
        // Other threads may allocate meanwhile; what this thread does must be capturable.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.cuda().begin_capture(mode).map_err(failed)?;
        let recorded = record(self, &mut resources);
        // Ended even after an error: a stream left in capture is of no use to anyone.
        let graph = self.cuda().end_capture(CUgraphInstantiate_flags(0));
        recorded?;
        let graph = graph.map_err(failed)?.ok_or_else(|| KernelError::Driver {
            what: "capturing a graph".to_owned(),
            code: "nothing was launched".to_owned(),
        })?;
        graph.upload().map_err(failed)?;
        Ok(Graph { graph, stream: self.clone(), resources })
    }
}

impl<R> Graph<R> {
    /// Replays the launches on the stream they were captured on; returns at once.
    ///
    /// # Errors
    /// A driver that refuses the graph.
    pub fn launch(&self) -> Result<(), KernelError> {
        self.graph.launch().map_err(|error| KernelError::driver("launching a graph", error))
    }

    /// As [`Graph::launch`]; what it returns says how long the replay took on the device, once it is over.
    ///
    /// # Errors
    /// As [`Graph::launch`].
    pub fn launch_marked(&self) -> Result<Marks, KernelError> {
        let begin = self.mark()?;
        self.launch()?;
        Ok(Marks { begin, end: self.mark()? })
    }

    fn mark(&self) -> Result<CudaEvent, KernelError> {
        let event = self.stream.cuda().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        event.map_err(|error| KernelError::driver("timing a graph", error))
    }

    /// Microseconds of one replay: the mean of `replays` (at least one), measured on the device after one more to warm up.
    ///
    /// # Errors
    /// As [`Graph::launch`], or the failure of a launch.
    pub fn time(&self, replays: usize) -> Result<f64, KernelError> {
        self.launch()?;
        let replays = replays.max(1);
        Ok(self.time_all(replays)? / replays as f64)
    }

    /// Microseconds of one replay as things are, without one to warm up.
    ///
    /// # Errors
    /// As [`Graph::launch`], or the failure of a launch.
    pub fn time_one(&self) -> Result<f64, KernelError> {
        self.time_all(1)
    }

    /// Replays and waits: the microseconds that all `replays` took on the device.
    fn time_all(&self, replays: usize) -> Result<f64, KernelError> {
        let begin = self.mark()?;
        (0..replays).try_for_each(|_| self.launch())?;
        Marks { begin, end: self.mark()? }.micros()
    }

    /// How many launches and copies it has.
    ///
    /// # Errors
    /// A driver that does not say.
    pub fn nodes(&self) -> Result<usize, KernelError> {
        let mut count = 0;
        // SAFETY: the graph lives as long as `self`; without room for handles the call only writes their number.
        let status = unsafe { cuGraphGetNodes(self.graph.cu_graph(), std::ptr::null_mut(), &mut count) };
        status.result().map_err(|error| KernelError::driver("counting the nodes of a graph", error))?;
        Ok(count)
    }

    /// What the launches use. Memory in it must not be freed or replaced while the graph exists.
    pub fn resources(&self) -> &R {
        &self.resources
    }
}

// SAFETY: the driver lets a graph be used by any thread as long as it is by one at a time, and makes the context current
// at each call. A graph is not `Sync`, so no two threads have it.
unsafe impl<R: Send> Send for Graph<R> {}

impl<R> Drop for Graph<R> {
    fn drop(&mut self) {
        // A replay may still be running; the memory goes with `resources`. A failure has nowhere to go and would show at
        // the next call on the stream as well.
        let _ = self.stream.synchronize();
    }
}

impl<R> std::fmt::Debug for Graph<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// Plain values that host and device see alike.
pub trait Element: Pod + DeviceRepr {}

impl<T: Pod + DeviceRepr> Element for T {}

/// Device memory that the host reads and writes in stream order through a shared reference, also while a graph owns it.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: CudaSlice<T>,
}

impl<T: Element> Buffer<T> {
    /// Memory that holds `values`.
    ///
    /// # Errors
    /// A frozen device, a failed allocation or copy.
    pub fn new(stream: &Stream, values: &[T]) -> Result<Self, KernelError> {
        stream.warming_up(|| format!("allocating a buffer of {} values", values.len()))?;
        let memory = stream.cuda().clone_htod(values);
        Ok(Self { memory: memory.map_err(|error| KernelError::driver("allocating a buffer", error))? })
    }

    /// Replaces the contents after everything that is on `stream` now. `values` may be dropped on return.
    ///
    /// # Errors
    /// Another number of values, a failed copy.
    pub fn write(&self, stream: &Stream, values: &[T]) -> Result<(), KernelError> {
        let failed = |error| KernelError::driver("writing a buffer", error);
        if values.len() != self.memory.len() {
            let what = format!("{} values for a buffer of {}", values.len(), self.memory.len());
            return Err(KernelError::BadTensor { shape: vec![self.memory.len()], what });
        }
        stream.cuda().context().bind_to_thread().map_err(failed)?;
        let (address, _) = self.memory.device_ptr(stream.cuda());
        // SAFETY: as many bytes as the allocation has. `values` is pageable memory, which the driver has read when the call
        // returns; the device side is ordered by the stream.
        unsafe { result::memcpy_htod_async(address, values, stream.cuda().cu_stream()) }.map_err(failed)
    }

    /// The contents once everything that is on `stream` now has finished.
    ///
    /// # Errors
    /// A failed copy, or the failure of a launch before it.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>, KernelError> {
        let values = stream.cuda().clone_dtoh(&self.memory);
        let values = values.map_err(|error| KernelError::driver("reading a buffer", error))?;
        stream.synchronize()?;
        Ok(values)
    }

    /// The memory, to be read by a launch.
    pub fn view(&self) -> CudaView<'_, T> {
        self.memory.as_view()
    }

    /// `len` elements of another type from element `start` on, to be read by a launch.
    ///
    /// # Errors
    /// More elements than there are, a place that is not aligned for them.
    pub fn view_as<U: Element>(&self, start: usize, len: usize) -> Result<CudaView<'_, U>, KernelError> {
        let aligned = start.saturating_mul(size_of::<T>()).is_multiple_of(align_of::<U>());
        let rest = self.memory.try_slice(start.min(self.memory.len())..).filter(|_| aligned);
        // SAFETY: both types are plain values, any bits of which are one; length and alignment are checked.
        let view = rest.and_then(|rest| unsafe { rest.transmute(len) });
        view.ok_or_else(|| KernelError::BadTensor {
            shape: vec![len],
            what: format!("at element {start} of a buffer of {}", self.memory.len()),
        })
    }

    /// The memory, to be written by a launch.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.memory.as_view_mut()
    }

    /// The first elements as an operand of `shape`.
    ///
    /// # Errors
    /// More elements than there are.
    pub fn head<const RANK: usize>(
        &self,
        stream: &Stream,
        shape: [usize; RANK],
    ) -> Result<TensorRef<'_, T, RANK>, KernelError> {
        let end = self.within(&shape)?;
        TensorRef::new(stream, self.memory.slice(..end), shape)
    }

    /// As [`head`](Self::head), to be written.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub fn head_mut<const RANK: usize>(
        &mut self,
        stream: &Stream,
        shape: [usize; RANK],
    ) -> Result<TensorMut<'_, T, RANK>, KernelError> {
        let end = self.within(&shape)?;
        TensorMut::new(stream, self.memory.slice_mut(..end), shape)
    }

    /// The number of elements of `shape`.
    fn within(&self, shape: &[usize]) -> Result<usize, KernelError> {
        let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        count.filter(|count| *count <= self.memory.len()).ok_or_else(|| KernelError::BadTensor {
            shape: shape.to_vec(),
            what: format!("the buffer has {} elements", self.memory.len()),
        })
    }
}
