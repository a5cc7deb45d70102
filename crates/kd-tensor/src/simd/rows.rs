//! Rows that are read in the order of their elements.

use half::bf16;

use super::lanes::{LANES, Lanes, Line};

/// A row that is read two vectors at a time.
pub trait PlainRow: Copy {
    /// Elements `32 i …` of those that fill two vectors.
    #[doc(hidden)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V);

    /// The elements after the last whole pair of vectors, padded with zeros.
    #[doc(hidden)]
    fn rest(self) -> [Line; 2];
}

impl PlainRow for &[f32] {
    #[inline(always)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        let [low, high] = &self.as_chunks().0.as_chunks().0[i];
        (lanes.load(low), lanes.load(high))
    }

    #[inline(always)]
    fn rest(self) -> [Line; 2] {
        let mut out = [[0.0; LANES]; 2];
        let rest = self.as_chunks::<{ 2 * LANES }>().1;
        out.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
        out
    }
}

impl PlainRow for &[bf16] {
    #[inline(always)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        let [low, high] = &self.as_chunks().0.as_chunks().0[i];
        (lanes.widen(low), lanes.widen(high))
    }

    #[inline(always)]
    fn rest(self) -> [Line; 2] {
        let mut out = [[0.0; LANES]; 2];
        let rest = self.as_chunks::<{ 2 * LANES }>().1;
        out.as_flattened_mut().iter_mut().zip(rest).for_each(|(out, w)| *out = w.to_f32());
        out
    }
}
