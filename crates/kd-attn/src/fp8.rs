//! Cache entries with e4m3 latents: what pages of the second format hold.
//!
//! An entry is a latent and a rotated key. The latent is stored as one FP8 code a value (e4m3: sign, four exponent bits of bias 7,
//! three of mantissa, no infinities, at most 448) and one scale for all of it, 2^k with the least k for which no value exceeds
//! 448 · 2^k. The key is stored in bf16. So a code times its scale has four significant bits: it is exact in bf16, no value is ever
//! saturated, and an entry that comes from a page goes back into one unchanged.

use std::ops::Range;

use half::bf16;

/// Greatest value of a code.
const MOST: f32 = 448.0;

/// The code of NaN.
const NAN: u8 = 0x7f;

/// The exponents that a scale may have. Below, the smallest code would not be a normal bf16 number; above, its products on a GPU
/// would leave bf16 on the way. A normed latent is at most √width times a gain; one beyond `448 · 2^7` becomes NaN, which ends
/// the request that it belongs to.
const EXPONENTS: Range<i32> = -117..8;

/// The layout of an entry: `latent` codes, `rope` bf16 values, the scale in f32, and zeros up to 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8Entry {
    /// Width of the latent.
    pub latent: usize,
    /// Width of the rotated key.
    pub rope: usize,
}

impl Fp8Entry {
    /// Bytes of the scale and of what fills its 16.
    const TAIL: usize = 16;

    /// Values of an entry.
    pub fn width(&self) -> usize {
        self.latent + self.rope
    }

    /// Bytes of an entry: 656 for K2.6's 512 and 64.
    pub fn bytes(&self) -> usize {
        self.latent + 2 * self.rope + Self::TAIL
    }

    /// What [`Self::decode`] gives of an encoded `entry`.
    ///
    /// # Panics
    /// If the entry has another width.
    pub fn round(&self, entry: &mut [f32]) {
        let (latent, key) = entry.split_at_mut(self.latent);
        let scale = scale(latent);
        latent.iter_mut().for_each(|value| *value = decode(encode(*value, scale)) * scale);
        key.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
    }

    /// Stores an entry.
    ///
    /// # Panics
    /// If the entry or its place has another size.
    pub fn encode(&self, entry: &[f32], to: &mut [u8]) {
        let (latent, key) = entry.split_at(self.latent);
        let (codes, rest) = to.split_at_mut(self.latent);
        let (keys, tail) = rest.split_at_mut(2 * self.rope);
        let scale = scale(latent);
        codes.iter_mut().zip(latent).for_each(|(code, &value)| *code = encode(value, scale));
        for (to, &value) in keys.chunks_exact_mut(2).zip(key) {
            to.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
        }
        tail[..4].copy_from_slice(&scale.to_le_bytes());
        tail[4..].fill(0);
    }

    /// The values of a stored entry: every one a bf16 number.
    ///
    /// # Panics
    /// If the entry or its place has another size.
    pub fn decode(&self, from: &[u8], entry: &mut [f32]) {
        let (latent, key) = entry.split_at_mut(self.latent);
        let (codes, rest) = from.split_at(self.latent);
        let (keys, tail) = rest.split_at(2 * self.rope);
        let scale = f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
        latent.iter_mut().zip(codes).for_each(|(value, &code)| *value = decode(code) * scale);
        for (value, from) in key.iter_mut().zip(keys.chunks_exact(2)) {
            *value = bf16::from_le_bytes([from[0], from[1]]).to_f32();
        }
    }
}

/// The scale of a latent: the least power of two that lets no value exceed [`MOST`]; NaN if one is not finite or too large.
fn scale(latent: &[f32]) -> f32 {
    // f32::max would drop NaN. The order of the bits of positive floats is theirs, NaN above infinity.
    let most = latent.iter().map(|value| value.to_bits() & !(1 << 31)).max().unwrap_or(0);
    // 448 is 1.75 · 2^8: a mantissa above 1.75 takes the next power of two.
    let above = 0x7f_ffff - (MOST.to_bits() & 0x7f_ffff);
    let k = (((most + above) >> 23) as i32 - 127 - 8).max(EXPONENTS.start);
    if k < EXPONENTS.end { power(k) } else { f32::NAN }
}

/// 2^k for a normal f32.
const fn power(k: i32) -> f32 {
    f32::from_bits(((k + 127) as u32) << 23)
}

/// The code nearest to `value / scale`, ties to the even one.
fn encode(value: f32, scale: f32) -> u8 {
    if scale.is_nan() {
        return NAN;
    }
    // Exact: a power of two, and what becomes subnormal here is far below half of the smallest code.
    let value = value * (1.0 / scale);
    let bits = value.to_bits();
    let (sign, bits) = ((bits >> 24) as u8 & 0x80, bits & !(1 << 31));
    let size = if bits < power(-6).to_bits() {
        // Subnormal codes are multiples of 2^-9; the eighth is the first normal one.
        (value.abs() * power(9)).round_ties_even() as u8
    } else {
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - ((127 - 7) << 3)) as u8
    };
    sign | size
}

