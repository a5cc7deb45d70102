//! Where the ranks of one process meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Collective, CollectiveError};
use crate::Matrix;
use crate::ops::add_assign;
use crate::pool::lock;

/// How long a rank looks for the others before it sleeps.
const WATCH: Duration = Duration::from_micros(100);
/// Looks before it lets the system run others, one of which it may be waiting for: some microseconds.
const LOOKS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Reduce,
    Gather,
    GatherRows,
}

#[derive(Debug)]
struct Part {
    call: Call,
    matrix: Matrix,
}

/// Parts are laid down until all are there; then everyone reads all of them.
pub(super) struct Exchange {
    state: Mutex<State>,
    change: Condvar,
    /// Meetings that came to their end or, after the loss of a rank, will not: a change is the sign to look at `state`.
    signs: AtomicUsize,
}

struct State {
    /// What the ranks brought to the meeting that goes on.
    parts: Vec<Option<Part>>,
    /// Meetings that came to their end.
    meetings: usize,
    /// What was brought to the last of them. It stays until every rank has come to the next one, so has read it.
    last: Arc<[Part]>,
    /// The first rank that has ended.
    ended: Option<usize>,
}

impl Exchange {
    pub(super) fn new(ranks: usize) -> Self {
        let parts = (0..ranks).map(|_| None).collect();
        let state = State { parts, meetings: 0, last: Arc::new([]), ended: None };
        Self { state: Mutex::new(state), change: Condvar::new(), signs: AtomicUsize::new(0) }
    }

    /// Lays down the part of `rank` and returns those of all.
    fn meet(&self, rank: usize, part: Part) -> Result<Arc<[Part]>, CollectiveError> {
        let mut state = lock(&self.state);
        let meeting = state.meetings;
        state.parts[rank] = Some(part);
        if state.parts.iter().all(Option::is_some) {
            state.last = state.parts.iter_mut().filter_map(Option::take).collect();
            state.meetings += 1;
            self.sign(&state);
            return Ok(Arc::clone(&state.last));
        }
        let signs = self.signs.load(Ordering::Relaxed);
        while state.meetings == meeting {
            if let Some(rank) = state.ended {
                return Err(CollectiveError::Lost { rank });
            }
            state = self.wait(state, signs);
        }
        Ok(Arc::clone(&state.last))
    }

    /// Waits for a sign after number `signs`: at first awake, in case the others are near.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, signs: usize) -> MutexGuard<'a, State> {
        drop(state);
        for _ in 0..LOOKS {
            if self.signs.load(Ordering::Acquire) != signs {
                break;
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        while self.signs.load(Ordering::Acquire) == signs && started.elapsed() < WATCH {
            // The rank that this one waits for may need this very processor.
            std::thread::yield_now();
        }
        let mut state = lock(&self.state);
        while self.signs.load(Ordering::Relaxed) == signs {
            state = self.change.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Signs are given under the lock, so that nobody goes to sleep between looking and waiting.
    fn sign(&self, _state: &MutexGuard<'_, State>) {
        self.signs.fetch_add(1, Ordering::Release);
        self.change.notify_all();
    }
}

/// One rank's seat. Whoever waits for it after it is dropped is told so.
pub(super) struct Member<'a> {
    exchange: &'a Exchange,
    rank: usize,
    ranks: usize,
}

impl<'a> Member<'a> {
    pub(super) fn new(exchange: &'a Exchange, rank: usize) -> Self {
        let ranks = lock(&exchange.state).parts.len();
        Self { exchange, rank, ranks }
    }

    /// All parts, of which none calls something else than rank 0 or has a shape that does not go with it.
    fn meet(&self, call: Call, matrix: Matrix) -> Result<Arc<[Part]>, CollectiveError> {
        let parts = self.exchange.meet(self.rank, Part { call, matrix })?;
        let first = &parts[0];
        let fits = |part: &Part| {
            let columns = first.call == Call::Gather || part.matrix.cols() == first.matrix.cols();
            let rows = first.call == Call::GatherRows || part.matrix.rows() == first.matrix.rows();
            part.call == first.call && rows && columns
        };
        match parts.iter().position(|part| !fits(part)) {
            None => Ok(parts),
            Some(rank) => {
                let (found, expected) = (parts[rank].describe(), first.describe());
                Err(CollectiveError::Mismatch { rank, found, expected })
            }
        }
    }
}

impl Part {
    fn describe(&self) -> String {
        let name = match self.call {
            Call::Reduce => "all_reduce",
            Call::Gather => "all_gather",
            Call::GatherRows => "all_gather_rows",
        };
        format!("{name} [{}, {}]", self.matrix.rows(), self.matrix.cols())
    }
}

impl Collective for Member<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_reduce(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        let parts = self.meet(Call::Reduce, part)?;
        let mut sum = parts[0].matrix.clone();
        parts[1..].iter().for_each(|part| add_assign(&mut sum, &part.matrix));
        Ok(sum)
    }

    fn all_gather(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        let parts = self.meet(Call::Gather, part)?;
        Ok(Matrix::beside(&parts.iter().map(|part| &part.matrix).collect::<Vec<_>>()))
    }

    fn all_gather_rows(&self, part: Matrix) -> Result<Matrix, CollectiveError> {
        let parts = self.meet(Call::GatherRows, part)?;
        Ok(Matrix::below(&parts.iter().map(|part| &part.matrix).collect::<Vec<_>>()))
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.exchange.state);
        state.ended.get_or_insert(self.rank);
        self.exchange.sign(&state);
    }
}
