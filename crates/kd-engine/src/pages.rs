//! Which pages of the cache are free.

use kd_attn::PageId;

/// Hands out pages; a stream gets all it may need at admission, so that nothing runs out half-way.
#[derive(Debug)]
pub(crate) struct PageAllocator {
    total: usize,
    free: Vec<PageId>,
}

impl PageAllocator {
    pub(crate) fn new(pages: usize) -> Self {
        // Popped from the end: low page ids first, so that a small load stays in little memory.
        Self { total: pages, free: (0..pages as u32).rev().map(PageId).collect() }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// `pages` pages, or `None` when fewer are free.
    pub(crate) fn take(&mut self, pages: usize) -> Option<Vec<PageId>> {
        let at = self.free.len().checked_sub(pages)?;
        Some(self.free.drain(at..).rev().collect())
    }

    pub(crate) fn give_back(&mut self, pages: Vec<PageId>) {
        self.free.extend(pages.into_iter().rev());
    }
}
