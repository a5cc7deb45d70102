//! What a layer of K2.6 is meant to reach on one GPU, as multiples of its floor.

use super::Peer;
use crate::gpu::Shape;

/// A peer is passed where a layer takes at most this share of its time: less is within what runs differ by.
const AHEAD: f64 = 0.95;

/// Rows, floor and target in microseconds, at 4.5 TB/s and uniform routing; only their ratio is used, as floors move with the device.
type Targets = [(usize, f64, f64); 11];

const FULL: Targets = [
    (1, 44.0, 55.0),
    (4, 172.0, 195.0),
    (8, 327.0, 365.0),
    (16, 609.0, 680.0),
    (33, 1060.0, 1180.0),
    (64, 1573.0, 1750.0),
    (128, 1980.0, 2200.0),
    (264, 2112.0, 2400.0),
    (512, 2123.0, 2500.0),
    (1024, 2123.0, 2900.0),
    (2048, 2123.0, 3900.0),
];

const EIGHTH: Targets = [
    (1, 5.5, 15.0),
    (4, 21.5, 31.0),
    (8, 41.0, 52.0),
    (16, 76.0, 90.0),
    (33, 132.0, 152.0),
    (64, 197.0, 222.0),
    (128, 247.0, 280.0),
    (264, 264.0, 310.0),
    (512, 265.0, 330.0),
    (1024, 265.0, 400.0),
    (2048, 265.0, 540.0),
];

/// The target of `rows` rows as a multiple of the time that reading their experts takes, for the two shapes that have one.
pub(super) fn stretch(shape: &Shape, rows: usize) -> Option<f64> {
    let targets = match shape {
        Shape { hidden: 7168, width: 2048, experts: 384, top_k: 8 } => FULL,
        Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 } => EIGHTH,
        _ => return None,
    };
    targets.into_iter().find(|(at, ..)| *at == rows).map(|(_, floor, target)| target / floor)
}

/// What `rows` rows may take to be ahead of every peer that has a time for them.
pub(super) fn must(peers: &[Peer], rows: usize) -> Option<f64> {
    let times = peers.iter().flat_map(|peer| &peer.times).filter(|(at, _)| *at == rows);
    times.map(|(_, time)| AHEAD * time).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_multiple_of_the_floor_and_the_best_peer_counts() {
        let shape = Shape { hidden: 7168, width: 256, experts: 384, top_k: 8 };
        assert_eq!(stretch(&shape, 264), Some(310.0 / 264.0));
        assert_eq!(stretch(&shape, 2), None);
        assert_eq!(
            stretch(&Shape { experts: 48, ..shape }, 264),
            None,
            "a slice of a layer has another load"
        );
        let peer = |name: &str, time| Peer { name: name.to_owned(), times: vec![(264, time)] };
        let peers = [peer("one", 368.0), peer("other", 400.0)];
        assert_eq!(must(&peers, 264), Some(0.95 * 368.0));
        assert_eq!(must(&peers, 33), None);
    }
}
