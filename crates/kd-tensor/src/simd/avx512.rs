//! AVX-512 with integer dot products: one register a vector.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::Kernel;
use super::avx2::Avx2;
use super::lanes::{Digits, LANES, Lanes, Words};
use crate::int4::GROUP;

/// AVX-512 F, BW, DQ, VL and VNNI, with AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(Avx2);

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| found).map(Self)
    }
}

/// Instructions of a level, inside methods of its token.
macro_rules! instructions {
    ($($body:tt)*) => {
        // SAFETY: a token is only made by `detect`, on a processor that has the instructions; every pointer is made
        // from a reference to at least as many elements as the instruction, or its mask, reads or writes, and none needs alignment.
        unsafe { $($body)* }
    };
}

/// The mask of the first lanes, at most all.
#[inline(always)]
fn first(lanes: usize) -> u16 {
    ((1u32 << lanes.min(LANES)) - 1) as u16
}

/// `vpdpbusd` with four digits of memory for all lanes.
///
/// The compiler would address them by a base and an index, and such an instruction is two on the way to its port: too many
/// for half of what a processor decodes, which is all that a thread has beside another one.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn dot_bytes<const D: usize, const I: usize>(mut sums: __m512i, codes: __m512i, group: &Digits) -> __m512i {
    // SAFETY: the digits lie inside the group.
    unsafe {
        asm!(
            "vpdpbusd {sums}, {codes}, dword ptr [{group} + {place}]{{1to16}}",
            sums = inout(zmm_reg) sums,
            codes = in(zmm_reg) codes,
            group = in(reg) group,
            place = const GROUP * D + 4 * I,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sums
}

impl Lanes for Avx512 {
    type V = __m512;
    type Codes = __m512i;
    type Sums = __m512i;
    const VECTORS: usize = 32;

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
    fn load_part(self, from: &[f32], fill: f32) -> __m512 {
        // Lanes that the mask leaves out are not read.
        instructions!(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(from.len()), from.as_ptr()))
    }

    #[inline(always)]
    fn store_part(self, v: __m512, to: &mut [f32]) {
        instructions!(_mm512_mask_storeu_ps(to.as_mut_ptr(), first(to.len()), v))
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
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // The second operand is the result where either is NaN.
        instructions!(_mm512_max_ps(a, b))
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
    fn widen(self, from: &[bf16; LANES]) -> __m512 {
        instructions! {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn halves(self, words: &Words) -> (__m512, __m512) {
        instructions! {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let high = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(high))
        }
    }

    #[inline(always)]
    fn codes(self, words: &Words) -> (__m512i, __m512i) {
        instructions! {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let nibble = _mm512_set1_epi8(15);
            (_mm512_and_si512(words, nibble), _mm512_and_si512(_mm512_srli_epi32::<4>(words), nibble))
        }
    }

    #[inline(always)]
    fn open(self, start: i32) -> [__m512i; 3] {
        instructions!([_mm512_set1_epi32(start), _mm512_setzero_si512(), _mm512_setzero_si512()])
    }

    #[inline(always)]
    fn code_products<const D: usize, const I: usize>(
        self,
        sums: __m512i,
        codes: __m512i,
        group: &Digits,
    ) -> __m512i {
        instructions!(dot_bytes::<D, I>(sums, codes, group))
    }

    #[inline(always)]
    fn close(self, [low, middle, high]: [__m512i; 3], _start: i32) -> __m512 {
        instructions! {
            let high = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), middle);
            _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
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
    fn largest(self, v: __m512) -> f32 {
        instructions!(_mm512_reduce_max_ps(v))
    }

    #[inline(always)]
    fn prefetch(self, memory: *const Words) {
        self.0.prefetch(memory);
    }
}
