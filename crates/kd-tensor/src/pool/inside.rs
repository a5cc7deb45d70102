//! Which pools' regions a thread works in: none of them can be had whole by it.

use std::cell::RefCell;

thread_local! {
    /// The innermost region last, each by the address of its gate.
    static REGIONS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The thread works in a region until this is dropped.
pub(super) struct Inside(());

impl Inside {
    /// Marks the thread as one of those in a region of the gate at `address`.
    pub(super) fn enter(address: usize) -> Self {
        REGIONS.with_borrow_mut(|regions| regions.push(address));
        Self(())
    }

    /// Whether the thread works in a region of that gate.
    pub(super) fn of(address: usize) -> bool {
        REGIONS.with_borrow(|regions| regions.contains(&address))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        REGIONS.with_borrow_mut(Vec::pop);
    }
}
