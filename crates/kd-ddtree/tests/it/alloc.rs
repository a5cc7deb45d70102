//! A warm builder allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kd_ddtree::{DraftRow, Forest, Marginals, StreamLimits, Tree, TreeBuilder};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the counter itself never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_builder_allocates_nothing() {
    let row = |depth: u32| {
        let logits: Vec<f32> = (0..500u32).map(|i| (i * (7 + depth) % 101) as f32 / 9.0).collect();
        DraftRow::from_logits(&logits, 64).expect("finite")
    };
    let rows: Vec<DraftRow> = (0..7).map(row).collect();
    let mut scorers = [Marginals(&rows); 16];
    let limits = [StreamLimits { floor: 2, cap: 64 }; 16];
    let (mut builder, mut tree, mut forest) = (TreeBuilder::new(), Tree::empty(), Forest::new());
    let mut round = |streams: usize, budget: usize| {
        builder.build(&mut scorers[0], budget.min(128), &mut tree).expect("within limits");
        builder
            .build_forest(&mut scorers[..streams], &limits[..streams], budget, &mut forest)
            .expect("within limits");
    };
    round(16, 1024);
    let before = CALLS.get();
    for streams in [16, 1, 0, 7, 16] {
        for budget in [0, 1, 64, 500, 1024, 5000] {
            round(streams, budget);
        }
    }
    assert_eq!(CALLS.get() - before, 0);
}