/// The value of a code.
fn decode(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

/// The values of all codes.
static VALUES: [f32; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        let (sign, size) = ((code as u32 & 0x80) << 24, code as u32 & 0x7f);
        let value = match size {
            0x7f => f32::NAN,
            0..8 => size as f32 * power(-9),
            _ => f32::from_bits((size << 20) + ((127 - 7) << 23)),
        };
        values[code] = f32::from_bits(value.to_bits() | sign);
        code += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRY: Fp8Entry = Fp8Entry { latent: 32, rope: 8 };

    fn stored(values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut back) = (vec![0xaa; ENTRY.bytes()], vec![0.0; ENTRY.width()]);
        ENTRY.encode(values, &mut bytes);
        ENTRY.decode(&bytes, &mut back);
        back
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn codes_are_those_of_e4m3() {
        // Open Compute Project, OFP8 1.0, table 2.
        let table = [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0x80, -0.0),
        ];
        for (code, value) in table {
            assert_eq!(decode(code).to_bits(), f32::to_bits(value), "{code:#x}");
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
        for code in (0..=255).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(encode(decode(code), 1.0), code, "{code:#x}");
        }
    }

    #[test]
    fn a_value_takes_the_nearest_code_and_half_way_the_even_one() {
        let values: Vec<f32> = (0..0x7f).map(decode).collect();
        for (code, pair) in (0u8..).zip(values.windows(2)) {
            let middle = f32::midpoint(pair[0], pair[1]);
            let (below, above) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
            let even = code + code % 2;
            assert_eq!([below, middle, above].map(|v| encode(v, 1.0)), [code, even, code + 1], "{middle}");
            assert_eq!([-below, -middle].map(|v| encode(v, 1.0)), [code | 0x80, even | 0x80], "-{middle}");
        }
    }

    #[test]
    fn the_scale_is_the_least_that_saturates_nothing() {
        let up = |value: f32| f32::from_bits(value.to_bits() + 1);
        assert_eq!(
            [448.0, up(448.0), 1.75, up(1.75), -1.75].map(|v| scale(&[0.5, v])),
            [1.0, 2.0, power(-8), power(-7), power(-8)]
        );
        assert_eq!(scale(&[0.0; 4]), power(-117), "zeros have a scale too");
        assert_eq!(scale(&[448.0 * 128.0]), 128.0);
        for bad in [up(448.0 * 128.0), f32::NAN, -f32::NAN, f32::INFINITY, f32::MAX] {
            assert!(scale(&[1.0, bad, 2.0]).is_nan(), "{bad}");
            let mut entry = [1.0; 40];
            entry[5] = bad;
            assert!(stored(&entry)[..32].iter().all(|value| value.is_nan()), "{bad}");
            ENTRY.round(&mut entry);
            assert!(entry[..32].iter().all(|value| value.is_nan()), "{bad}");
        }
    }

    fn entries() -> impl Strategy<Value = Vec<f32>> {
        let value = (-30i32..6, -2.0f32..2.0).prop_map(|(k, value)| value * power(k));
        let any = prop_oneof![4 => value, 1 => Just(0.0), 1 => (0x70u8..0x7f).prop_map(decode)];
        (prop::collection::vec(any, ENTRY.width()), -80i32..2)
            .prop_map(|(values, k)| values.into_iter().map(|value| value * power(k)).collect())
    }

    proptest! {
        #[test]
        fn what_a_page_gives_back_is_what_scratch_holds(entry in entries()) {
            let mut rounded = entry.clone();
            ENTRY.round(&mut rounded);
            prop_assert_eq!(bits(&rounded), bits(&stored(&entry)));
        }

        /// A token may be committed from what a pass gave: nothing may be lost twice.
        #[test]
        fn a_stored_entry_is_stored_again_unchanged(entry in entries()) {
            let once = stored(&entry);
            prop_assert_eq!(bits(&stored(&once)), bits(&once));
        }

        #[test]
        fn a_stored_value_is_a_bf16_number_near_its_own(entry in entries()) {
            let (back, scale) = (stored(&entry), scale(&entry[..ENTRY.latent]));
            for (i, (&value, &back)) in entry.iter().zip(&back).enumerate() {
                prop_assert_eq!(bf16::from_f32(back).to_f32().to_bits(), back.to_bits());
                // Half of the last of four bits; below 2^-6 scales, half of the smallest code.
                let bound = if i < ENTRY.latent { (value.abs() / 16.0).max(scale * power(-10)) } else { value.abs() / 256.0 };
                prop_assert!((back - value).abs() <= bound, "{} became {}, scale {}", value, back, scale);
            }
            prop_assert!(back[..ENTRY.latent].iter().all(|back| back.abs() <= MOST * scale));
        }
    }
}
