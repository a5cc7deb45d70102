//! Seeded inputs for self-tests.

use half::bf16;

/// SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*): small, and good enough for
/// test inputs.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Values in -scale..scale.
    pub(super) fn values(&mut self, count: usize, scale: f32) -> Vec<bf16> {
        let mut value = || (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..count).map(|_| bf16::from_f32(value() * scale)).collect()
    }
}
