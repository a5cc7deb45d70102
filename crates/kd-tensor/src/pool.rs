//! The threads that operations share.

use std::num::NonZeroUsize;

use rayon::prelude::*;
use thiserror::Error;

/// Most workers of a pool: more than any machine has CPUs, and few enough to be started.
const MAX_THREADS: usize = 4096;

/// The operating system refused to start the threads.
#[derive(Debug, Error)]
#[error("cannot start {threads} worker threads: {reason}; try a smaller --threads")]
pub struct PoolError {
    threads: usize,
    reason: String,
}

/// A fixed set of worker threads. Results never depend on how many there are.
#[derive(Debug)]
pub struct Pool {
    workers: Option<rayon::ThreadPool>,
    threads: usize,
}

impl Pool {
    /// `threads` workers; one thread means that everything runs on the caller.
    pub fn new(threads: NonZeroUsize) -> Result<Self, PoolError> {
        let threads = threads.get();
        if threads > MAX_THREADS {
            return Err(PoolError { threads, reason: format!("at most {MAX_THREADS} are useful") });
        }
        let workers = if threads > 1 {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("kd-worker-{i}"));
            Some(pool.build().map_err(|e| PoolError { threads, reason: e.to_string() })?)
        } else {
            None
        };
        Ok(Self { workers, threads })
    }

    /// Runs on the calling thread alone.
    pub fn single() -> Self {
        Self { workers: None, threads: 1 }
    }

    /// One worker for each CPU that this process may use.
    pub fn available() -> Result<Self, PoolError> {
        Self::new(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` once for every item, in any order, and returns when all are done.
    pub fn for_each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Send + Sync) {
        match &self.workers {
            Some(workers) if items.len() > 1 => {
                workers.install(|| items.into_par_iter().with_max_len(1).for_each(work))
            }
            _ => items.into_iter().for_each(work),
        }
    }
}
