//! AVX2 with FMA: two registers a vector.

use std::arch::x86_64::*;

use half::bf16;

use super::Kernel;
use super::lanes::{Digits, LANES, Lanes, Words};

/// AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

/// Instructions of a level, inside methods of its token.
macro_rules! instructions {
    ($($body:tt)*) => {
        // SAFETY: a token is only made by `detect`, on a processor that has the instructions; every pointer is made
        // from a reference to at least as many elements as the instruction reads or writes, and none needs alignment.
        unsafe { $($body)* }
    };
}

/// Applies a 256-bit instruction to both halves.
macro_rules! halves {
    ($instruction:ident($($v:ident),*)) => {
        instructions!([$instruction($($v[0]),*), $instruction($($v[1]),*)])
    };
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    type Codes = [__m256i; 2];
    /// In 16 bits: 16 products of at most 15 · 128 each fit.
    type Sums = [__m256i; 2];
    const VECTORS: usize = 8;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        instructions!(super::avx2(kernel, self))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        instructions!([_mm256_set1_ps(value); 2])
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        instructions!([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))])
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        instructions! {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        halves!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // The second operand is the result where either is NaN.
        halves!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn clamp(self, v: Self::V, low: f32, high: f32) -> Self::V {
        let (low, high) = (self.splat(low), self.splat(high));
        // The second operand is the result where either is NaN.
        let v = halves!(_mm256_max_ps(low, v));
        halves!(_mm256_min_ps(high, v))
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        instructions!([_mm256_round_ps::<NEAREST>(v[0]), _mm256_round_ps::<NEAREST>(v[1])])
    }

    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        instructions! {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvtps_epi32(n[0]), bias);
            let high = _mm256_add_epi32(_mm256_cvtps_epi32(n[1]), bias);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            ]
        }
    }

    #[inline(always)]
    fn widen(self, from: &[bf16; LANES]) -> Self::V {
        let eight = |i: usize| {
            instructions! {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        };
        [eight(0), eight(1)]
    }

    #[inline(always)]
    fn halves(self, words: &Words) -> (Self::V, Self::V) {
        let words = |i: usize| instructions!(_mm256_loadu_si256(words.as_ptr().add(32 * i).cast()));
        let low = |i| instructions!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words(i))));
        let mask = instructions!(_mm256_set1_epi32(0xffff_0000u32 as i32));
        let high = |i| instructions!(_mm256_castsi256_ps(_mm256_and_si256(words(i), mask)));
        ([low(0), low(1)], [high(0), high(1)])
    }

    #[inline(always)]
    fn codes(self, words: &Words) -> (Self::Codes, Self::Codes) {
        instructions! {
            let nibble = _mm256_set1_epi8(15);
            let low = _mm256_loadu_si256(words.as_ptr().cast());
            let high = _mm256_loadu_si256(words.as_ptr().add(32).cast());
            let shifted = |words| _mm256_and_si256(_mm256_srli_epi32::<4>(words), nibble);
            (
                [_mm256_and_si256(low, nibble), _mm256_and_si256(high, nibble)],
                [shifted(low), shifted(high)],
            )
        }
    }

    #[inline(always)]
    fn open(self, _start: i32) -> [Self::Sums; 3] {
        instructions!([[_mm256_setzero_si256(); 2]; 3])
    }

    #[inline(always)]
    fn code_products<const D: usize, const I: usize>(
        self,
        sums: Self::Sums,
        codes: Self::Codes,
        group: &Digits,
    ) -> Self::Sums {
        instructions! {
            let digits = _mm256_set1_epi32(i32::from_le_bytes(group.four::<D, I>()));
            [
                _mm256_add_epi16(sums[0], _mm256_maddubs_epi16(codes[0], digits)),
                _mm256_add_epi16(sums[1], _mm256_maddubs_epi16(codes[1], digits)),
            ]
        }
    }

    #[inline(always)]
    fn close(self, [low, middle, high]: [Self::Sums; 3], start: i32) -> Self::V {
        let total = |half: usize| {
            instructions! {
                let sum = |sums: Self::Sums| _mm256_madd_epi16(sums[half], _mm256_set1_epi16(1));
                let high = _mm256_slli_epi32::<8>(sum(high));
                let high = _mm256_slli_epi32::<8>(_mm256_add_epi32(high, sum(middle)));
                let low = _mm256_add_epi32(sum(low), _mm256_set1_epi32(start));
                _mm256_cvtepi32_ps(_mm256_add_epi32(high, low))
            }
        };
        [total(0), total(1)]
    }

    #[inline(always)]
    fn join4(self, v: [Self::V; 4]) -> [f32; 4] {
        let [a, b, c, d] = v;
        let mut sums = [0.0; 4];
        instructions! {
            let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
            let (c, d) = (_mm256_add_ps(c[0], c[1]), _mm256_add_ps(d[0], d[1]));
            let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
            // Two lanes of each: a a c c, b b d d.
            let two = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
            let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
            // a · c · and b · d · to a c b d, then to a b c d.
            let acbd = _mm_shuffle_ps::<0x88>(ac, bd);
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_shuffle_ps::<0xd8>(acbd, acbd));
        }
        sums
    }

    #[inline(always)]
    fn prefetch(self, memory: *const Words) {
        instructions!(_mm_prefetch::<_MM_HINT_T0>(memory.cast()));
    }
}
