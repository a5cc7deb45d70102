//! Items that several threads take, each once.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hands out the items of a list in order. What nobody took is dropped with it.
pub(super) struct Handout<T> {
    items: Vec<UnsafeCell<ManuallyDrop<T>>>,
    next: AtomicUsize,
}

// SAFETY: an item is given to one thread, and is never seen by another.
unsafe impl<T: Send> Sync for Handout<T> {}

impl<T> Handout<T> {
    pub(super) fn new(items: Vec<T>) -> Self {
        // The two wrappers change nothing but the type, so the list is taken over as it is.
        let items = items.into_iter().map(|item| UnsafeCell::new(ManuallyDrop::new(item))).collect();
        Self { items, next: AtomicUsize::new(0) }
    }

    pub(super) fn next(&self) -> Option<T> {
        let item = self.items.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        // SAFETY: the counter has given this place to this call alone, and `drop` leaves it out.
        Some(unsafe { ManuallyDrop::take(&mut *item.get()) })
    }
}

impl<T> Drop for Handout<T> {
    fn drop(&mut self) {
        let taken = *self.next.get_mut();
        for item in self.items.iter_mut().skip(taken) {
            // SAFETY: `next` gave out those before, and nothing touches this one again.
            unsafe { ManuallyDrop::drop(item.get_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_item_is_dropped_once_whether_it_was_taken_or_not() {
        let item = Arc::new(());
        for taken in 0..=4 {
            let handout = Handout::new(vec![Arc::clone(&item); 3]);
            let out: Vec<_> = (0..taken).filter_map(|_| handout.next()).collect();
            assert_eq!(out.len(), taken.min(3));
            drop(handout);
            assert_eq!(Arc::strong_count(&item), 1 + out.len());
        }
    }
}
