//! Tensor parallelism inside one process: every rank runs the same program over its own part of the weights.
//!
//! Ranks meet in collectives alone. A sum over ranks is added in their order, whoever comes first, so it has the same bits on
//! every rank and in every run.

mod exchange;

use std::num::NonZeroUsize;
use std::sync::Mutex;

use thiserror::Error;

use crate::pool::{PoolError, lock};
use crate::{Matrix, Pool};
use exchange::{Exchange, Member};

/// What one rank knows of the others. All ranks of a group make the same calls in the same order.
///
/// [`Pool::each_rank`] gives every rank one that works inside the process.
pub trait Collective {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The sum of the parts of all ranks, which have one shape: `((part_0 + part_1) + part_2) + …`.
    ///
    /// # Errors
    /// If a rank is lost, or the ranks disagree about what they do.
    fn all_reduce(&self, part: Matrix) -> Result<Matrix, CollectiveError>;

    /// The columns of all ranks side by side, in order of rank. The parts have equally many rows.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn all_gather(&self, part: Matrix) -> Result<Matrix, CollectiveError>;

    /// The rows of all ranks one after the other, in order of rank. The parts have equally many columns.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn all_gather_rows(&self, part: Matrix) -> Result<Matrix, CollectiveError>;
}

/// Why ranks cannot go on together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank ended, by an error or a panic, while others waited for it.
    #[error("rank {rank} ended before the others")]
    Lost {
        /// The rank.
        rank: usize,
    },
    /// Ranks that called different collectives, or brought shapes that do not go together.
    #[error("rank {rank} calls {found}, but rank 0 calls {expected}: the ranks do not run the same pass")]
    Mismatch {
        /// The first rank that differs.
        rank: usize,
        /// Its call.
        found: String,
        /// The call of rank 0.
        expected: String,
    },
}

/// The only rank: every sum and every list is its own part.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        Ok(part)
    }

    fn all_gather(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        Ok(part)
    }

    fn all_gather_rows(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        Ok(part)
    }
}

/// The threads of several ranks.
#[derive(Debug)]
pub(crate) struct Division {
    /// One thread a rank.
    leaders: Pool,
    /// What each rank's own regions run on.
    shares: Vec<Pool>,
}

impl Pool {
    /// `threads` threads for what is done once, and for what [`Pool::each_rank`] does equal shares of as many, but at least
    /// one thread a rank.
    pub fn with_ranks(threads: NonZeroUsize, ranks: NonZeroUsize) -> Result<Self, PoolError> {
        let mut pool = Self::new(threads)?;
        if ranks.get() > 1 {
            let share = NonZeroUsize::new(threads.get() / ranks).unwrap_or(NonZeroUsize::MIN);
            let leaders = Self::new(ranks)?;
            let shares = (0..ranks.get()).map(|_| Self::new(share)).collect::<Result<_, _>>()?;
            pool.division = Some(Box::new(Division { leaders, shares }));
        }
        Ok(pool)
    }

    /// Number of ranks, 1 for a pool that is not divided.
    pub fn ranks(&self) -> usize {
        self.division.as_ref().map_or(1, |division| division.shares.len())
    }

    /// Runs `work` for every rank at once, each on a thread of its own with its share of the pool, and returns the results
    /// in order of rank. Rank `i` gets `items[i]`. A single rank runs on the calling thread with the whole pool.
    ///
    /// A rank that ends early does not hang the others: their collectives fail. The first panic is passed on.
    ///
    /// # Panics
    /// If there are not as many items as ranks. `work` must not call this again for the same pool: the rank's
    /// own thread panics.
    pub fn each_rank<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(&dyn Collective, &Pool, T) -> R + Sync + Send,
    ) -> Vec<R> {
        assert_eq!(items.len(), self.ranks(), "one item a rank");
        let Some(division) = &self.division else {
            return items.into_iter().map(|item| work(&Alone, self, item)).collect();
        };
        division.leaders.meet(items, |member, item| work(member, &division.shares[member.rank()], item))
    }

    /// Runs `work` for every item at once, each on one of the pool's threads, and returns the results in order. The items
    /// meet as ranks do. A single item gets the whole pool, several a pool of one thread each.
    ///
    /// # Panics
    /// If there are more items than threads. A panic in `work` is passed on. If several items are given by a task of the pool
    /// ([`Pool::is_running_this_thread`]): its threads are taken.
    pub fn in_parts<T: Send, R: Send>(
        &self,
        mut items: Vec<T>,
        work: impl Fn(&dyn Collective, &Pool, T) -> R + Sync + Send,
    ) -> Vec<R> {
        if items.len() <= 1 {
            return items.pop().map(|item| work(&Alone, self, item)).into_iter().collect();
        }
        self.meet(items, |member, item| work(member, &Self::single(), item))
    }

    fn meet<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(&dyn Collective, T) -> R + Sync + Send,
    ) -> Vec<R> {
        let exchange = Exchange::new(items.len());
        let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
        self.all_at_once(items.into_iter().enumerate().collect(), |(rank, item)| {
            let member = Member::new(&exchange, rank);
            let result = work(&member, item);
            *lock(&results[rank]) = Some(result);
        });
        let results = results.into_iter().map(|r| r.into_inner().ok().flatten());
        results.map(|result| result.expect("a rank that panicked has ended this call")).collect()
    }
}

#[cfg(test)]
mod tests;
