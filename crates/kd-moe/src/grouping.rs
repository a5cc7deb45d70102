//! From the experts of each row to the rows of each expert.

use crate::Routing;

/// Rows grouped by expert, as a compressed sparse list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    experts: Vec<u32>,
    offsets: Vec<usize>,
    rows: Vec<u32>,
    slots: Vec<u32>,
}

/// The rows of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    /// The expert.
    pub expert: usize,
    /// Where the group starts in the list of all assignments.
    pub start: usize,
    /// Its rows, ascending.
    pub rows: &'a [u32],
    /// For each row, the index of this choice in the routing's lists.
    pub slots: &'a [u32],
}

impl Groups {
    /// Groups a routing over `experts` experts. Experts that no row chose do not appear.
    pub fn new(routing: &Routing, experts: usize) -> Self {
        let mut offset = vec![0usize; experts + 1];
        routing.ids.iter().for_each(|&e| offset[e as usize + 1] += 1);
        (0..experts).for_each(|e| offset[e + 1] += offset[e]);
        let mut next = offset.clone();
        let (mut rows, mut slots) = (vec![0; routing.ids.len()], vec![0; routing.ids.len()]);
        for (slot, &e) in routing.ids.iter().enumerate() {
            let at = &mut next[e as usize];
            (rows[*at], slots[*at]) = ((slot / routing.top_k) as u32, slot as u32);
            *at += 1;
        }
        let used: Vec<u32> = (0..experts).filter(|&e| offset[e] < offset[e + 1]).map(|e| e as u32).collect();
        let mut offsets: Vec<usize> = used.iter().map(|&e| offset[e as usize]).collect();
        offsets.push(routing.ids.len());
        Self { experts: used, offsets, rows, slots }
    }

    /// Number of experts that at least one row chose.
    pub fn distinct(&self) -> usize {
        self.experts.len()
    }

    /// Number of (row, expert) pairs.
    pub fn assignments(&self) -> usize {
        self.rows.len()
    }

    /// Rows of a group on average, rounded up.
    pub fn rows_each(&self) -> usize {
        self.assignments().div_ceil(self.distinct().max(1))
    }

    /// The groups, ascending by expert.
    pub fn iter(&self) -> impl Iterator<Item = Group<'_>> {
        self.experts.iter().zip(self.offsets.windows(2)).map(|(&expert, span)| Group {
            expert: expert as usize,
            start: span[0],
            rows: &self.rows[span[0]..span[1]],
            slots: &self.slots[span[0]..span[1]],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kd_tensor::Matrix;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_choice_appears_once_under_its_expert(
            rows in prop::collection::vec(prop::sample::subsequence((0u32..12).collect::<Vec<_>>(), 3), 0..40),
        ) {
            let ids: Vec<u32> = rows.concat();
            let weights = vec![0.0; ids.len()];
            let routing = Routing { top_k: 3, ids: ids.clone(), weights, scores: Matrix::zeros(rows.len(), 12) };
            let groups = Groups::new(&routing, 12);
            let mut seen = Vec::new();
            let mut last = None;
            for group in groups.iter() {
                prop_assert!(last < Some(group.expert));
                last = Some(group.expert);
                prop_assert_eq!(group.start, seen.len());
                prop_assert!(group.rows.is_sorted());
                for (&row, &slot) in group.rows.iter().zip(group.slots) {
                    prop_assert_eq!(ids[slot as usize] as usize, group.expert);
                    prop_assert_eq!(slot / 3, row);
                    seen.push(slot);
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ids.len() as u32).collect::<Vec<_>>());
        }
    }
}
