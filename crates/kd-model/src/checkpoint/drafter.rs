//! What is particular to a drafter's checkpoint: its names, and its reduced vocabulary.

use super::{Checkpoint, CheckpointError};
use crate::config::DrafterConfig;

/// Which target ids a drafter with a vocabulary of its own can propose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterVocabulary {
    /// Target id of each draft id.
    pub target_ids: Vec<u32>,
}

impl Checkpoint {
    /// The full name of one of a drafter's tensors: `model.name` if the file has that, else `name`.
    pub fn drafter_name(&self, name: &str) -> String {
        let prefixed = format!("model.{name}");
        if self.contains(&prefixed) { prefixed } else { name.to_owned() }
    }

    /// Takes `d2t` and, if it is there, `t2d` of a drafter; `None` if it has neither and speaks the target's ids.
    ///
    /// `d2t` holds differences: target id = draft id + `d2t[draft id]`. `t2d` marks the target ids that exist.
    ///
    /// # Errors
    /// [`CheckpointError::Value`] if an id lies outside the target's vocabulary, occurs twice, or if the two maps
    /// disagree; [`CheckpointError::Missing`] if a reduced vocabulary has no `d2t`; those of [`Checkpoint::take`].
    pub fn take_drafter_vocabulary(
        &self,
        config: &DrafterConfig,
    ) -> Result<Option<DrafterVocabulary>, CheckpointError> {
        let (d2t, t2d) = (self.drafter_name("d2t"), self.drafter_name("t2d"));
        if !config.has_reduced_vocabulary() && !self.contains(&d2t) && !self.contains(&t2d) {
            return Ok(None);
        }
        let differences = self.take_integers(&d2t, &[config.draft_vocab_size])?;
        let mut known = vec![false; config.vocab_size];
        let mut target_ids = Vec::with_capacity(differences.len());
        for (index, &difference) in differences.iter().enumerate() {
            let target = i64::try_from(index).ok().and_then(|draft| draft.checked_add(difference));
            let id = target.and_then(|id| u32::try_from(id).ok());
            match id.map(|id| (id, known.get_mut(id as usize))) {
                Some((id, Some(seen))) if !*seen => {
                    *seen = true;
                    target_ids.push(id);
                }
                _ => {
                    let expected =
                        format!("a difference that leads to an unused id below {}", config.vocab_size);
                    return Err(self.bad_value(&d2t, index, difference.to_string(), &expected));
                }
            }
        }
        if self.contains(&t2d) {
            let marked = self.take_bools(&t2d, &[config.vocab_size])?;
            if let Some(index) = (0..marked.len()).find(|&id| marked[id] != known[id]) {
                let expected = format!("{}, as `{d2t}` has it", known[index]);
                return Err(self.bad_value(&t2d, index, marked[index].to_string(), &expected));
            }
        }
        Ok(Some(DrafterVocabulary { target_ids }))
    }
}
