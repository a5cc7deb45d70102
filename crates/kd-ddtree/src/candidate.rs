//! Candidates of the search, the integer that orders them, and one stream's list of them.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::order::{from_ordered, to_ordered};
use crate::scorer::Scorer;
use crate::tree::{MAX_NODES, Tree};

/// Most streams of one forest.
pub const MAX_STREAMS: usize = 1 << STREAM_BITS;

const DEPTH_BITS: u32 = 8;
const STREAM_BITS: u32 = 15;
const CREATED_BITS: u32 = 9;
/// Candidates that one tree can create: the first, and two for each node taken.
const MAX_CANDIDATES: usize = 2 * MAX_NODES + 1;

const _: () = assert!(DEPTH_BITS + STREAM_BITS + CREATED_BITS == u32::BITS);
// A candidate may be one deeper than the deepest node.
const _: () = assert!(MAX_NODES + 1 < 1 << DEPTH_BITS && MAX_CANDIDATES <= 1 << CREATED_BITS);

/// A heap entry in one integer that orders as candidates do: score descending, then depth, stream and creation
/// ascending, that is their complements descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    fn new(score: f32, depth: usize, stream: usize, created: usize) -> Key {
        let ties = (depth << STREAM_BITS | stream) << CREATED_BITS | created;
        Key(u64::from(to_ordered(score)) << 32 | u64::from(!(ties as u32)))
    }

    pub(crate) fn score(self) -> f32 {
        from_ordered((self.0 >> 32) as u32)
    }

    pub(crate) fn stream(self) -> usize {
        (!self.0 >> CREATED_BITS) as usize % MAX_STREAMS
    }

    fn created(self) -> usize {
        !self.0 as usize % (1 << CREATED_BITS)
    }
}

/// A token that could be the next node.
#[derive(Debug, Clone, Copy, Default)]
struct Candidate {
    token: u32,
    /// Row of the parent.
    parent: u8,
    /// Number of better siblings.
    rank: u8,
}

// A rank is at most the number of siblings taken before it.
const _: () = assert!(MAX_NODES <= u8::MAX as usize);

/// The candidates of one stream.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    waiting: BinaryHeap<Key>,
    /// By creation number.
    candidates: Vec<Candidate>,
}

impl Frontier {
    /// Starts over with the best child of the root.
    pub(crate) fn start<S: Scorer>(&mut self, scorer: &mut S, tree: &Tree, stream: usize) {
        self.waiting.clear();
        self.candidates.clear();
        self.waiting.extend(create(&mut self.candidates, scorer, tree, stream, 0, 0));
    }

    /// The key of the best candidate.
    pub(crate) fn best(&self) -> Option<Key> {
        self.waiting.peek().copied()
    }

    /// Moves the best candidate, if there is one, into the tree; creates its next sibling and its best child.
    pub(crate) fn advance<S: Scorer>(&mut self, scorer: &mut S, tree: &mut Tree, stream: usize) {
        let Some(mut top) = self.waiting.peek_mut() else { return };
        let Candidate { token, parent, rank } = self.candidates[top.created()];
        let (parent, rank) = (usize::from(parent), usize::from(rank));
        let row = tree.push(parent, token, top.score());
        // The sibling takes the place of the candidate it follows: one sift instead of two.
        match create(&mut self.candidates, scorer, tree, stream, parent, rank + 1) {
            Some(sibling) => {
                *top = sibling;
                drop(top);
            }
            None => {
                PeekMut::pop(top);
            }
        }
        if let Some(child) = create(&mut self.candidates, scorer, tree, stream, row, 0) {
            self.waiting.push(child);
        }
    }
}

/// Creates the candidate at `rank` below row `parent`, if the scorer has one.
fn create<S: Scorer>(
    candidates: &mut Vec<Candidate>,
    scorer: &mut S,
    tree: &Tree,
    stream: usize,
    parent: usize,
    rank: usize,
) -> Option<Key> {
    let child = scorer.child(tree, parent, rank)?;
    let score = tree.score(parent) + child.logprob;
    if !score.is_finite() {
        return None;
    }
    let key = Key::new(score, tree.depth(parent) + 1, stream, candidates.len());
    candidates.push(Candidate { token: child.token, parent: parent as u8, rank: rank as u8 });
    Some(key)
}
