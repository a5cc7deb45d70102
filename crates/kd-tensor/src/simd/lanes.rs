//! Sixteen f32 lanes as an instruction set offers them.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::Kernel;

/// Lanes of a vector. Every level has as many, so that sums are formed in the same order.
pub(crate) const LANES: usize = 16;
/// A vector of f32 in memory.
pub(crate) type Line = [f32; LANES];
/// A vector of 32-bit words in memory, of weights in any stored form.
pub(crate) type Words = [u8; 4 * LANES];

/// 32 activations as whole numbers.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Digits {
    /// Their digits, the lowest first.
    pub(crate) bytes: [[u8; 32]; 3],
    /// What is added to the sum of their products: −8 times their sum, as codes are stored with an offset of 8.
    pub(crate) start: i32,
}

/// One instruction set. A value of the type is the proof that the processor has it.
///
/// All levels compute the same thing lane by lane; those with a fused multiply-add agree bitwise.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// Four INT4 codes a lane.
    type Codes: Copy;
    /// Sums of products of codes and digits.
    type Sums: Copy;

    /// Vectors that the registers hold.
    const VECTORS: usize;

    /// Runs a kernel as a function of its own, so that it has the registers to itself. The function must not be one
    /// for an instruction set: those are inlined whatever their attributes say.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same value in every lane.
    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// The first lanes from memory, `fill` in those after them. At most [`LANES`] elements.
    #[inline(always)]
    fn load_part(self, from: &[f32], fill: f32) -> Self::V {
        let mut line = [fill; LANES];
        line.iter_mut().zip(from).for_each(|(lane, &x)| *lane = x);
        self.load(&line)
    }
    /// As many of the first lanes as there is room for.
    #[inline(always)]
    fn store_part(self, v: Self::V, to: &mut [f32]) {
        let mut line = [0.0; LANES];
        self.store(v, &mut line);
        to.iter_mut().zip(line).for_each(|(x, lane)| *x = lane);
    }
    /// `a · b + c`.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger of both; `b` where `a` is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v` held between `low` and `high`; NaN stays NaN.
    fn clamp(self, v: Self::V, low: f32, high: f32) -> Self::V;
    /// The nearest whole number.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for whole `n` in −126 … 127; anything for NaN.
    fn pow2(self, n: Self::V) -> Self::V;
    /// bf16 as they are.
    fn widen(self, from: &[bf16; LANES]) -> Self::V;
    /// The bf16 in the low halves of the words, and those in the high halves.
    fn halves(self, words: &Words) -> (Self::V, Self::V);
    /// The codes in the low halves of the bytes, and those in the high halves.
    fn codes(self, words: &Words) -> (Self::Codes, Self::Codes);
    /// No products yet, for one digit of 32 activations. `start` is added once, here or by [`Lanes::close`].
    fn open(self, start: i32) -> [Self::Sums; 3];
    /// `sums` plus the four products a lane of 0 ≤ codes < 16 with digit `D` of activations `4 · I …` of a group; up to eight
    /// times.
    fn code_products<const D: usize, const I: usize>(
        self,
        sums: Self::Sums,
        codes: Self::Codes,
        group: &Digits,
    ) -> Self::Sums;
    /// `start + Σ_d 256^d · sums[d]`: exact in 32 bits, then rounded to f32.
    fn close(self, sums: [Self::Sums; 3], start: i32) -> Self::V;
    /// The sums over the lanes of four vectors, each in the order of [`join`].
    fn join4(self, v: [Self::V; 4]) -> [f32; 4];
    /// The largest lane; none is NaN.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let mut most = [0.0; LANES];
        self.store(v, &mut most);
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                most[i] = if most[i + width] > most[i] { most[i + width] } else { most[i] };
            }
        }
        most[0]
    }
    /// Asks for memory that will soon be read. Any address will do.
    fn prefetch(self, memory: *const Words);
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

impl Digits {
    /// Digit `D` of activations `4 · I …`.
    #[inline(always)]
    pub(super) fn four<const D: usize, const I: usize>(&self) -> [u8; 4] {
        self.bytes[D].as_chunks().0[I]
    }
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
    type Codes = Words;
    type Sums = [i32; LANES];
    const VECTORS: usize = 8;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
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
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
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
        from.map(bf16::to_f32)
    }

    #[inline(always)]
    fn halves(self, words: &Words) -> (Self::V, Self::V) {
        let bits = |i: usize| u32::from_le_bytes(words.as_chunks().0[i]);
        (each(|i| f32::from_bits(bits(i) << 16)), each(|i| f32::from_bits(bits(i) & 0xffff_0000)))
    }

    #[inline(always)]
    fn codes(self, words: &Words) -> (Words, Words) {
        (words.map(|byte| byte & 15), words.map(|byte| byte >> 4))
    }

    #[inline(always)]
    fn open(self, start: i32) -> [Self::Sums; 3] {
        [[start; LANES], [0; LANES], [0; LANES]]
    }

    #[inline(always)]
    fn code_products<const D: usize, const I: usize>(
        self,
        mut sums: Self::Sums,
        codes: Words,
        group: &Digits,
    ) -> Self::Sums {
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
            for (&code, digit) in codes.iter().zip(group.four::<D, I>()) {
                *sum += i32::from(code) * i32::from(digit as i8);
            }
        }
        sums
    }

    #[inline(always)]
    fn close(self, [low, middle, high]: [Self::Sums; 3], _start: i32) -> Self::V {
        each(|i| low[i].wrapping_add(((high[i] << 8) + middle[i]) << 8) as f32)
    }

    #[inline(always)]
    fn join4(self, v: [Self::V; 4]) -> [f32; 4] {
        v.map(join)
    }

    #[inline(always)]
    fn prefetch(self, _: *const Words) {}
}
