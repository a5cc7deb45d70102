//! What nodes gain on average, before a draft is seen.

use super::buckets::{bucket, edge};
use crate::tree::MAX_NODES;

/// Points of the curve: 1, 2, 3, 4, 6, … nodes of a stream.
const POINTS: usize = 14;
const _: () = assert!(edge(POINTS - 1) >= MAX_NODES && edge(POINTS - 2) < MAX_NODES);

/// A moving average of Φ over nodes, both per drafting stream, and how honest Φ was.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gain {
    points: [f64; POINTS],
    samples: [u32; POINTS],
    /// Tokens that drafts gained and were said to gain; old rounds fade.
    gained: f64,
    promised: f64,
}

impl Gain {
    /// Takes Φ over the nodes of a forest of `streams` trees, from Φ(0) = 0 on.
    pub(crate) fn observe(&mut self, phi: &[f64], streams: usize) {
        for (i, (point, samples)) in self.points.iter_mut().zip(&mut self.samples).enumerate() {
            let Some(phi) = phi.get(edge(i) * streams) else { break };
            *samples += 1;
            let weight = f64::max(1.0 / f64::from(*samples), 0.05);
            *point += weight * (phi / streams as f64 - *point);
        }
    }

    /// A round that promised `promised` tokens beyond those of plain decoding gained `gained`.
    pub(crate) fn settle(&mut self, promised: f64, gained: f64) {
        self.promised = 0.98 * self.promised + promised;
        self.gained = 0.98 * self.gained + gained;
    }

    /// What a promise of 1 is worth, from what became of earlier ones.
    pub(crate) fn honesty(&self) -> f64 {
        const PRIOR: f64 = 8.0;
        (self.gained + PRIOR) / (self.promised + PRIOR)
    }

    /// Drafts seen.
    pub(crate) fn samples(&self) -> u32 {
        self.samples[0]
    }

    /// Tokens that `nodes` nodes gain a stream. `None` before the first draft.
    pub(crate) fn expected(&self, nodes: f64) -> Option<f64> {
        let known = self.samples.iter().take_while(|&&samples| samples > 0).count();
        if known == 0 {
            return None;
        }
        let above = bucket(nodes.ceil() as usize).min(known - 1);
        let (x1, y1) = (edge(above) as f64, self.points[above]);
        let (x0, y0) = if above == 0 { (0.0, 0.0) } else { (edge(above - 1) as f64, self.points[above - 1]) };
        Some((y0 + (y1 - y0) * ((nodes - x0) / (x1 - x0)).clamp(0.0, 1.0)) * self.honesty())
    }
}
