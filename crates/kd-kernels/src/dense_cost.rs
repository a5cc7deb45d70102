//! Which tiles of `dense_wgmma` a product is fastest with.

use crate::LoadedUnit;

/// What a variant does: rows and tokens of a tile, CTAs of a cluster, those of them that have a tile of their own, with other
/// tokens, the blocks of 64 of K that a CTA takes of a tile, and the clusters that the device holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    rows: i64,
    tokens: i64,
    cluster: i64,
    share: i64,
    steps: i64,
    clusters: i64,
    /// Blocks of 64 in K.
    depth: i64,
    sms: i64,
}

// In the unit of [`Tiling::cost`], fitted to measurements of an H200 (`docs/kernels/dense.md`).
/// What a tile costs beside its steps, in steps: its first copies, its results.
const AROUND: i64 = 7;
/// What a step costs whatever its size.
const STEP: i64 = 48;
/// What segments that meet in a cluster cost.
const MEETING: i64 = 1600;
/// Rows of 64 weights that come from memory in ten cycles, into all SMs.
const FROM_MEMORY: i64 = 195;

impl Tiling {
    pub(crate) fn of(unit: &LoadedUnit, sms: u32) -> Self {
        let constant = |name| unit.constant(name).unwrap_or(1).max(1);
        let cluster = constant("CLUSTER");
        Self {
            rows: constant("ROWS"),
            tokens: constant("TOKENS"),
            cluster,
            share: constant("SHARE"),
            steps: (constant("K") + 63) / 64 * constant("RUN") / constant("SEGS"),
            clusters: (i64::from(unit.held(sms)) / cluster).max(1),
            depth: (constant("K") + 63) / 64,
            sms: i64::from(sms).max(1),
        }
    }

    /// What a product costs, in rows of shared memory: a step copies a tile's blocks there, and each warpgroup reads its 64
    /// rows and all tokens, 128 bytes a row and cycle. The tensor cores need less time than that. A row of zeros behind the
    /// last token takes longer than a row that is read; the tile with most of them decides where all tiles are one round. Where
    /// that is less than the weights need from memory, these decide, and SMs without a tile slow them down by half of their
    /// share. Equals differ by what they cost without the memory.
    pub(crate) fn cost(&self, m: i64, n: i64) -> (i64, i64) {
        let groups = ceil_div(m, self.tokens * self.share);
        let tiles = groups.saturating_mul(ceil_div(n, self.rows));
        let rounds = ceil_div(tiles, self.clusters);
        let behind = (groups.saturating_mul(self.tokens * self.share) - m).clamp(0, self.tokens);
        let zeros = if rounds == 1 { behind } else { behind / groups };
        let moved = self.rows + self.tokens + ceil_div(self.rows, 64) * (64 + self.tokens);
        let step = moved + zeros * 8 / 5 + STEP;
        let meeting = if self.cluster > self.share { MEETING } else { 0 };
        let places = rounds.saturating_mul(self.sms);
        let idle = (places - tiles.saturating_mul(self.cluster)).max(0);
        let memory = n.saturating_mul(self.depth).saturating_mul(10) / FROM_MEMORY;
        let memory = memory.saturating_add(memory.saturating_mul(idle) / places.max(1) / 2);
        let inside = rounds.saturating_mul(step * (self.steps + AROUND) + meeting);
        (inside.max(memory), inside)
    }
}

/// The variant of least cost, the first declared among equals.
pub(crate) fn cheapest<'a>(
    units: impl Iterator<Item = &'a LoadedUnit>,
    m: i64,
    n: i64,
    sms: u32,
) -> Option<&'static str> {
    units.min_by_key(|unit| Tiling::of(unit, sms).cost(m, n)).map(LoadedUnit::variant)
}

