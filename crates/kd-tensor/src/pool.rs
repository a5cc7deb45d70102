//! The threads that operations share.
//!
//! A pass has about a hundred parallel regions of some microseconds each. So a worker that runs out of work watches for
//! the next region for a while before it goes to sleep, and a region ends as soon as its items are done: a worker that
//! the system has not scheduled in time is not waited for.

mod gate;
mod handout;
mod inside;

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::ranks::Division;
use gate::Gate;
use handout::Handout;
use inside::Inside;

/// Most workers of a pool: more than any machine has CPUs, and few enough to be started.
const MAX_THREADS: usize = 4096;
/// How long an idle worker watches for work before it sleeps.
const WATCH: Duration = Duration::from_micros(100);
/// Looks at the counter between two looks at the clock.
const LOOKS: usize = 64;

/// The operating system refused to start the threads.
#[derive(Debug, Error)]
#[error("cannot start {threads} worker threads: {reason}; try a smaller --threads")]
pub struct PoolError {
    threads: usize,
    reason: String,
}

/// A part of a parallel region ([`Pool::run`]).
pub type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A fixed set of worker threads. Results never depend on how many there are.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the region that uses the workers.
    turn: Mutex<()>,
    /// What the ranks run on, if there are several.
    pub(crate) division: Option<Box<Division>>,
}

struct Shared {
    gate: Gate,
    sleep: Mutex<Sleep>,
    wake: Condvar,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
}

#[derive(Default)]
struct Sleep {
    end: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// Nothing that these locks guard is ever left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn work(&self) {
        let mut seen = 0;
        while let Some(region) = self.next_region(seen) {
            seen = region;
            self.gate.join(region);
        }
    }

    /// Waits for a region after `seen`; `None` when the pool ends.
    fn next_region(&self, seen: u64) -> Option<u64> {
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS {
                let region = self.gate.region(Ordering::Acquire);
                if region != seen {
                    return Some(region);
                }
                std::hint::spin_loop();
            }
            if started.elapsed() > WATCH {
                break;
            }
        }
        let mut sleep = lock(&self.sleep);
        // Sequentially consistent here and in `open`: either this sees the new region, or `open` sees the sleeper.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.gate.region(Ordering::SeqCst) == seen && !sleep.end {
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        (!sleep.end).then(|| self.gate.region(Ordering::Acquire))
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }
}

impl Pool {
    /// `threads` threads, the caller's among them; with one, everything runs on the caller.
    pub fn new(threads: NonZeroUsize) -> Result<Self, PoolError> {
        if threads.get() > MAX_THREADS {
            let reason = format!("at most {MAX_THREADS} are useful");
            return Err(PoolError { threads: threads.get(), reason });
        }
        let mut pool = Self::single();
        for i in 1..threads.get() {
            let shared = Arc::clone(&pool.shared);
            let worker =
                std::thread::Builder::new().name(format!("kd-worker-{i}")).spawn(move || shared.work());
            let worker = worker.map_err(|e| PoolError { threads: threads.get(), reason: e.to_string() })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Runs on the calling thread alone.
    pub fn single() -> Self {
        let shared = Shared {
            gate: Gate::default(),
            sleep: Mutex::default(),
            wake: Condvar::new(),
            sleepers: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared), workers: Vec::new(), turn: Mutex::new(()), division: None }
    }

    /// One thread for each CPU that this process may use.
    pub fn available() -> Result<Self, PoolError> {
        Self::new(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether the calling thread runs a task of this pool: then the others cannot be waited for, and [`Pool::for_each`] works on
    /// the calling thread alone.
    pub fn is_running_this_thread(&self) -> bool {
        Inside::of(Arc::as_ptr(&self.shared).addr())
    }

    /// Calls `work` once for every item, in any order, and returns when all are done. A panic in `work` is passed on.
    pub fn for_each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Send + Sync) {
        if self.workers.is_empty() || items.len() < 2 {
            return items.into_iter().for_each(work);
        }
        // A region inside a region, or of another thread, does its own work.
        let Ok(turn) = self.turn.try_lock() else { return items.into_iter().for_each(work) };
        self.share_out(turn, items, work);
    }

    /// Runs tasks of several operations as one parallel region.
    pub fn run(&self, tasks: Vec<Task<'_>>) {
        self.for_each(tasks, |task| task());
    }

    /// Calls `work` once for every item and every item on a thread of its own, so that they may wait for each other. Waits
    /// for its turn if another thread uses the pool.
    ///
    /// # Panics
    /// If there are more items than threads, or the caller is a task of the pool. A panic in `work` is passed on.
    pub(crate) fn all_at_once<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Send + Sync) {
        assert!(items.len() <= self.threads(), "{} items for {} threads", items.len(), self.threads());
        // The region that this thread is part of would have to end first.
        assert!(
            !self.is_running_this_thread(),
            "a task of the pool asks for {} of its threads at once: call `in_parts` or `each_rank` outside the pool's regions",
            items.len()
        );
        self.share_out(lock(&self.turn), items, work);
    }

    fn share_out<T: Send>(&self, turn: MutexGuard<'_, ()>, items: Vec<T>, work: impl Fn(T) + Send + Sync) {
        let items = Handout::new(items);
        let panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
        let share = || {
            let _inside = Inside::enter(Arc::as_ptr(&self.shared).addr());
            let next = || items.next();
            let result = catch_unwind(AssertUnwindSafe(|| std::iter::from_fn(next).for_each(&work)));
            if let Err(payload) = result {
                lock(&panic).get_or_insert(payload);
            }
        };
        self.shared.gate.region_of(&share, || self.shared.wake());
        drop(turn);
        if let Some(payload) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.sleep).end = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics of the work, so there is nothing to hear of here.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_item_is_worked_on_once_in_thousands_of_regions() {
        for threads in 1..=4 {
            let pool = pool(threads);
            for region in 0..2000 {
                let counts: Vec<AtomicUsize> = (0..region % 9).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(counts.iter().collect(), |count| {
                    count.fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "region {region}");
            }
        }
    }

    #[test]
    fn sleeping_workers_are_woken() {
        let pool = pool(2);
        for _ in 0..5 {
            std::thread::sleep(5 * WATCH);
            // Each item waits for the other, so one thread alone would never end.
            let met = std::sync::Barrier::new(2);
            pool.for_each(vec![(), ()], |()| {
                met.wait();
            });
        }
    }

    #[test]
    fn a_region_inside_a_region_runs_where_it_is() {
        let (pool, sum) = (pool(3), AtomicUsize::new(0));
        pool.for_each(vec![1, 2, 3], |a| {
            pool.for_each(vec![10 * a, 20 * a], |b| {
                sum.fetch_add(b, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 180);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = pool(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each((0..8).collect(), |i| assert_ne!(i, 5, "planted"));
        }));
        assert!(caught.is_err());
        let done = AtomicUsize::new(0);
        pool.for_each(vec![(), ()], |()| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    }
}
