//! Ranks that are threads of one process, on one device or several: each copies the parts of all.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaView, DevicePtr, DevicePtrMut, result};
use half::bf16;

use super::{Exchange, needed, present};
use crate::{KernelError, Stream};

/// What ranks tell each other, and where they wait for each other.
#[derive(Debug)]
struct Board {
    barrier: Barrier,
    /// A part and the event after which it may be read.
    parts: Mutex<Vec<Option<Post>>>,
    /// Events after which a rank has read all parts.
    read: Mutex<Vec<Option<Arc<CudaEvent>>>>,
}

#[derive(Clone, Debug)]
struct Post {
    address: u64,
    elements: usize,
    written: Arc<CudaEvent>,
    context: Arc<CudaContext>,
}

/// Makes the [`InProcess`] of each rank.
#[derive(Debug)]
pub struct InProcessRanks;

/// One rank. Its calls wait on the host for those of all others, so they cannot be captured in a graph, and a rank that
/// ends without calling leaves the others waiting.
#[derive(Debug)]
pub struct InProcess {
    rank: usize,
    ranks: usize,
    board: Arc<Board>,
}

impl InProcessRanks {
    /// One exchange for each of `ranks` threads, in rank order.
    pub fn connect(ranks: usize) -> Vec<InProcess> {
        let board = Arc::new(Board {
            barrier: Barrier::new(ranks.max(1)),
            parts: Mutex::new(vec![None; ranks]),
            read: Mutex::new(vec![None; ranks]),
        });
        (0..ranks).map(|rank| InProcess { rank, ranks, board: board.clone() }).collect()
    }
}

impl InProcess {
    /// Shows `own` to the other ranks and gives what all of them showed, `None` for one that could not.
    fn swap<T: Clone>(&self, board: &Mutex<Vec<Option<T>>>, own: Option<T>) -> Vec<Option<T>> {
        board.lock().unwrap_or_else(PoisonError::into_inner)[self.rank] = own;
        self.board.barrier.wait();
        board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Copies every part into `room` as soon as it is written.
    fn copy(&self, stream: &Stream, posts: &[Post], room: &mut CudaSlice<bf16>) -> Result<(), KernelError> {
        let failed = |error| KernelError::driver("copying the part of another rank", error);
        let own = stream.cuda().context().clone();
        own.bind_to_thread().map_err(failed)?;
        for (rank, post) in posts.iter().enumerate() {
            stream.cuda().wait(&post.written).map_err(failed)?;
            let mut place = room.slice_mut(rank * post.elements..(rank + 1) * post.elements);
            let (to, _) = place.device_ptr_mut(stream.cuda());
            let (from, bytes) = (post.address, post.elements * size_of::<bf16>());
            // SAFETY: `to` has as many bytes, checked by `slice_mut`. `from` is a part that its rank keeps borrowed until all
            // ranks have posted their events below, which its stream then waits for before anything else touches it.
            let copied = unsafe {
                if *post.context == *own {
                    result::memcpy_dtod_async(to, from, bytes, stream.cuda().cu_stream())
                } else {
                    let contexts = (own.cu_ctx(), post.context.cu_ctx());
                    let stream = stream.cuda().cu_stream();
                    cudarc::driver::sys::cuMemcpyPeerAsync(to, contexts.0, from, contexts.1, bytes, stream)
                        .result()
                }
            };
            copied.map_err(failed)?;
        }
        Ok(())
    }
}

impl Exchange for InProcess {
    fn parts(&self) -> usize {
        self.ranks
    }

    fn meet<'a>(
        &self,
        stream: &Stream,
        part: &'a mut CudaSlice<bf16>,
        elements: usize,
        room: &'a mut CudaSlice<bf16>,
    ) -> Result<CudaView<'a, bf16>, KernelError> {
        // Whatever fails here, the others are not left waiting: a rank without a post makes all of them fail.
        let event = || {
            let event = stream.cuda().record_event(None);
            event.map(Arc::new).map_err(|error| KernelError::driver("recording an event", error))
        };
        let all = present(part, elements).and_then(|_| needed(self.ranks, elements, room.len()));
        let address = part.device_ptr(stream.cuda()).0;
        let context = stream.cuda().context().clone();
        let own =
            all.clone().and_then(|_| event()).map(|written| Post { address, elements, written, context });
        let posts = self.swap(&self.board.parts, own.clone().ok());
        let agreed: Option<Vec<Post>> = posts.into_iter().collect();
        let agreed = agreed.filter(|posts| posts.iter().all(|post| post.elements == elements));
        let copied = match &agreed {
            Some(posts) => self.copy(stream, posts, room),
            None => Err(KernelError::Exchange {
                what: format!(
                    "rank {} brings {elements} elements; another brings none or as many others",
                    self.rank
                ),
            }),
        };
        let read = self.swap(&self.board.read, copied.clone().and_then(|()| event()).ok());
        let waited = read.iter().flatten().try_for_each(|event| stream.cuda().wait(event));
        own?;
        copied?;
        waited.map_err(|error| KernelError::driver("waiting for another rank", error))?;
        Ok(room.slice(..all?))
    }
}
