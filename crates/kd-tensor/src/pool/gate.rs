//! Where workers see that a region has opened, enter it and leave it: one word, and the job beside it on the same cache lines.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a region runs on every thread that joins it.
type Job = &'static (dyn Fn() + Sync);

/// Bits of [`Gate::word`] that count the workers inside.
const INSIDE: u64 = (1 << 15) - 1;
/// The bit that says whether workers may enter.
const OPEN: u64 = 1 << 15;
/// Where the number of the region begins.
const REGION: u32 = 16;
/// Looks at the word before a thread that waits for others lets the system run them.
const PATIENCE: usize = 1024;

/// One region at a time. Whoever waits looks at this word alone, and nothing else lies on its cache lines but the job.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Gate {
    /// Number of the last region, whether it is open, workers inside.
    word: AtomicU64,
    /// The last region's. Written only while the gate is shut and nobody is inside, read only inside.
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `word` says who may touch `job` (see there), and what it refers to may be shared.
unsafe impl Sync for Gate {}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("word", &self.word).finish_non_exhaustive()
    }
}

impl Gate {
    /// Number of the last region; it changes with each.
    pub(super) fn region(&self, order: Ordering) -> u64 {
        self.word.load(order) >> REGION
    }

    /// Works in region `region` if it is still open.
    pub(super) fn join(&self, region: u64) {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word >> REGION != region || word & OPEN == 0 {
                return;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let _inside = Inside(self);
        // SAFETY: this thread is counted, so the region that it entered has not ended, and the job stays as it was written
        // before the region opened.
        if let Some(job) = unsafe { *self.job.get() } {
            job();
        }
    }

    /// Opens a region, calls `opened`, runs `job` on this thread and on every worker that joins before this one is through, and
    /// returns when none is left inside. Regions must not overlap: the caller holds the pool's turn.
    pub(super) fn region_of(&self, job: &(dyn Fn() + Sync), opened: impl FnOnce()) {
        // SAFETY: only the lifetime changes. Workers call the job inside the region alone, and `shut` waits for them, however
        // this function ends.
        let lasting = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), Job>(job) };
        // SAFETY: the gate is shut and nobody inside: the last region's `shut` has seen to it, and there is one at a time.
        unsafe { *self.job.get() = Some(lasting) };
        let region = (self.word.load(Ordering::Relaxed) >> REGION) + 1;
        // Sequentially consistent for the sake of workers that go to sleep: see `Shared::next_region`.
        self.word.store(region << REGION | OPEN, Ordering::SeqCst);
        let shut = Shut(self);
        opened();
        job();
        drop(shut);
    }
}

/// Leaves the region when dropped, however the job ends.
struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(1, Ordering::Release);
    }
}

/// Lets nobody else in when dropped, however the region ends, and waits for those inside.
struct Shut<'a>(&'a Gate);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.word.fetch_and(!OPEN, Ordering::Acquire) & INSIDE;
        let mut looks = 0;
        while inside > 0 {
            // A worker that still has an item may be waiting for this very processor.
            if looks < PATIENCE {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            looks += 1;
            inside = self.0.word.load(Ordering::Acquire) & INSIDE;
        }
    }
}
