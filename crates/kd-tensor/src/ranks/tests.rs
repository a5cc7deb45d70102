//! What ranks owe each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::ops::add_assign;

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn pool(threads: usize, ranks: usize) -> Pool {
    Pool::with_ranks(count(threads), count(ranks)).unwrap()
}

fn matrix(rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> Matrix {
    Matrix::from_vec(rows, cols, (0..rows * cols).map(value).collect()).unwrap()
}

/// Runs one rank for each of `pool`, numbered.
fn ranks<R: Send>(pool: &Pool, work: impl Fn(&dyn Collective, usize) -> R + Sync + Send) -> Vec<R> {
    pool.each_rank((0..pool.ranks()).collect(), |group, _, rank| work(group, rank))
}

/// A sum of two does not know an order, so it takes more: in f32, ((10⁸ + 1) − 10⁸) + 1 is 1. Pairs first, or the last rank
/// first, it would be 0; the large ones first, 2.
#[test]
fn a_sum_is_added_in_order_of_rank_whoever_comes_first() {
    let parts = [1e8f32, 1.0, -1e8, 1.0];
    let pool = pool(4, 4);
    for late in 0..4 {
        for _ in 0..50 {
            let sums = ranks(&pool, |group, rank| {
                if rank == late {
                    std::thread::sleep(Duration::from_micros(200));
                }
                group.all_reduce(matrix(2, 3, |_| parts[rank])).unwrap()
            });
            assert_eq!(sums, vec![matrix(2, 3, |_| 1.0); 4], "rank {late} came last");
        }
    }
}

#[test]
fn sums_of_many_meetings_are_those_of_one_thread() {
    let noise = |i: usize| (i * 2_654_435_761 % 1021) as f32 / 510.5 - 1.0;
    for (threads, n) in [(1, 4), (4, 2), (2, 3), (8, 8), (1, 1)] {
        let part = |rank: usize, meeting: usize| matrix(3, 7, |i| noise(i + 31 * rank + 97 * meeting));
        let sums = ranks(&pool(threads, n), |group, rank| {
            (0..200).map(|meeting| group.all_reduce(part(rank, meeting)).unwrap()).collect::<Vec<_>>()
        });
        for (meeting, found) in sums[0].iter().enumerate() {
            let mut sum = part(0, meeting);
            (1..n).for_each(|rank| add_assign(&mut sum, &part(rank, meeting)));
            assert_eq!(*found, sum, "{n} ranks, meeting {meeting}");
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "every rank has the same bits");
    }
}

#[test]
fn gathered_columns_stand_in_order_of_rank() {
    // Rank r brings r columns: the first none.
    let gathered = ranks(&pool(1, 4), |group, rank| {
        group.all_gather(matrix(2, rank, |i| (10 * rank + i) as f32)).unwrap()
    });
    let all =
        Matrix::from_vec(2, 6, vec![10.0, 20.0, 21.0, 30.0, 31.0, 32.0, 11.0, 22.0, 23.0, 33.0, 34.0, 35.0]);
    assert_eq!(gathered, vec![all.unwrap(); 4]);
}

#[test]
fn gathered_rows_stand_in_order_of_rank() {
    // Rank r brings r rows: the first none.
    let gathered = ranks(&pool(1, 4), |group, rank| {
        group.all_gather_rows(matrix(rank, 2, |i| (10 * rank + i) as f32)).unwrap()
    });
    let all = [10.0, 11.0, 20.0, 21.0, 22.0, 23.0, 30.0, 31.0, 32.0, 33.0, 34.0, 35.0];
    assert_eq!(gathered, vec![Matrix::from_vec(6, 2, all.to_vec()).unwrap(); 4]);
}

#[test]
fn parts_meet_on_the_threads_of_the_pool() {
    for (threads, parts) in [(1, 1), (3, 1), (2, 2), (4, 3)] {
        let pool = pool(threads, 1);
        for _ in 0..50 {
            let seen = pool.in_parts((0..parts).collect(), |group, own, item| {
                assert_eq!((group.rank(), group.ranks()), (item, parts));
                let all = group.all_gather_rows(matrix(1, 1, |_| item as f32)).unwrap();
                (own.threads(), all.data().to_vec())
            });
            let own = if parts == 1 { threads } else { 1 };
            assert_eq!(seen, vec![(own, (0..parts).map(|i| i as f32).collect::<Vec<_>>()); parts]);
        }
    }
}

/// It cannot have the threads of the region that it is part of, and waited for them for ever.
#[test]
fn a_task_that_asks_for_parts_of_its_own_pool_does_not_hang() {
    let (pool, other) = (pool(2, 1), pool(2, 1));
    let met = |pool: &Pool| {
        let parts = pool.in_parts(vec![(), ()], |group, _, ()| group.all_reduce(matrix(1, 1, |_| 1.0)));
        parts == vec![Ok(matrix(1, 1, |_| 2.0)); 2]
    };
    let caught = catch_unwind(AssertUnwindSafe(|| {
        pool.for_each(vec![(), ()], |()| {
            assert!(pool.is_running_this_thread() && !other.is_running_this_thread());
            assert!(met(&other), "the threads of another pool can be had");
            assert_eq!(pool.in_parts(vec![7], |group, _, item| (group.ranks(), item)), [(1, 7)]);
            met(&pool);
        });
    }));
    let payload = caught.expect_err("the panic is passed on");
    let message = payload.downcast_ref::<String>().expect("a message");
    assert!(message.contains("a task of the pool asks for 2 of its threads"), "{message}");
    assert!(!pool.is_running_this_thread() && met(&pool), "the pool lives on");
}

#[test]
fn every_rank_has_its_share_of_the_threads() {
    for (threads, n, share) in [(1, 4, 1), (4, 2, 2), (7, 2, 3), (3, 1, 3)] {
        let pool = pool(threads, n);
        assert_eq!((pool.threads(), pool.ranks()), (threads, n));
        let seen = pool.each_rank(vec![(); n], |group, own, ()| (group.rank(), group.ranks(), own.threads()));
        assert_eq!(seen, (0..n).map(|rank| (rank, n, share)).collect::<Vec<_>>());
    }
}

/// Two callers of one pool take turns: neither runs its ranks one after the other, which would never end.
#[test]
fn two_callers_take_turns() {
    let pool = pool(2, 2);
    std::thread::scope(|scope| {
        for caller in 0..2 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..100 {
                    let sums = ranks(pool, |group, _| group.all_reduce(matrix(1, 1, |_| caller as f32)));
                    assert_eq!(sums, vec![Ok(matrix(1, 1, |_| 2.0 * caller as f32)); 2]);
                }
            });
        }
    });
}

