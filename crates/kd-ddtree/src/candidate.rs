//! Candidates of the search, the integers that order them, and one stream's heap of them.

use std::collections::BinaryHeap;

use crate::order::{from_ordered, to_ordered};
use crate::scorer::Scorer;
use crate::tree::{MAX_NODES, Tree};

/// Most streams of one forest.
pub const MAX_STREAMS: usize = 1 << STREAM_BITS;

const DEPTH_BITS: u32 = 8;
const CREATED_BITS: u32 = 9;
const PARENT_BITS: u32 = 8;
const RANK_BITS: u32 = 7;
const STREAM_BITS: u32 = 24;

const _: () = assert!(DEPTH_BITS + CREATED_BITS + PARENT_BITS + RANK_BITS == u32::BITS);
const _: () = assert!(DEPTH_BITS + STREAM_BITS == u32::BITS);
// A full tree creates no candidates: parents are rows below MAX_NODES, ranks count siblings taken before, depths are at
// most one more than the deepest such parent's, and each node but the last creates two candidates after the first.
const _: () =
    assert!(MAX_NODES <= 1 << PARENT_BITS && MAX_NODES <= 1 << RANK_BITS && MAX_NODES < 1 << DEPTH_BITS);
const _: () = assert!(2 * MAX_NODES <= 1 << CREATED_BITS);

/// A candidate in one integer that orders the candidates of a stream: score descending, then depth and creation
/// ascending, that is their complements descending. Creation numbers differ, so what follows them never decides: the
/// row of the parent and the number of better siblings, which say what the candidate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(score: f32, depth: usize, created: usize, parent: usize, rank: usize) -> Key {
        let order = !(depth << CREATED_BITS | created) as u32 & ((1 << (DEPTH_BITS + CREATED_BITS)) - 1);
        let ties = (order << PARENT_BITS | parent as u32) << RANK_BITS | rank as u32;
        Key(u64::from(to_ordered(score)) << 32 | u64::from(ties))
    }

    fn score(self) -> f32 {
        from_ordered((self.0 >> 32) as u32)
    }

    fn parent(self) -> usize {
        (self.0 >> RANK_BITS) as usize % (1 << PARENT_BITS)
    }

    fn rank(self) -> usize {
        self.0 as usize % (1 << RANK_BITS)
    }
}

/// The best candidate of a stream in one integer that orders streams by them: score descending, then depth and stream
/// ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head(u64);

impl Head {
    fn new(key: Key, stream: usize) -> Head {
        Head(key.0 & !((1 << STREAM_BITS) - 1) | (!stream as u64 & ((1 << STREAM_BITS) - 1)))
    }

    /// The candidate's score.
    pub(crate) fn score(self) -> f32 {
        from_ordered((self.0 >> 32) as u32)
    }

    pub(crate) fn stream(self) -> usize {
        !self.0 as usize % MAX_STREAMS
    }
}

/// The candidates of one stream.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    waiting: BinaryHeap<Key>,
    created: usize,
}

impl Frontier {
    /// Starts over with the best child of the root.
    pub(crate) fn start<S: Scorer>(&mut self, scorer: &mut S, tree: &Tree) {
        self.waiting.clear();
        self.created = 0;
        let first = self.create(scorer, tree, 0, 0);
        self.waiting.extend(first);
    }

    /// The best candidate, among those of other streams.
    pub(crate) fn head(&self, stream: usize) -> Option<Head> {
        self.waiting.peek().map(|&key| Head::new(key, stream))
    }

    /// Moves the best candidate into the tree and creates its next sibling and its best child. False, with the candidate
    /// dropped, if the scorer has taken back what it offered.
    pub(crate) fn advance<S: Scorer>(&mut self, scorer: &mut S, tree: &mut Tree) -> bool {
        let Some(&key) = self.waiting.peek() else { return false };
        let (parent, rank) = (key.parent(), key.rank());
        let Some(child) = scorer.child(tree, parent, rank) else {
            self.waiting.pop();
            return false;
        };
        let row = tree.push(parent, child.token, key.score());
        let (sibling, child) = if tree.len() < MAX_NODES {
            (self.create(scorer, tree, parent, rank + 1), self.create(scorer, tree, row, 0))
        } else {
            (None, None)
        };
        // What was created takes the place of what was taken: one sift instead of two.
        if let (Some(key), Some(mut top)) = (sibling.or(child), self.waiting.peek_mut()) {
            *top = key;
        } else {
            self.waiting.pop();
        }
        self.waiting.extend(sibling.and(child));
        true
    }

    /// A candidate for the child at `rank` below row `parent`, if the scorer has one.
    fn create<S: Scorer>(&mut self, scorer: &mut S, tree: &Tree, parent: usize, rank: usize) -> Option<Key> {
        let child = scorer.child(tree, parent, rank)?;
        let score = tree.score(parent) + child.logprob;
        if !score.is_finite() {
            return None;
        }
        let key = Key::new(score, tree.depth(parent) + 1, self.created, parent, rank);
        self.created += 1;
        Some(key)
    }
}
