//! Weight rows that kernels decode as they go.
//!
//! Every form is read sixteen 32-bit words at a time, one word a lane. A word holds one f32, two bf16 or eight codes: `s`
//! elements. So lane `i` of a block of `16 · s` elements takes elements `s · i … s · i + s − 1`, in order.

use half::bf16;

use super::lanes::{LANES, Lanes, Line, Words};

/// A row of weights in some stored form, read in blocks of sixteen words.
pub trait WeightRow: Copy {
    /// Activations of a block, `[elements of a word][lanes]`.
    #[doc(hidden)]
    type Lines: Copy + 'static + AsRef<[Line]>;
    /// What has been read of a block and not taken yet.
    #[doc(hidden)]
    type Open<L: Lanes>: Copy;
    /// Elements of a word.
    #[doc(hidden)]
    const STEPS: usize;
    /// Whether the sum of a block is multiplied by scales before it is added.
    #[doc(hidden)]
    const SCALED: bool;

    /// Number of weights.
    fn len(self) -> usize;

    /// Whether there are no weights.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Cuts lines of activations into those of blocks.
    #[doc(hidden)]
    fn lines(x: &[Line]) -> &[Self::Lines];

    /// Whole blocks.
    #[doc(hidden)]
    fn whole(self) -> usize;

    /// Whether a part of a block follows the whole ones.
    #[doc(hidden)]
    fn has_tail(self) -> bool;

    /// Blocks `first … end − 1`, the tail counted as one, as a row of their own.
    #[doc(hidden)]
    fn part(self, first: usize, end: usize) -> Self;

    /// Reads whole block `i`.
    #[doc(hidden)]
    fn open<L: Lanes>(self, lanes: L, i: usize) -> Self::Open<L>;

    /// Reads the tail as a block. Activations are zero where it has no elements.
    #[doc(hidden)]
    fn open_tail<L: Lanes>(self, lanes: L) -> Self::Open<L>;

    /// Takes element `step` of every lane; steps come in order.
    #[doc(hidden)]
    fn take<L: Lanes>(lanes: L, open: &mut Self::Open<L>, step: usize) -> L::V;

    /// The scales of whole block `i`.
    #[doc(hidden)]
    #[inline(always)]
    fn scales<L: Lanes>(self, lanes: L, _i: usize) -> L::V {
        lanes.splat(1.0)
    }

    /// The scales of the tail.
    #[doc(hidden)]
    #[inline(always)]
    fn tail_scales<L: Lanes>(self, lanes: L) -> L::V {
        lanes.splat(1.0)
    }

    /// Asks for whole block `i` to be brought near.
    #[doc(hidden)]
    fn prefetch<L: Lanes>(self, lanes: L, i: usize);
}

/// A row that can be read in the order of its elements, two vectors at a time.
pub trait PlainRow: WeightRow {
    /// Elements `32 i …` of those that fill two vectors.
    #[doc(hidden)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V);

    /// The elements after the last whole pair of vectors, padded with zeros.
    #[doc(hidden)]
    fn rest(self) -> [Line; 2];
}

/// The words of a row: whole blocks and the rest.
#[derive(Debug, Clone, Copy)]
struct Blocks<'a> {
    whole: &'a [Words],
    tail: &'a [u8],
}

impl<'a> Blocks<'a> {
    #[inline(always)]
    fn new<T: bytemuck::Pod>(row: &'a [T]) -> Self {
        let (whole, tail) = bytemuck::cast_slice(row).as_chunks();
        Self { whole, tail }
    }

    #[inline(always)]
    fn part(self, first: usize, end: usize) -> Self {
        let last = end.min(self.whole.len());
        Self { whole: &self.whole[first..last], tail: if end > last { self.tail } else { &[] } }
    }

    #[inline(always)]
    fn bytes(self) -> usize {
        size_of_val(self.whole) + self.tail.len()
    }

