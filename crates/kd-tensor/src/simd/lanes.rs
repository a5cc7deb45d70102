//! Sixteen f32 lanes as an instruction set offers them.

use half::bf16;

/// Lanes of a vector. Every level has as many, so that sums are formed in the same order.
pub(crate) const LANES: usize = 16;
/// Elements that the kernels take at a time: two vectors.
pub(crate) const CHUNK: usize = 2 * LANES;

/// One instruction set. A value of the type is the proof that the processor has it.
///
/// All levels compute the same thing lane by lane; those with a fused multiply-add agree bitwise.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;

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
    fn widen(self, from: &[bf16; LANES]) -> Self::V;
    /// A group of 32 codes, low nibble first, as `(code − 8) · scale`. The product is exact.
    fn int4(self, words: &[i32; 4], scale: bf16) -> (Self::V, Self::V);
    /// The sums over the lanes of four vectors, each in the order of [`join`].
    fn join4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Asks for memory that will soon be read.
    fn prefetch<T>(self, memory: &[T]);
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
    fn widen(self, from: &[bf16; LANES]) -> Self::V {
        each(|i| f32::from_bits(u32::from(from[i].to_bits()) << 16))
    }

    #[inline(always)]
    fn int4(self, words: &[i32; 4], scale: bf16) -> (Self::V, Self::V) {
        let scale = f32::from_bits(u32::from(scale.to_bits()) << 16);
        let half = |first: usize| each(|i| ((words[first + i / 8] >> (4 * (i % 8)) & 15) - 8) as f32 * scale);
        (half(0), half(2))
    }

    #[inline(always)]
    fn join4(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(join)
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &[T]) {}
}
