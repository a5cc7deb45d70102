//! What is computed: context, logits, best tokens.

use kd_attn::PAGE_TOKENS;
use kd_ddtree::DraftRow;

use super::{Both, STARTS, bits, error};

/// bf16 has 8 significant bits: a rounding errs by 2^-8 / sqrt(12) = 0.0011 of a value at root mean square. A key is rounded
/// four times on its way from the taps (fused, normed, projected, rotated), and the sums before each carry on.
const CONTEXT_LIMIT: f64 = 0.006;
/// Of logits, behind three layers of about ten roundings each.
const LOGITS_LIMIT: f64 = 0.02;
/// The lead of the best token from which on rounding cannot take it away.
const LEAD: f32 = 0.25;

#[test]
fn context_is_that_of_the_cpu_and_nothing_else_is_written() {
    let Some(mut both) = Both::demo("context_is_that_of_the_cpu_and_nothing_else_is_written") else { return };
    both.read_all();
    let mut worst: f64 = 0.0;
    let mut written = vec![false; super::LIMITS.pages * PAGE_TOKENS];
    for text in &both.texts {
        let row = |position: usize| {
            text.pages[position / PAGE_TOKENS].0 as usize * PAGE_TOKENS + position % PAGE_TOKENS
        };
        (0..text.start).for_each(|position| written[row(position)] = true);
        for (layer, expected) in both.context(text).iter().enumerate() {
            let found = both.gpu.cached(&both.stream, layer).expect("copied");
            let rows = found.gather((0..text.start).map(row));
            if text.start > 0 {
                worst = worst.max(error(rows.data(), expected.data()));
            }
        }
    }
    println!("context: largest relative error of a stream's layer {worst:.5}");
    assert!(worst <= CONTEXT_LIMIT && worst > 0.0, "relative error {worst}");
    for layer in 0..both.gpu.dims().layers.len() {
        let found = both.gpu.cached(&both.stream, layer).expect("copied");
        let stray = (0..written.len())
            .find(|row| !written[*row] && found.row(*row).iter().any(|value| *value != 0.0));
        assert_eq!(stray, None, "layer {layer}: a row that no token has was written");
    }
}

#[test]
fn logits_are_those_of_the_cpu() {
    let Some(mut both) = Both::demo("logits_are_those_of_the_cpu") else { return };
    both.read_all();
    let order: Vec<usize> = (0..STARTS.len()).collect();
    let (found, expected) = (both.draft(&order, 1), both.expected(&order));
    let (mut worst, mut leading) = (0f64, 0);
    for row in 0..expected.rows() {
        let own = error(found.row(row), expected.row(row));
        worst = worst.max(own);
        assert!(own <= LOGITS_LIMIT, "row {row} of {} committed: relative error {own}", STARTS[row / 7]);
        let best = |values: &[f32]| DraftRow::from_logits(values, 2).expect("finite");
        let (found, expected) = (best(found.row(row)), best(expected.row(row)));
        let [first, second] = [0, 1].map(|rank| expected.child(rank).expect("two tokens"));
        if first.logprob - second.logprob >= LEAD {
            assert_eq!(found.child(0).map(|child| child.token), Some(first.token), "row {row}");
            leading += 1;
        }
    }
    println!(
        "logits: largest relative error of a row {worst:.5}; {leading} of {} rows lead",
        expected.rows()
    );
    assert!(2 * leading >= expected.rows(), "only {leading} of {} rows lead by {LEAD}", expected.rows());
}

#[test]
fn the_best_tokens_are_those_of_the_logits() {
    let Some(mut both) = Both::demo("the_best_tokens_are_those_of_the_logits") else { return };
    both.read_all();
    let order: Vec<usize> = (0..STARTS.len()).collect();
    let logits = both.draft(&order, 0);
    let best = [both.gpu.best(&both.stream, order.len()).expect("copied")];
    let drafted = both.gpu.dims().drafted();
    for (stream, k) in order.iter().zip([64, 1, 16, 33, 64, 64, 2, 64]) {
        let rows = both.gpu.rows(&best, *stream, k);
        assert_eq!(rows.len(), drafted, "all rows are finite");
        for (i, row) in rows.iter().enumerate() {
            let expected = DraftRow::from_logits(logits.row(stream * drafted + i), k).expect("finite");
            let pairs = || row.children().iter().zip(expected.children());
            assert!(
                row.children().len() == k && pairs().all(|(a, b)| a.token == b.token),
                "stream {stream} row {i}"
            );
            let worst = pairs().map(|(a, b)| (a.logprob - b.logprob).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "stream {stream} row {i}: log-probabilities differ by {worst}");
        }
    }
}

/// Each of these is a mistake that the tests above must see: the smallest of each kind.
#[test]
fn mistakes_are_larger_than_what_rounding_may_do() {
    let Some(mut both) = Both::demo("mistakes_are_larger_than_what_rounding_may_do") else { return };
    both.read_all();
    let (order, at) = ([2usize], 2);
    let right = both.expected(&order);
    let seen = |both: &mut Both| {
        let found = both.draft(&order, 0);
        (0..right.rows()).map(|row| error(found.row(row), right.row(row))).fold(0.0, f64::max)
    };
    assert!(seen(&mut both) <= LOGITS_LIMIT);
    let start = both.texts[at].start;
    let mut missed = Vec::new();
    both.texts[at].start = start - 1;
    let newest = both.texts[at].tokens[start];
    let before = std::mem::replace(&mut both.texts[at].tokens[start - 1], newest);
    missed.push(("one committed token less, the block one place earlier", seen(&mut both)));
    both.texts[at].tokens[start - 1] = before;
    both.texts[at].start = start;
    both.texts[at].pages.swap(1, 2);
    missed.push(("two pages exchanged", seen(&mut both)));
    both.texts[at].pages.swap(1, 2);
    let own = std::mem::replace(&mut both.texts[at].tokens[start], 5);
    missed.push(("another newest token", seen(&mut both)));
    both.texts[at].tokens[start] = own;
    assert_eq!(bits(both.draft(&order, 0).data()), bits(both.draft(&order, 0).data()));
    for (mistake, error) in missed {
        println!("{mistake}: relative error {error:.4}");
        assert!(error > 2.0 * LOGITS_LIMIT, "{mistake} is seen as {error}");
    }
}