#[test]
fn a_rank_that_returns_early_does_not_hang_the_others() {
    let pool = pool(1, 4);
    for lost in 0..4 {
        let results = ranks(&pool, |group, rank| {
            group.all_reduce(matrix(1, 1, |_| 1.0))?;
            if rank == lost { Ok(None) } else { group.all_gather(matrix(1, 1, |_| 2.0)).map(Some) }
        });
        for (rank, result) in results.into_iter().enumerate() {
            let expected = if rank == lost { Ok(None) } else { Err(CollectiveError::Lost { rank: lost }) };
            // A rank that fails ends as well, and another may hear of that one first.
            match (result, expected) {
                (Err(CollectiveError::Lost { .. }), Err(_)) => {}
                (result, expected) => assert_eq!(result, expected, "rank {rank}"),
            }
        }
    }
}

#[test]
fn a_rank_that_panics_does_not_hang_the_others_and_the_panic_is_passed_on() {
    let pool = pool(2, 4);
    for lost in 0..4 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            ranks(&pool, |group, rank| {
                assert!(rank != lost, "planted in rank {rank}");
                // The others wait for it.
                group.all_reduce(matrix(1, 1, |_| 1.0)).map(drop)
            })
        }));
        let payload = caught.expect_err("the panic is passed on");
        assert_eq!(payload.downcast_ref::<String>(), Some(&format!("planted in rank {lost}")));
    }
    assert_eq!(ranks(&pool, |group, _| group.all_reduce(matrix(1, 1, |_| 1.0)).is_ok()), [true; 4]);
}

#[test]
fn ranks_that_do_not_run_the_same_pass_all_hear_of_it() {
    let pool = pool(1, 3);
    let mismatch = |found: &str, expected: &str| {
        let (found, expected) = (found.to_owned(), expected.to_owned());
        vec![Err(CollectiveError::Mismatch { rank: 1, found, expected }); 3]
    };
    let shapes = ranks(&pool, |group, rank| group.all_reduce(matrix(2, 1 + rank % 2, |_| 1.0)));
    assert_eq!(shapes, mismatch("all_reduce [2, 2]", "all_reduce [2, 1]"));
    let rows = ranks(&pool, |group, rank| group.all_gather(matrix(2 - rank % 2, 5, |_| 1.0)));
    assert_eq!(rows, mismatch("all_gather [1, 5]", "all_gather [2, 5]"));
    let below = ranks(&pool, |group, rank| group.all_gather_rows(matrix(3, 2 - rank % 2, |_| 1.0)));
    assert_eq!(below, mismatch("all_gather_rows [3, 1]", "all_gather_rows [3, 2]"));
    let calls = ranks(&pool, |group, rank| {
        let part = matrix(1, 1, |_| 1.0);
        if rank == 1 { group.all_gather(part) } else { group.all_reduce(part) }
    });
    assert_eq!(calls, mismatch("all_gather [1, 1]", "all_reduce [1, 1]"));
}

#[test]
#[should_panic(expected = "one item a rank")]
fn items_for_other_ranks_are_refused() {
    pool(1, 2).each_rank(vec![(); 3], |_, _, ()| ());
}
