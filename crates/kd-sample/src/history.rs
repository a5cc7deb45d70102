//! What a stream has seen: which ids its prompt holds and how often each was generated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// One id that occurs in the prompt or in the generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The token id.
    pub id: u32,
    /// Whether the prompt holds it.
    pub in_prompt: bool,
    /// How often it was generated.
    pub generated: u32,
}

/// The tokens before the one to be chosen, as the penalties and `min_tokens` need them.
///
/// A tree is walked with [`push`](Self::push) and [`pop`](Self::pop) along its branches: each is O(1), whatever the
/// vocabulary and the length of the history, and popping restores the earlier value exactly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Ids in order of first occurrence; an id that only popped tokens brought in is the last one and goes with them.
    seen: Vec<Seen>,
    /// Index in `seen` by id.
    index: HashMap<u32, usize>,
    generated: Vec<u32>,
}

impl History {
    /// The history of a stream that has generated nothing yet.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self::default();
        for &id in prompt {
            history.slot(id).in_prompt = true;
        }
        history
    }

    /// Appends a generated token.
    pub fn push(&mut self, id: u32) {
        self.slot(id).generated += 1;
        self.generated.push(id);
    }

    /// Takes back the last generated token; `None` if there is none.
    pub fn pop(&mut self) -> Option<u32> {
        let id = self.generated.pop()?;
        if let Entry::Occupied(slot) = self.index.entry(id) {
            let seen = &mut self.seen[*slot.get()];
            seen.generated -= 1;
            if seen.generated == 0 && !seen.in_prompt {
                self.seen.pop();
                slot.remove();
            }
        }
        Some(id)
    }

    /// Takes back generated tokens until at most `len` are left.
    pub fn truncate(&mut self, len: usize) {
        while self.generated.len() > len {
            self.pop();
        }
    }

    /// The generated tokens, oldest first.
    pub fn generated(&self) -> &[u32] {
        &self.generated
    }

    /// Every id of prompt and generated tokens, once, in order of first occurrence.
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    fn slot(&mut self, id: u32) -> &mut Seen {
        let at = *self.index.entry(id).or_insert_with(|| {
            self.seen.push(Seen { id, in_prompt: false, generated: 0 });
            self.seen.len() - 1
        });
        &mut self.seen[at]
    }
}
