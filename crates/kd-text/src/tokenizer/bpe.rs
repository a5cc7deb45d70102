//! Byte-pair merging of one word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocab::Vocab;

/// No token has this rank, because 256 control ids follow the last one.
const NONE: u32 = u32::MAX;

/// One part of the word, stored at the position where it starts.
#[derive(Clone, Copy)]
struct Part {
    /// Its token.
    id: u32,
    /// Start of the part before it; unused in the first.
    previous: u32,
    /// Where it ends, which is where the next part starts.
    end: u32,
    /// Rank of the token that it forms with the next part, `NONE` if they form none or this part is gone.
    pair: u32,
}

/// Working memory of [`Merger::merge`], kept between words.
#[derive(Default)]
pub(crate) struct Merger {
    parts: Vec<Part>,
    /// Pairs, lowest first; an entry is stale unless `parts[start].pair` is still its rank.
    heap: BinaryHeap<Reverse<Pair>>,
}

/// Rank in the upper half and start in the lower: orders by rank, then from left to right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair(u64);

impl Pair {
    fn new(rank: u32, start: u32) -> Reverse<Self> {
        Reverse(Self(u64::from(rank) << 32 | u64::from(start)))
    }

    fn rank(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn start(self) -> u32 {
        self.0 as u32
    }
}

impl Merger {
    /// Appends the tokens of `word` to `out`. Starting from single bytes, the adjacent pair that forms the token of
    /// lowest rank is merged, the leftmost of equals first, until no pair forms a token. O(n log n).
    pub(crate) fn merge(&mut self, vocab: &Vocab, word: &[u8], out: &mut Vec<u32>) {
        if let Some(id) = vocab.rank(word) {
            out.push(id);
            return;
        }
        self.start(vocab, word);
        while let Some(Reverse(pair)) = self.heap.pop() {
            if self.parts[pair.start() as usize].pair == pair.rank() {
                self.join(vocab, word, pair.start(), pair.rank());
            }
        }
        let mut start = 0;
        while let Some(part) = self.parts.get(start) {
            out.push(part.id);
            start = part.end as usize;
        }
    }

    /// One part a byte, and every pair that forms a token.
    fn start(&mut self, vocab: &Vocab, word: &[u8]) {
        self.parts.clear();
        let mut pairs = std::mem::take(&mut self.heap).into_vec();
        pairs.clear();
        for (start, byte) in (0u32..).zip(word) {
            let at = start as usize;
            let pair = word.get(at..at + 2).and_then(|bytes| vocab.rank(bytes)).unwrap_or(NONE);
            if pair != NONE {
                pairs.push(Pair::new(pair, start));
            }
            let id = vocab.byte(*byte);
            self.parts.push(Part { id, previous: start.saturating_sub(1), end: start + 1, pair });
        }
        self.heap = BinaryHeap::from(pairs);
    }

    /// Merges the part at `start` with the next one into the token `id`, and renews the two pairs around it.
    fn join(&mut self, vocab: &Vocab, word: &[u8], start: u32, id: u32) {
        let gone = self.parts[start as usize].end as usize;
        let end = self.parts[gone].end;
        self.parts[gone].pair = NONE;
        let part = &mut self.parts[start as usize];
        part.id = id;
        part.end = end;
        let previous = part.previous;
        if let Some(next) = self.parts.get_mut(end as usize) {
            next.previous = start;
        }
        self.renew_pair(vocab, word, start);
        if start > 0 {
            self.renew_pair(vocab, word, previous);
        }
    }

    fn renew_pair(&mut self, vocab: &Vocab, word: &[u8], start: u32) {
        let next = self.parts.get(self.parts[start as usize].end as usize);
        let pair = next.and_then(|next| vocab.rank(&word[start as usize..next.end as usize])).unwrap_or(NONE);
        self.parts[start as usize].pair = pair;
        if pair != NONE {
            self.heap.push(Pair::new(pair, start));
        }
    }
}
