//! Which tiles of `dense_wgmma` a product is fastest with.

use crate::LoadedUnit;

/// What a variant does: rows and tokens of a tile, CTAs of a cluster, those of them that have a tile of their own, the
/// blocks of 64 of K that a CTA takes of a tile, and the clusters that the device holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    rows: i64,
    tokens: i64,
    cluster: i64,
    share: i64,
    steps: i64,
    clusters: i64,
}

// In the unit of [`Tiling::cost`], fitted to measurements of an H200 (`docs/kernels/dense.md`).
/// What a tile costs beside its steps, in steps: its first copies, its results.
const AROUND: i64 = 7;
/// What a step costs whatever its size.
const STEP: i64 = 48;
/// What segments that meet in a cluster cost.
const MEETING: i64 = 1600;

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
        }
    }

    /// What a product costs, in rows of shared memory: a step copies a tile's blocks there, and each warpgroup reads its 64
    /// rows and all tokens, 128 bytes a row and cycle. The tensor cores need less time than that. A row of zeros behind the
    /// last token takes longer than a row that is read.
    pub(crate) fn cost(&self, m: i64, n: i64) -> i64 {
        let tiles = ceil_div(m, self.tokens * self.share).saturating_mul(ceil_div(n, self.rows));
        let zeros = self.tokens - self.tokens.min(m);
        let moved = self.rows + self.tokens + ceil_div(self.rows, 64) * (64 + self.tokens);
        let step = moved + zeros * 8 / 5 + STEP;
        let meeting = if self.cluster > self.share { MEETING } else { 0 };
        ceil_div(tiles, self.clusters).saturating_mul(step * (self.steps + AROUND) + meeting)
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

    /// Rows, tokens, CTAs with a tile of their own, and whether all segments go in turn.
    const VARIANTS: [(i64, i64, i64, bool); 12] = [
        (64, 72, 1, true),
        (64, 88, 1, true),
        (64, 136, 1, true),
        (128, 136, 1, true),
        (160, 136, 1, true),
        (192, 136, 1, true),
        (128, 176, 1, true),
        (64, 72, 1, false),
        (64, 136, 1, false),
        (128, 136, 2, false),
        (192, 72, 2, false),
        (192, 136, 2, false),
    ];

    /// The cheapest tile of the variants that are built for this K, in their order.
    fn best(m: i64, n: i64, k: i64, segments: i64) -> (i64, i64, bool) {
        let built = |(rows, tokens, share, turn): &(i64, i64, i64, bool)| match (rows, tokens, share, turn) {
            (64, 88, ..) => k <= 2048,
            (160, ..) | (_, 176, ..) | (_, _, 2, _) => k > 4096,
            (192, ..) | (.., false) => k > 1024,
            _ => true,
        };
        let tiling = |(rows, tokens, share, turn): (i64, i64, i64, bool)| {
            let (cluster, part) = if turn { (share, 1) } else { (share * segments, segments) };
            // Of 132 SMs, as measured on an H200; of six CTAs as of those around them.
            let clusters = [132, 66, 39, 30, 24, 20, 17, 15][cluster as usize - 1];
            Tiling { rows, tokens, cluster, share, steps: (k + 63) / 64 / part, clusters }
        };
        let (rows, tokens, _, turn) = VARIANTS
            .into_iter()
            .filter(built)
            .min_by_key(|variant| tiling(*variant).cost(m, n))
            .expect("some are always built");
        (rows, tokens, turn)
    }

    /// Measured on an H200 (`docs/kernels/dense.md`).
    #[test]
    fn the_cheapest_is_the_fastest() {
        for (m, n, k, segments, fastest) in [
            (132, 2112, 7168, 4, (192, 72, false)),
            (264, 2112, 7168, 4, (192, 136, false)),
            (528, 2112, 7168, 4, (64, 136, true)),
            (132, 1536, 7168, 4, (64, 136, false)),
            (264, 1536, 7168, 4, (128, 136, false)),
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