    #[inline(always)]
    fn padded_tail<L: Lanes>(self, lanes: L) -> L::W {
        let mut words = [0; size_of::<Words>()];
        words[..self.tail.len()].copy_from_slice(self.tail);
        lanes.words(&words)
    }
}

/// What follows from the words alone, for rows of elements of `$bits` bits, `$steps` a word.
macro_rules! over_blocks {
    ($bits:literal, $steps:literal) => {
        type Lines = [Line; $steps];
        type Open<L: Lanes> = L::W;
        const STEPS: usize = $steps;

        #[inline(always)]
        fn len(self) -> usize {
            self.blocks.bytes() * 8 / $bits
        }

        #[inline(always)]
        fn lines(x: &[Line]) -> &[Self::Lines] {
            x.as_chunks().0
        }

        #[inline(always)]
        fn whole(self) -> usize {
            self.blocks.whole.len()
        }

        #[inline(always)]
        fn has_tail(self) -> bool {
            !self.blocks.tail.is_empty()
        }

        #[inline(always)]
        fn open<L: Lanes>(self, lanes: L, i: usize) -> L::W {
            lanes.words(&self.blocks.whole[i])
        }

        #[inline(always)]
        fn open_tail<L: Lanes>(self, lanes: L) -> L::W {
            self.blocks.padded_tail(lanes)
        }

        #[inline(always)]
        fn prefetch<L: Lanes>(self, lanes: L, i: usize) {
            if let Some(words) = self.blocks.whole.get(i) {
                lanes.prefetch(words);
            }
        }
    };
}

/// f32 as they are.
#[derive(Debug, Clone, Copy)]
pub struct F32Row<'a> {
    blocks: Blocks<'a>,
}

impl<'a> From<&'a [f32]> for F32Row<'a> {
    #[inline(always)]
    fn from(row: &'a [f32]) -> Self {
        Self { blocks: Blocks::new(row) }
    }
}

impl WeightRow for F32Row<'_> {
    over_blocks!(32, 1);
    const SCALED: bool = false;

    #[inline(always)]
    fn part(self, first: usize, end: usize) -> Self {
        Self { blocks: self.blocks.part(first, end) }
    }

    #[inline(always)]
    fn take<L: Lanes>(lanes: L, open: &mut L::W, _step: usize) -> L::V {
        lanes.floats(*open)
    }
}

impl PlainRow for F32Row<'_> {
    #[inline(always)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        let words = |i: usize| lanes.floats(lanes.words(&self.blocks.whole[i]));
        (words(2 * i), words(2 * i + 1))
    }

    #[inline(always)]
    fn rest(self) -> [Line; 2] {
        let mut out = [[0.0; LANES]; 2];
        let rest = self.part(self.whole() & !1, self.whole() + 1).blocks;
        let words = rest.whole.iter().flatten().chain(rest.tail);
        for (to, &from) in bytemuck::cast_slice_mut::<_, u8>(&mut out).iter_mut().zip(words) {
            *to = from;
        }
        out
    }
}

/// bf16, widened.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Row<'a> {
    blocks: Blocks<'a>,
}

impl<'a> From<&'a [bf16]> for Bf16Row<'a> {
    #[inline(always)]
    fn from(row: &'a [bf16]) -> Self {
        Self { blocks: Blocks::new(row) }
    }
}

impl WeightRow for Bf16Row<'_> {
    over_blocks!(16, 2);
    const SCALED: bool = false;

    #[inline(always)]
    fn part(self, first: usize, end: usize) -> Self {
        Self { blocks: self.blocks.part(first, end) }
    }

    #[inline(always)]
    fn take<L: Lanes>(lanes: L, open: &mut L::W, step: usize) -> L::V {
        if step == 0 { lanes.low_halves(*open) } else { lanes.high_halves(*open) }
    }
}

