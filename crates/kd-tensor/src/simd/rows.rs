//! Weight rows that kernels decode as they go.

use half::bf16;

use super::lanes::{CHUNK, LANES, Lanes};

/// A row of weights in some stored form, readable in chunks of 32 f32.
pub trait WeightRow: Copy {
    /// Number of weights.
    fn len(self) -> usize;

    /// Whether there are no weights.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Some of its whole chunks, as a row of their own.
    #[doc(hidden)]
    fn chunks(self, first: usize, count: usize) -> Self;

    /// Whole chunk `i`.
    #[doc(hidden)]
    fn chunk<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V);

    /// Asks for the weights to be brought near.
    #[doc(hidden)]
    fn prefetch<L: Lanes>(self, lanes: L);

    /// The weights after the last whole chunk, padded with zeros.
    #[doc(hidden)]
    fn tail(self) -> [f32; CHUNK];
}

/// f32 as they are.
#[derive(Debug, Clone, Copy)]
pub struct F32Row<'a> {
    chunks: &'a [[f32; CHUNK]],
    tail: &'a [f32],
}

impl<'a> From<&'a [f32]> for F32Row<'a> {
    #[inline(always)]
    fn from(row: &'a [f32]) -> Self {
        let (chunks, tail) = row.as_chunks();
        Self { chunks, tail }
    }
}

impl<'a> F32Row<'a> {
    /// The whole chunks.
    #[inline(always)]
    pub(crate) fn whole(self) -> &'a [[f32; CHUNK]] {
        self.chunks
    }

    #[inline(always)]
    pub(crate) fn of_chunks(chunks: &'a [[f32; CHUNK]]) -> Self {
        Self { chunks, tail: &[] }
    }
}

/// The two vectors of a chunk.
#[inline(always)]
pub(crate) fn split<T>(chunk: &[T; CHUNK]) -> (&[T; LANES], &[T; LANES]) {
    let (halves, _) = chunk.as_chunks();
    (&halves[0], &halves[1])
}

/// The two vectors of a chunk, to be written.
#[inline(always)]
pub(crate) fn split_mut<T>(chunk: &mut [T; CHUNK]) -> (&mut [T; LANES], &mut [T; LANES]) {
    let (low, high) = chunk.split_at_mut(LANES);
    (&mut low.as_chunks_mut().0[0], &mut high.as_chunks_mut().0[0])
}

impl WeightRow for F32Row<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.chunks.len() * CHUNK + self.tail.len()
    }

    #[inline(always)]
    fn chunks(self, first: usize, count: usize) -> Self {
        Self { chunks: &self.chunks[first..first + count], tail: &[] }
    }

    #[inline(always)]
    fn chunk<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        let (low, high) = split(&self.chunks[i]);
        (lanes.load(low), lanes.load(high))
    }

    #[inline(always)]
    fn prefetch<L: Lanes>(self, lanes: L) {
        lanes.prefetch(self.chunks);
    }

    #[inline(always)]
    fn tail(self) -> [f32; CHUNK] {
        let mut out = [0.0; CHUNK];
        out[..self.tail.len()].copy_from_slice(self.tail);
        out
    }
}

/// bf16, widened.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Row<'a> {
    chunks: &'a [[bf16; CHUNK]],
    tail: &'a [bf16],
}

impl<'a> From<&'a [bf16]> for Bf16Row<'a> {
    #[inline(always)]
    fn from(row: &'a [bf16]) -> Self {
        let (chunks, tail) = row.as_chunks();
        Self { chunks, tail }
    }
}

impl WeightRow for Bf16Row<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.chunks.len() * CHUNK + self.tail.len()
    }

    #[inline(always)]
    fn chunks(self, first: usize, count: usize) -> Self {
        Self { chunks: &self.chunks[first..first + count], tail: &[] }
    }

    #[inline(always)]
    fn chunk<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        let (low, high) = split(&self.chunks[i]);
        (lanes.widen(low), lanes.widen(high))
    }

    #[inline(always)]
    fn prefetch<L: Lanes>(self, lanes: L) {
        lanes.prefetch(self.chunks);
    }

    #[inline(always)]
    fn tail(self) -> [f32; CHUNK] {
        let mut out = [0.0; CHUNK];
        for (out, w) in out.iter_mut().zip(self.tail) {
            *out = w.to_f32();
        }
        out
    }
}

/// INT4 codes with one scale a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Int4Row<'a> {
    words: &'a [[i32; 4]],
    scales: &'a [bf16],
}

impl<'a> Int4Row<'a> {
    /// Four words and a scale for each group of 32.
    #[inline(always)]
    pub(crate) fn new(words: &'a [i32], scales: &'a [bf16]) -> Self {
        Self { words: &words.as_chunks().0[..scales.len()], scales }
    }
}

impl WeightRow for Int4Row<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.scales.len() * CHUNK
    }

    #[inline(always)]
    fn chunks(self, first: usize, count: usize) -> Self {
        let range = first..first + count;
        Self { words: &self.words[range.clone()], scales: &self.scales[range] }
    }

    #[inline(always)]
    fn chunk<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        lanes.int4(&self.words[i], self.scales[i])
    }

    #[inline(always)]
    fn prefetch<L: Lanes>(self, lanes: L) {
        lanes.prefetch(self.words);
        lanes.prefetch(self.scales);
    }

    #[inline(always)]
    fn tail(self) -> [f32; CHUNK] {
        [0.0; CHUNK]
    }
}
