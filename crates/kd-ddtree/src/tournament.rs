//! The best key over all streams, kept up to date one stream at a time.

use crate::candidate::Key;

/// A winner tree: leaf `s` holds stream `s`'s best key, every inner place the larger of the two below it.
///
/// An update is one max for each level, without a branch that depends on the keys, which a heap cannot offer.
#[derive(Debug, Default)]
pub(crate) struct Tournament {
    /// Place 1 is the overall winner, the leaves are the second half.
    places: Vec<Key>,
}

impl Tournament {
    /// Starts over with no key for any of `streams` streams.
    pub(crate) fn reset(&mut self, streams: usize) {
        self.places.clear();
        self.places.resize(2 * streams.next_power_of_two(), Key::NONE);
    }

    /// The best key of all.
    pub(crate) fn best(&self) -> Option<Key> {
        Some(self.places[1]).filter(|&key| key != Key::NONE)
    }

    /// Sets a stream's best key; [`Key::NONE`] takes it out.
    pub(crate) fn set(&mut self, stream: usize, best: Key) {
        let mut place = self.places.len() / 2 + stream;
        let mut winner = best;
        self.places[place] = winner;
        while place > 1 {
            winner = winner.max(self.places[place ^ 1]);
            place /= 2;
            self.places[place] = winner;
        }
    }
}
