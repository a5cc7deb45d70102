//! Routings of benchmark rows.

use kd_kernels::selftest::Random;

/// How rows choose their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingKind {
    /// Every expert as likely as any other.
    Uniform,
    /// Expert of rank `r` with a weight of `1 / (r + 8)`: a few are busy, most seldom.
    Skewed,
    /// A row keeps each expert of the row before it with a chance of one half: drafted tokens of one text.
    Correlated,
    /// Every second row goes to the same experts, the others as if uniform: what deep layers of random weights do to the rows of a
    /// pass (docs/kernels/moe.md), and a load with as few crowded experts as there can be.
    Crowded,
}

impl RoutingKind {
    /// All kinds by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("uniform", Self::Uniform),
        ("skewed", Self::Skewed),
        ("correlated", Self::Correlated),
        ("crowded", Self::Crowded),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Ids of `rows` rows, each `top_k` different experts of `experts`, ascending. `top_k` is at most `experts`.
    pub fn ids(self, random: &mut Random, rows: usize, top_k: usize, experts: usize) -> Vec<i32> {
        let mut all = Vec::with_capacity(rows * top_k);
        let mut row: Vec<usize> = Vec::new();
        let common = if self == Self::Crowded { random.distinct(top_k, experts) } else { Vec::new() };
        for index in 0..rows {
            row = match self {
                Self::Crowded if index % 2 == 1 => common.clone(),
                Self::Uniform | Self::Crowded => random.distinct(top_k, experts),
                Self::Skewed => skewed(random, top_k, experts),
                Self::Correlated => {
                    row.retain(|_| random.bits() & 1 == 0);
                    while row.len() < top_k {
                        let next = random.below(experts);
                        if !row.contains(&next) {
                            row.push(next);
                        }
                    }
                    row
                }
            };
            row.sort_unstable();
            all.extend(row.iter().map(|id| *id as i32));
        }
        all
    }
}

/// The `top_k` largest of exponential waiting times, which draws without replacement by weight (Efraimidis and Spirakis).
fn skewed(random: &mut Random, top_k: usize, experts: usize) -> Vec<usize> {
    let wait = |expert: usize, random: &mut Random| {
        let uniform = 0.5 * (f64::from(random.unit()) + 1.0) + 1e-9;
        -uniform.ln() * (expert + 8) as f64
    };
    let mut waits: Vec<(f64, usize)> = (0..experts).map(|expert| (wait(expert, random), expert)).collect();
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    waits[..top_k].iter().map(|(_, expert)| *expert).collect()
}

/// Number of different experts in `ids`.
pub(super) fn active(ids: &[i32], experts: usize) -> usize {
    let mut seen = vec![false; experts];
    ids.iter().filter_map(|id| usize::try_from(*id).ok()).for_each(|id| seen[id] = true);
    seen.into_iter().filter(|seen| *seen).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_choose_different_experts_and_kinds_differ_in_how_many() {
        let counts = RoutingKind::ALL.map(|(_, kind)| {
            let ids = kind.ids(&mut Random::new(7), 64, 8, 384);
            assert!(ids.chunks(8).all(|row| row.is_sorted_by(|a, b| a < b)), "{}", kind.name());
            active(&ids, 384)
        });
        // 384 (1 - (1 - 8/384)^64) = 284 for uniform rows.
        assert!((260..310).contains(&counts[0]), "{counts:?}");
        assert!(counts[1..].iter().all(|count| *count < counts[0]), "{counts:?}");
    }
}
