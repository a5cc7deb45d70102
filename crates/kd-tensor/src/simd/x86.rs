//! AVX2 with FMA, and AVX-512.

use std::arch::x86_64::*;

use half::bf16;

use super::Kernel;
use super::lanes::{LANES, Lanes, Words};

/// AVX2 and FMA: two registers a vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

/// AVX-512 F, BW, DQ and VL, with AVX2 and FMA: one register a vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        (found && Avx2::detect().is_some()).then_some(Self(()))
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

impl Lanes for Avx512 {
    type V = __m512;
    type W = __m512i;
    const FEW: usize = 4;
    const MANY: usize = 8;
    const WIDE: usize = 6;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        instructions!(super::avx512(kernel, self))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        instructions!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        instructions!(_mm512_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; LANES]) {
        instructions!(_mm512_storeu_ps(to.as_mut_ptr(), v))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instructions!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn clamp(self, v: __m512, low: f32, high: f32) -> __m512 {
        // The second operand is the result where either is NaN.
        instructions!(_mm512_min_ps(self.splat(high), _mm512_max_ps(self.splat(low), v)))
    }

    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        instructions!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        instructions! {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn widen(self, from: &Words) -> (__m512, __m512) {
        instructions! {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().add(32).cast()));
            (self.low_halves(low), self.low_halves(high))
        }
    }

    #[inline(always)]
    fn words(self, from: &Words) -> __m512i {
        instructions!(_mm512_loadu_si512(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn floats(self, words: __m512i) -> __m512 {
        instructions!(_mm512_castsi512_ps(words))
    }

    #[inline(always)]
    fn low_halves(self, words: __m512i) -> __m512 {
        instructions!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)))
    }

    #[inline(always)]
    fn high_halves(self, words: __m512i) -> __m512 {
        instructions!(_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000u32 as i32))))
    }

    #[inline(always)]
    fn codes(self, words: __m512i) -> (__m512, __m512i) {
        instructions! {
            let codes = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
            // A permutation looks at the lowest four bits of its index alone.
            (_mm512_permutexvar_ps(words, codes), _mm512_srli_epi32::<4>(words))
        }
    }

    #[inline(always)]
    fn spread(self, from: &[bf16; 4]) -> __m512 {
        instructions! {
            let places = _mm512_setr_epi32(0, 0, 0, 0, 1 << 16, 1 << 16, 1 << 16, 1 << 16,
                2 << 16, 2 << 16, 2 << 16, 2 << 16, 3 << 16, 3 << 16, 3 << 16, 3 << 16);
            let scales = _mm512_castsi128_si512(_mm_loadl_epi64(from.as_ptr().cast()));
            // The high half of every lane takes a scale; the low half becomes zero.
            _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaa_aaaa, places, scales))
        }
    }

    #[inline(always)]
    fn unzip(self, a: __m512, b: __m512) -> (__m512, __m512) {
        instructions! {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
    }

    #[inline(always)]
    fn join4(self, v: [__m512; 4]) -> [f32; 4] {
        let [a, b, c, d] = v;
        let mut sums = [0.0; 4];
        instructions! {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            // Four lanes of each, then two, then one at the start of each quarter.
            let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4e>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xb1>(two));
            let quarters = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            let abcd = _mm512_castps512_ps128(_mm512_permutexvar_ps(quarters, one));
            _mm_storeu_ps(sums.as_mut_ptr(), abcd);
        }
        sums
    }

    #[inline(always)]
    fn prefetch(self, memory: &Words) {
        Avx2(()).prefetch(memory);
    }
}

/// Applies a 256-bit instruction to both halves.
macro_rules! halves {
    ($instruction:ident($($v:ident),*)) => {
        instructions!([$instruction($($v[0]),*), $instruction($($v[1]),*)])
    };
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    type W = [__m256i; 2];
    const FEW: usize = 2;
    const MANY: usize = 4;
    const WIDE: usize = 3;

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
    fn widen(self, from: &Words) -> (Self::V, Self::V) {
        let eight = |i: usize| {
            instructions!(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(16 * i).cast())))
        };
        (self.low_halves([eight(0), eight(1)]), self.low_halves([eight(2), eight(3)]))
    }

    #[inline(always)]
    fn words(self, from: &Words) -> Self::W {
        instructions!([
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(32).cast())
        ])
    }

    #[inline(always)]
    fn floats(self, words: Self::W) -> Self::V {
        halves!(_mm256_castsi256_ps(words))
    }

    #[inline(always)]
    fn low_halves(self, words: Self::W) -> Self::V {
        let words = instructions!(words.map(|word| _mm256_slli_epi32::<16>(word)));
        halves!(_mm256_castsi256_ps(words))
    }

    #[inline(always)]
    fn high_halves(self, words: Self::W) -> Self::V {
        let mask = instructions!([_mm256_set1_epi32(0xffff_0000u32 as i32); 2]);
        let words = halves!(_mm256_and_si256(words, mask));
        halves!(_mm256_castsi256_ps(words))
    }

    #[inline(always)]
    fn codes(self, words: Self::W) -> (Self::V, Self::W) {
        let (nibble, eight) = instructions!(([_mm256_set1_epi32(15); 2], [_mm256_set1_epi32(8); 2]));
        let codes = halves!(_mm256_and_si256(words, nibble));
        let codes = halves!(_mm256_sub_epi32(codes, eight));
        let rest = instructions!([_mm256_srli_epi32::<4>(words[0]), _mm256_srli_epi32::<4>(words[1])]);
        (halves!(_mm256_cvtepi32_ps(codes)), rest)
    }

    #[inline(always)]
    fn spread(self, from: &[bf16; 4]) -> Self::V {
        let four = |scale: bf16| instructions!(_mm_set1_ps(f32::from_bits(u32::from(scale.to_bits()) << 16)));
        let [a, b, c, d] = from.map(four);
        instructions!([_mm256_set_m128(b, a), _mm256_set_m128(d, c)])
    }

    #[inline(always)]
    fn unzip(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        // Within quarters first: lanes 0 2 8 10 and 4 6 12 14 of a vector lie crosswise until they are put in order.
        const ORDER: i32 = 0b11_01_10_00;
        instructions! {
            let even = |v: [__m256; 2]| _mm256_shuffle_ps::<0x88>(v[0], v[1]);
            let odd = |v: [__m256; 2]| _mm256_shuffle_ps::<0xdd>(v[0], v[1]);
            let ordered = |v: __m256| _mm256_castpd_ps(_mm256_permute4x64_pd::<ORDER>(_mm256_castps_pd(v)));
            ([ordered(even(a)), ordered(even(b))], [ordered(odd(a)), ordered(odd(b))])
        }
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
    fn prefetch(self, memory: &Words) {
        instructions!(_mm_prefetch::<_MM_HINT_T0>(memory.as_ptr().cast()));
    }
}