fn ceil_div(a: i64, b: i64) -> i64 {
    (a.max(1) + b - 1) / b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows, tokens, CTAs with a tile of their own, whether all segments go in turn, and the K that it is built for: over the one
    /// and up to the other, in the order of the declaration.
    const VARIANTS: [(i64, i64, i64, bool, i64, i64); 27] = [
        (64, 40, 1, true, 0, 1024),
        (64, 64, 1, true, 0, 2048),
        (96, 40, 1, true, 1024, 2048),
        (128, 64, 1, true, 1024, 2048),
        (56, 40, 1, true, 7168, ANY),
        (56, 64, 1, true, 7168, ANY),
        (104, 24, 1, true, 4096, ANY),
        (104, 40, 1, true, 4096, ANY),
        (160, 40, 1, true, 4096, ANY),
        (160, 64, 1, true, 4096, ANY),
        (64, 40, 1, false, 1024, ANY),
        (64, 64, 1, false, 1024, ANY),
        (128, 64, 1, false, 4096, ANY),
        (256, 40, 1, false, 7168, ANY),
        (256, 64, 1, false, 7168, ANY),
        (64, 72, 1, true, 0, ANY),
        (64, 88, 1, true, 0, 2048),
        (64, 136, 1, true, 0, ANY),
        (128, 136, 1, true, 0, ANY),
        (160, 136, 1, true, 4096, ANY),
        (192, 136, 1, true, 1024, ANY),
        (128, 176, 1, true, 4096, ANY),
        (64, 72, 1, false, 1024, ANY),
        (64, 136, 1, false, 1024, ANY),
        (128, 136, 2, false, 4096, ANY),
        (192, 72, 2, false, 4096, ANY),
        (192, 136, 2, false, 4096, ANY),
    ];
    const ANY: i64 = i64::MAX;

    /// The cheapest tile of the variants that are built for this K, in their order.
    fn best(m: i64, n: i64, k: i64, segments: i64) -> (i64, i64, bool) {
        let tiling = |(rows, tokens, share, turn): (i64, i64, i64, bool)| {
            let (cluster, part) = if turn { (share, 1) } else { (share * segments, segments) };
            // Of 132 SMs, as measured on an H200; of six CTAs as of those around them.
            let clusters = [132, 66, 39, 30, 24, 20, 17, 15][cluster as usize - 1];
            let depth = (k + 63) / 64;
            Tiling { rows, tokens, cluster, share, steps: depth / part, clusters, depth, sms: 132 }
        };
        let (rows, tokens, _, turn) = VARIANTS
            .into_iter()
            .filter(|(.., over, to)| k > *over && k <= *to)
            .map(|(rows, tokens, share, turn, ..)| (rows, tokens, share, turn))
            .min_by_key(|variant| tiling(*variant).cost(m, n))
            .expect("some are always built");
        (rows, tokens, turn)
    }

    /// Measured on an H200 (`docs/kernels/dense.md`).
    #[test]
    fn the_cheapest_is_the_fastest() {
        for (m, n, k, segments, fastest) in [
            (33, 7168, 8192, 4, (56, 40, true)),
            (64, 7168, 8192, 4, (56, 64, true)),
            (33, 12_288, 1536, 3, (96, 40, true)),
            (33, 1536, 1536, 3, (64, 40, false)),
            (64, 1536, 1536, 3, (64, 64, false)),
            (64, 12_288, 1536, 3, (128, 64, true)),
            (33, 20_480, 7168, 4, (160, 40, true)),
            (64, 20_480, 7168, 4, (160, 64, true)),
            (16, 163_840, 7168, 4, (104, 24, true)),
            (33, 163_840, 7168, 4, (104, 40, true)),
            (64, 2112, 7168, 4, (128, 64, false)),
            (33, 1536, 7168, 4, (64, 40, false)),
            (64, 1536, 7168, 4, (64, 64, false)),
            (33, 384, 7168, 4, (64, 40, false)),
            (64, 7168, 1024, 2, (64, 64, true)),
            (132, 2112, 7168, 4, (192, 72, false)),
            (264, 2112, 7168, 4, (192, 136, false)),
            (528, 2112, 7168, 4, (64, 136, true)),
            (132, 1536, 7168, 4, (64, 136, false)),
            (264, 1536, 7168, 4, (128, 136, false)),
            (264, 1536, 1536, 3, (64, 88, true)),
            (132, 1536, 1536, 3, (64, 136, false)),
            (66, 1536, 1536, 3, (64, 72, false)),
            (66, 2112, 7168, 4, (64, 72, false)),
            (99, 2112, 7168, 4, (192, 72, false)),
            (528, 1536, 1536, 3, (64, 136, true)),
            (66, 7168, 1024, 2, (64, 72, true)),
            (132, 7168, 1024, 2, (64, 136, true)),
            (264, 7168, 1024, 2, (128, 136, true)),
            (528, 7168, 1024, 2, (128, 136, true)),
            (132, 20_480, 7168, 4, (160, 136, true)),
            (528, 20_480, 7168, 4, (128, 176, true)),
            (132, 7168, 8192, 4, (64, 136, true)),
            (528, 7168, 8192, 4, (128, 136, true)),
            (264, 12_288, 1536, 3, (192, 136, true)),
        ] {
            assert_eq!(best(m, n, k, segments), fastest, "{m} rows, {k} -> {n}");
        }
    }
}