impl PlainRow for Bf16Row<'_> {
    #[inline(always)]
    fn pair<L: Lanes>(self, lanes: L, i: usize) -> (L::V, L::V) {
        lanes.widen(&self.blocks.whole[i])
    }

    #[inline(always)]
    fn rest(self) -> [Line; 2] {
        let mut out = [[0.0; LANES]; 2];
        let rest = self.blocks.tail.as_chunks().0.iter();
        for (to, &bits) in out.as_flattened_mut().iter_mut().zip(rest) {
            *to = f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16);
        }
        out
    }
}

/// INT4 codes with a scale for each 32: four of them in a block.
#[derive(Debug, Clone, Copy)]
pub struct Int4Row<'a> {
    blocks: Blocks<'a>,
    scales: &'a [[bf16; 4]],
    tail_scales: &'a [bf16],
}

impl<'a> Int4Row<'a> {
    /// Four words and a scale for each group of 32.
    #[inline(always)]
    pub(crate) fn new(words: &'a [i32], scales: &'a [bf16]) -> Self {
        let blocks = Blocks::new(words);
        let (scales, tail_scales) = scales.as_chunks();
        Self { blocks, scales: &scales[..blocks.whole.len()], tail_scales }
    }
}

impl WeightRow for Int4Row<'_> {
    over_blocks!(4, 8);
    const SCALED: bool = true;

    #[inline(always)]
    fn part(self, first: usize, end: usize) -> Self {
        let blocks = self.blocks.part(first, end);
        Self { scales: &self.scales[first..first + blocks.whole.len()], blocks, ..self }
    }

    #[inline(always)]
    fn take<L: Lanes>(lanes: L, open: &mut L::W, _step: usize) -> L::V {
        let (codes, rest) = lanes.codes(*open);
        *open = rest;
        codes
    }

    #[inline(always)]
    fn scales<L: Lanes>(self, lanes: L, i: usize) -> L::V {
        lanes.spread(&self.scales[i])
    }

    #[inline(always)]
    fn tail_scales<L: Lanes>(self, lanes: L) -> L::V {
        let mut four = [bf16::ZERO; 4];
        four[..self.tail_scales.len()].copy_from_slice(self.tail_scales);
        lanes.spread(&four)
    }
}

/// Decoded blocks of a row.
#[derive(Debug)]
pub(super) struct Decoded<'a, R: WeightRow> {
    pub(super) lines: &'a [R::Lines],
    pub(super) scales: &'a [Line],
}

impl<R: WeightRow> Clone for Decoded<'_, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: WeightRow> Copy for Decoded<'_, R> {}

impl<'a, R: WeightRow> WeightRow for Decoded<'a, R> {
    type Lines = R::Lines;
    type Open<L: Lanes> = &'a R::Lines;
    const STEPS: usize = R::STEPS;
    const SCALED: bool = R::SCALED;

    #[inline(always)]
    fn len(self) -> usize {
        self.lines.len() * R::STEPS * LANES
    }

    #[inline(always)]
    fn lines(x: &[Line]) -> &[R::Lines] {
        R::lines(x)
    }

    #[inline(always)]
    fn whole(self) -> usize {
        self.lines.len()
    }

    #[inline(always)]
    fn has_tail(self) -> bool {
        false
    }

    #[inline(always)]
    fn part(self, first: usize, end: usize) -> Self {
        Self { lines: &self.lines[first..end], scales: &self.scales[first..end] }
    }

    #[inline(always)]
    fn open<L: Lanes>(self, _lanes: L, i: usize) -> &'a R::Lines {
        &self.lines[i]
    }

    #[inline(always)]
    fn open_tail<L: Lanes>(self, _lanes: L) -> &'a R::Lines {
        unreachable!("decoded rows have whole blocks")
    }

    #[inline(always)]
    fn take<L: Lanes>(lanes: L, open: &mut &'a R::Lines, step: usize) -> L::V {
        lanes.load(&open.as_ref()[step])
    }

    #[inline(always)]
    fn scales<L: Lanes>(self, lanes: L, i: usize) -> L::V {
        lanes.load(&self.scales[i])
    }

    #[inline(always)]
    fn prefetch<L: Lanes>(self, _lanes: L, _i: usize) {}
}
