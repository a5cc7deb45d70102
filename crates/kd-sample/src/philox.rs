//! Philox4x32_10-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Weyl increments of the key: the golden ratio and sqrt(3) - 1, as 32-bit fractions.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox with four 32-bit words and ten rounds: a keyed bijection from a 128-bit counter to 128 random bits.
///
/// It has no state, so every block can be computed on its own and in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Philox4x32_10 {
    key: [u32; 2],
}

impl Philox4x32_10 {
    /// The generator of the given key words.
    pub const fn new(key: [u32; 2]) -> Self {
        Self { key }
    }

    /// The four random words of one counter.
    #[inline]
    pub const fn block(self, counter: [u32; 4]) -> [u32; 4] {
        let [mut c0, mut c1, mut c2, mut c3] = counter;
        let [mut k0, mut k1] = self.key;
        let mut round = 0;
        while round < ROUNDS {
            let p0 = MULTIPLIERS[0] as u64 * c0 as u64;
            let p1 = MULTIPLIERS[1] as u64 * c2 as u64;
            (c0, c1, c2, c3) =
                ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
            k0 = k0.wrapping_add(KEY_STEPS[0]);
            k1 = k1.wrapping_add(KEY_STEPS[1]);
            round += 1;
        }
        [c0, c1, c2, c3]
    }
}
