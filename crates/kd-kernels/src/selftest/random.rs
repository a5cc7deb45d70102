//! Seeded inputs for self-tests.

use half::bf16;

/// SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*): small, and good enough for
/// test inputs.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value in `-1..1`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A number below `limit`; 0 if there is none.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }

    /// Values in `-scale..scale`.
    pub fn values(&mut self, count: usize, scale: f32) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(self.unit() * scale)).collect()
    }

    /// `count` different numbers below `limit`, in random order.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn distinct(&mut self, count: usize, limit: usize) -> Vec<usize> {
        assert!(count <= limit, "{count} different numbers below {limit}");
        let mut all: Vec<usize> = (0..limit).collect();
        for i in 0..count {
            let other = i + self.below(limit - i);
            all.swap(i, other);
        }
        all.truncate(count);
        all
    }
}
