//! Sixteen f32 lanes as an instruction set offers them.

use half::bf16;

use super::Kernel;

/// Lanes of a vector. Every level has as many, so that sums are formed in the same order.
pub(crate) const LANES: usize = 16;
/// A vector of f32 in memory.
pub(crate) type Line = [f32; LANES];
/// A vector of 32-bit words in memory, of weights in any stored form.
pub(crate) type Words = [u8; 4 * LANES];

/// One instruction set. A value of the type is the proof that the processor has it.
///
/// All levels compute the same thing lane by lane; those with a fused multiply-add agree bitwise.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// Sixteen 32-bit words.
    type W: Copy;

    /// Most activation rows of a tile of `ROWS` weight rows that are decoded in it (see [`super::Kernel::run`]).
    const FEW: usize;
    /// Most activation rows of a tile of `HALF` as many.
    const MANY: usize;
    /// Most activation rows of a tile of `ROWS` weight rows that are f32 already.
    const WIDE: usize;

    /// Runs a kernel as a function of its own, so that it has the registers to itself. The function must not be one
    /// for an instruction set: those are inlined whatever their attributes say.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same value in every lane.
    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// `a · b + c`.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v` held between `low` and `high`; NaN stays NaN.
    fn clamp(self, v: Self::V, low: f32, high: f32) -> Self::V;
    /// The nearest whole number.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for whole `n` in −126 … 127; anything for NaN.
    fn pow2(self, n: Self::V) -> Self::V;
    /// The bf16 of the words in order.
    fn widen(self, from: &Words) -> (Self::V, Self::V);
    fn words(self, from: &Words) -> Self::W;
    /// The words as f32.
    fn floats(self, words: Self::W) -> Self::V;
    /// The bf16 in the low halves of the words.
    fn low_halves(self, words: Self::W) -> Self::V;
    /// The bf16 in the high halves of the words.
    fn high_halves(self, words: Self::W) -> Self::V;
    /// The lowest nibbles less 8, and the words without them.
    fn codes(self, words: Self::W) -> (Self::V, Self::W);
    /// Each value in four lanes.
    fn spread(self, from: &[bf16; 4]) -> Self::V;
    /// The elements at even places of `a` and then `b`, and those at odd places.
    fn unzip(self, a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// The sums over the lanes of four vectors, each in the order of [`join`].
    fn join4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Asks for memory that will soon be read.
    fn prefetch(self, memory: &Words);
}

/// The sum of all lanes: halves onto each other, then quarters, and so on.
#[inline(always)]
pub(crate) fn join(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// Any processor: a multiply-add rounds the product first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(i);
    }
    out
}

impl Lanes for Portable {
    type V = [f32; LANES];
    type W = [u32; LANES];
    const FEW: usize = 2;
    const MANY: usize = 4;
    const WIDE: usize = 2;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run::<_, 2, 1, 4>(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn clamp(self, v: Self::V, low: f32, high: f32) -> Self::V {
        each(|i| v[i].clamp(low, high))
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        each(|i| v[i].round_ties_even())
    }

    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        each(|i| f32::from_bits((n[i] as i32).wrapping_add(127).wrapping_shl(23) as u32))
    }

    #[inline(always)]
    fn widen(self, from: &Words) -> (Self::V, Self::V) {
        let bits = from.as_chunks::<2>().0;
        let value = |i: usize| f32::from_bits(u32::from(u16::from_le_bytes(bits[i])) << 16);
        (each(value), each(|i| value(LANES + i)))
    }

    #[inline(always)]
    fn words(self, from: &Words) -> Self::W {
        let words = from.as_chunks::<4>().0;
        let mut out = [0; LANES];
        out.iter_mut().zip(words).for_each(|(out, &word)| *out = u32::from_le_bytes(word));
        out
    }

    #[inline(always)]
    fn floats(self, words: Self::W) -> Self::V {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn low_halves(self, words: Self::W) -> Self::V {
        words.map(|word| f32::from_bits(word << 16))
    }

    #[inline(always)]
    fn high_halves(self, words: Self::W) -> Self::V {
        words.map(|word| f32::from_bits(word & 0xffff_0000))
    }

    #[inline(always)]
    fn codes(self, words: Self::W) -> (Self::V, Self::W) {
        (words.map(|word| ((word & 15) as i32 - 8) as f32), words.map(|word| word >> 4))
    }

    #[inline(always)]
    fn spread(self, from: &[bf16; 4]) -> Self::V {
        each(|i| f32::from_bits(u32::from(from[i / 4].to_bits()) << 16))
    }

    #[inline(always)]
    fn unzip(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let at = |i: usize| if i < LANES { a[i] } else { b[i - LANES] };
        (each(|i| at(2 * i)), each(|i| at(2 * i + 1)))
    }

    #[inline(always)]
    fn join4(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(join)
    }

    #[inline(always)]
    fn prefetch(self, _: &Words) {}
}
